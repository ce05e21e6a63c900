// A histogram on which a range is chosen: by dragging, by a click on a bar, or with two sliders.
import { scaleLinear } from "d3-scale";
import { useRef, useState } from "react";
import { count, number, plural, percent } from "../format";
import type { Bin } from "../source/schema";
import "./range-histogram.css";
import { RangeHandle } from "./range-handle";
import { axisNumber } from "./ticks";
import { useWidth } from "./use-width";

/** A range of a measure; an end that is null is open. */
export interface ValueRange {
  min: number | null;
  max: number | null;
  /** Whether the upper end belongs to it. */
  inclusive: boolean;
}

interface Properties {
  bins: Bin[];
  range: ValueRange;
  /** What is measured, in words. */
  label: string;
  height: number;
  choose: (range: ValueRange, options: { replace: boolean }) => void;
}

/** Two places of the list of edges. */
type Edges = readonly [number, number];

const AXIS = 18;

export function RangeHistogram({ bins, range, label, height, choose }: Properties) {
  const [place, width] = useWidth<HTMLDivElement>();
  const [drag, setDrag] = useState<Edges | null>(null);
  const [over, setOver] = useState<number | null>(null);
  const from = useRef(0);
  const edges = edgesOf(bins);
  const [low, high] = [edges[0] ?? 0, edges[edges.length - 1] ?? 1];
  const x = scaleLinear([low, high === low ? low + 1 : high], [0, Math.max(1, width)]);
  const most = Math.max(1, ...bins.map((bin) => bin.n));
  const ticks = high === low ? [low] : x.ticks(Math.max(2, Math.floor(width / 90)));
  const format = axisNumber(ticks);
  const shown = drag === null ? range : rangeOf(drag, edges);
  const commit = ([left, right]: Edges, replace: boolean): void => {
    const next = rangeOf([left, right], edges);
    // The only bin that is chosen already is let go by a click.
    const same = !replace && right === left + 1 && next.min === range.min && next.max === range.max;
    choose(same ? { min: null, max: null, inclusive: true } : next, { replace });
  };
  const binAt = (event: React.PointerEvent): number => {
    const { left } = event.currentTarget.getBoundingClientRect();
    const fraction = (event.clientX - left) / Math.max(1, width);
    return Math.max(0, Math.min(bins.length - 1, Math.floor(fraction * bins.length)));
  };
  const nearest = (value: number | null, otherwise: number): number => (value === null ? otherwise : closest(edges, value));
  const ends: Edges = [nearest(shown.min, 0), nearest(shown.max, bins.length)];
  const sole = bins.length < 2;
  return (
    <div className="range" ref={place} role="group" aria-label={`Distribution of ${label}. ${summary(bins)}`}>
      <svg
        width={width}
        height={height + AXIS}
        aria-hidden="true"
        onPointerDown={(event) => {
          if (event.button !== 0 || sole) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          from.current = binAt(event);
          setDrag([from.current, from.current + 1]);
        }}
        onPointerMove={(event) => {
          const at = binAt(event);
          setOver(at);
          if (drag !== null) setDrag([Math.min(from.current, at), Math.max(from.current, at) + 1]);
        }}
        onPointerUp={() => {
          if (drag !== null) commit(drag, false);
          setDrag(null);
        }}
        onPointerCancel={() => setDrag(null)}
        onPointerLeave={() => setOver(null)}
      >
        {bins.map((bin, index) => (
          <Bar key={index} bin={bin} left={(index * width) / bins.length} width={width / bins.length} most={most} height={height} chosen={isWithin(bin, shown)} over={over === index} />
        ))}
        <line x1={0} x2={width} y1={height + 0.5} y2={height + 0.5} className="range-floor" />
        {ticks.map((tick) => (
          <text key={tick} x={sole ? width / 2 : x(tick)} y={height + 14} textAnchor={sole ? "middle" : x(tick) < 16 ? "start" : x(tick) > width - 16 ? "end" : "middle"}>
            {format(tick)}
          </text>
        ))}
      </svg>
      {!sole && (
        <>
          <RangeHandle side="left" label={`Least ${label}`} x={x(edges[ends[0]] ?? low)} height={height} values={edges} at={ends[0]} limits={[0, ends[1] - 1]} width={width} move={setDrag} edges={ends} commit={commit} />
          <RangeHandle side="right" label={`Greatest ${label}`} x={x(edges[ends[1]] ?? high)} height={height} values={edges} at={ends[1]} limits={[ends[0] + 1, bins.length]} width={width} move={setDrag} edges={ends} commit={commit} />
        </>
      )}
      <p className="range-summary small" aria-hidden="true">
        {drag !== null ? inWords(shown, bins) : over !== null && bins[over] !== undefined ? told1(bins[over], over === bins.length - 1) : ""}
      </p>
    </div>
  );
}

