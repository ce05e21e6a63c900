// A line of a few numbers, as small as a word.
import { line } from "d3-shape";
import { number } from "../format";
import "./charts.css";

interface Properties {
  values: readonly (number | null)[];
  width?: number;
  height?: number;
  label: string;
}

export function Sparkline({ values, width = 96, height = 24, label }: Properties) {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  const low = Math.min(...known);
  const high = Math.max(...known);
  const x = (index: number) => 2 + (values.length === 1 ? width - 6 : (index * (width - 6)) / (values.length - 1));
  const y = (value: number) => (high === low ? height / 2 : height - 3 - ((value - low) * (height - 6)) / (high - low));
  const shape = line<number | null>()
    .defined((value) => value !== null)
    .x((_, index) => x(index))
    .y((value) => y(value ?? 0));
  const last = values.findLastIndex((value) => value !== null);
  return (
    <svg
      className="sparkline"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      role="img"
      aria-label={`${label}: from ${number(known[0])} to ${number(known[known.length - 1])}`}
    >
      {values.length > 1 && <path d={shape([...values]) ?? ""} />}
      <circle cx={x(last)} cy={y(values[last] ?? 0)} r={2.2} />
    </svg>
  );
}
