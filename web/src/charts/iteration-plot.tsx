// The frame of a chart over iterations: axes, a column for each bin, the cursor, and its keys.
import { scaleLinear, type ScaleLinear } from "d3-scale";
import { type KeyboardEvent, memo, type PointerEvent, type ReactNode, useMemo } from "react";
import { go } from "../router";
import { HorizontalAxis, VerticalAxis } from "./axis";
import "./charts.css";
import { useHoveredIteration, useHoveredStore } from "./hovered-iteration";
import { labelled } from "./ticks";
import { useWidth } from "./use-width";

export interface IterationBin {
  first: number;
  last: number;
}
/** Where things are drawn: `x` is the middle of a column, `step` how wide it is. */
export interface Place {
  x: (index: number) => number;
  step: number;
  y: ScaleLinear<number, number>;
  width: number;
  height: number;
}

interface Properties {
  bins: readonly IterationBin[];
  domain: readonly [number, number];
  label: string;
  height?: number;
  tick?: (value: number) => string;
  ticks?: number;
  /** Describes a bin in words. */
  describe: (index: number) => string;
  /** Where Enter leads at a bin. */
  to: (index: number) => string;
  /** The first iteration of the bin that is chosen. */
  chosen?: number | null;
  children: (place: Place) => ReactNode;
}

const MARGIN = { top: 8, right: 6, bottom: 24, left: 44 };

export const IterationPlot = memo(function IterationPlot({ bins, domain, label, height = 200, tick, ticks = 4, describe, to, chosen = null, children }: Properties) {
  const [holder, outer] = useWidth<HTMLDivElement>();
  const hovered = useHoveredStore();
  const [low, high] = domain;
  const place = useMemo<Place>(() => {
    const width = Math.max(10, outer - MARGIN.left - MARGIN.right);
    const inner = height - MARGIN.top - MARGIN.bottom;
    const step = width / Math.max(1, bins.length);
    return { x: (index) => (index + 0.5) * step, step, y: scaleLinear([low, high], [inner, 0]), width, height: inner };
  }, [outer, height, bins.length, low, high]);
  const labels = useMemo(() => {
    const most = Math.max(2, Math.floor(place.width / 56));
    return labelled(bins.map((bin) => bin.first), most).map((index) => ({ at: place.x(index), text: String(bins[index]?.first ?? "") }));
  }, [bins, place]);
  const marks = useMemo(() => children(place), [children, place]);
  const point = (event: PointerEvent<SVGElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const index = Math.floor((event.clientX - box.left) / place.step);
    hovered.set(bins[Math.max(0, Math.min(bins.length - 1, index))]?.first ?? null);
  };
  return (
    <div className="chart" ref={holder} style={{ height }}>
      {outer > 0 && (
        <svg width={outer} height={height} role="group" aria-label={label}>
          <g transform={`translate(${MARGIN.left},${MARGIN.top})`}>
            <VerticalAxis scale={place.y} width={place.width} ticks={ticks} {...(tick === undefined ? {} : { label: tick })} />
            <HorizontalAxis labels={labels} width={place.width} y={place.height} />
            <g onPointerMove={point} onPointerLeave={() => hovered.set(null)}>
              {/* Something must be hit between the marks, too, and as wide as the plot. */}
              <rect className="chart-ground" width={place.width} height={place.height} />
              {marks}
            </g>
            <Chosen bins={bins} place={place} at={chosen} />
            <Cursor bins={bins} place={place} label={label} describe={describe} to={to} chosen={chosen} />
          </g>
        </svg>
      )}
    </div>
  );
});

function Chosen({ bins, place, at }: { bins: readonly IterationBin[]; place: Place; at: number | null }) {
  const index = at === null ? -1 : bins.findIndex((bin) => bin.first <= at && at <= bin.last);
  if (index < 0) return null;
  return <rect className="chart-chosen" x={index * place.step} width={Math.max(2, place.step)} height={place.height} />;
}

interface CursorProperties extends Pick<Properties, "bins" | "label" | "describe" | "to"> {
  place: Place;
  chosen: number | null;
}

/** The one place of the chart that the keyboard reaches: arrows walk the bins, Enter opens. */
function Cursor({ bins, place, label, describe, to, chosen }: CursorProperties) {
  const hovered = useHoveredStore();
  const at = useHoveredIteration();
  const found = bins.findIndex((bin) => bin.first === (at ?? chosen));
  const index = found < 0 ? bins.length - 1 : found;
  const onKeyDown = (event: KeyboardEvent) => {
    const next = walked(event.key, index, bins.length);
    if (next !== null) hovered.set(bins[next]?.first ?? null);
    else if (event.key === "Enter") go(to(index));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <g
      className="chart-cursor"
      tabIndex={0}
      role="slider"
      aria-label={`${label}: iteration`}
      aria-valuemin={bins[0]?.first}
      aria-valuemax={bins[bins.length - 1]?.first}
      aria-valuenow={bins[index]?.first}
      aria-valuetext={describe(index)}
      onKeyDown={onKeyDown}
      onFocus={(event) => event.target.matches(":focus-visible") && hovered.set(bins[index]?.first ?? null)}
      onBlur={() => hovered.set(null)}
    >
      <rect className="chart-focus" x={-2} y={-2} width={place.width + 4} height={place.height + 4} rx={4} />
      {at !== null && found >= 0 && <line x1={place.x(found)} x2={place.x(found)} y2={place.height} />}
    </g>
  );
}

function walked(key: string, index: number, length: number): number | null {
  const far = Math.max(1, Math.round(length / 10));
  const moves: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -length, End: length };
  const move = moves[key];
  return move === undefined ? null : Math.max(0, Math.min(length - 1, index + move));
}