interface BarProperties {
  bin: Bin;
  left: number;
  width: number;
  most: number;
  height: number;
  chosen: boolean;
  over: boolean;
}

function Bar({ bin, left, width, most, height, chosen, over }: BarProperties) {
  const tall = bin.n === 0 ? 0 : Math.max(2, (bin.n / most) * (height - 4));
  return (
    <>
      {over && <rect x={left} width={width} height={height} className="range-over" />}
      <rect x={left + 0.5} width={Math.max(1, width - 1)} y={height - tall} height={tall} rx={Math.min(2, width / 4)} className={chosen ? "range-bar" : "range-bar outside"} />
    </>
  );
}

function edgesOf(bins: Bin[]): number[] {
  const last = bins[bins.length - 1];
  return last === undefined ? [] : [...bins.map((bin) => bin.low), last.high];
}

/** At the first and the last edge the range is open, so that it includes what is recorded later. */
function rangeOf([left, right]: Edges, edges: readonly number[]): ValueRange {
  const last = edges.length - 1;
  return { min: left <= 0 ? null : (edges[left] ?? null), max: right >= last ? null : (edges[right] ?? null), inclusive: right >= last };
}

function isWithin(bin: Bin, { min, max, inclusive }: ValueRange): boolean {
  const middle = (bin.low + bin.high) / 2;
  return (min === null || middle >= min || bin.high > min) && (max === null || (inclusive ? bin.low <= max : bin.low < max));
}

function closest(edges: readonly number[], value: number): number {
  let best = 0;
  edges.forEach((edge, index) => {
    if (Math.abs(edge - value) < Math.abs((edges[best] ?? 0) - value)) best = index;
  });
  return best;
}

function told1(bin: Bin, last: boolean): string {
  if (bin.low === bin.high) return `${number(bin.low)} · ${plural(bin.n, "rollout")}`;
  return `${number(bin.low)} to ${last ? "" : "below "}${number(bin.high)} · ${plural(bin.n, "rollout")}`;
}

function inWords(range: ValueRange, bins: Bin[]): string {
  const within = bins.filter((bin) => isWithin(bin, range)).reduce((sum, bin) => sum + bin.n, 0);
  const all = bins.reduce((sum, bin) => sum + bin.n, 0);
  const ends = range.min === null && range.max === null ? "all" : `${range.min === null ? "up" : number(range.min)} to ${range.max === null ? "the greatest" : `below ${number(range.max)}`}`;
  return `${ends} · ${plural(within, "rollout")}, ${percent(within, all)}`;
}

function summary(bins: Bin[]): string {
  const fullest = bins.reduce<Bin | null>((best, bin) => (best === null || bin.n > best.n ? bin : best), null);
  if (fullest === null) return "There are no values.";
  const all = bins.reduce((sum, bin) => sum + bin.n, 0);
  return `${count(all)} values from ${number(bins[0]?.low)} to ${number(bins[bins.length - 1]?.high)}; most, ${count(fullest.n)}, are from ${number(fullest.low)} to ${number(fullest.high)}.`;
}
