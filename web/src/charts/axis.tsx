// The axes of a chart: few ticks, thin lines, numbers that are read at a glance.
import type { ScaleLinear } from "d3-scale";
import { axisNumber } from "./ticks";

interface VerticalProperties {
  scale: ScaleLinear<number, number>;
  width: number;
  ticks?: number;
  label?: (value: number) => string;
}

/** Lines across the plot, with their values at its left. */
export function VerticalAxis({ scale, width, ticks = 4, label }: VerticalProperties) {
  const values = scale.ticks(ticks);
  const written = label ?? axisNumber(values);
  return (
    <g className="chart-axis" aria-hidden="true">
      {values.map((value) => (
        <g key={value} transform={`translate(0,${scale(value)})`}>
          <line x2={width} className={value === 0 ? "chart-zero" : "chart-grid"} />
          <text x={-8} dy="0.32em" textAnchor="end">
            {written(value)}
          </text>
        </g>
      ))}
    </g>
  );
}

interface HorizontalProperties {
  /** The position of each label, in pixels. */
  labels: readonly { at: number; text: string }[];
  width: number;
  y: number;
}

export function HorizontalAxis({ labels, width, y }: HorizontalProperties) {
  return (
    <g className="chart-axis" transform={`translate(0,${y})`} aria-hidden="true">
      <line x2={width} className="chart-base" />
      {labels.map(({ at, text }) => (
        <text key={`${at} ${text}`} x={Math.min(at, width)} y={16} textAnchor={at < 12 ? "start" : at > width - 12 ? "end" : "middle"}>
          {text}
        </text>
      ))}
    </g>
  );
}
