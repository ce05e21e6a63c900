// Rewards over the steps of a rollout: a bar for each, the running total as a line, and marks where something went wrong.
import { extent } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { useMemo, useState, type KeyboardEvent, type PointerEvent } from "react";
import { useWidth } from "./use-width";
import "./step-timeline.css";

export type StepMark = "error" | "env failure" | "parse error" | "tool failure" | "not a number" | "version" | "call";
export interface TimelinePoint {
  step: number;
  reward: number | null;
  total: number | null;
  marks: readonly StepMark[];
  /** All of that in a sentence. */
  sentence: string;
}
interface StepTimelineProperties {
  points: readonly TimelinePoint[];
  /** The place in `points` of the step that was chosen. */
  chosen: number | null;
  /** The address of a step. */
  to: (step: number) => string;
  choose: (step: number) => void;
}

const HEIGHT = 44;
const LANE = 12;
/** A step takes no more room than this, so that a few do not sprawl. */
const WIDEST = 28;
const GRAVEST: readonly StepMark[] = ["error", "env failure", "not a number", "parse error", "tool failure", "version", "call"];
const GLYPHS: Record<StepMark, string> = {
  error: "M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5",
  "env failure": "M-4 0H4M0-4V4",
  "parse error": "M0-4 4 3.5H-4Z",
  "tool failure": "M0-4 4 0 0 4-4 0Z",
  "not a number": "M-3.5-3.5H3.5V3.5H-3.5Z",
  version: "M0-5V5",
  call: "M-1.6 0A1.6 1.6 0 1 0 1.6 0 1.6 1.6 0 1 0-1.6 0",
};

export function StepTimeline({ points, chosen, to, choose }: StepTimelineProperties) {
  const [place, room] = useWidth<HTMLDivElement>(600);
  const [pointed, setPointed] = useState<number | null>(null);
  const width = Math.min(room, points.length * WIDEST);
  const wide = width / points.length;
  const drawn = useMemo(() => drawing(points, width), [points, width]);
  const shown = points[pointed ?? chosen ?? -1];
  const kinds = GRAVEST.filter((kind) => drawn.marks.some((mark) => mark.kind === kind));
  const move = (event: PointerEvent) => {
    const box = event.currentTarget.getBoundingClientRect();
    setPointed(Math.max(0, Math.min(points.length - 1, Math.floor(((event.clientX - box.left) / box.width) * points.length))));
  };
  const key = (event: KeyboardEvent) => {
    const target = moved(event.key, chosen ?? 0, points.length);
    const point = target === null ? undefined : points[target];
    if (point === undefined) return;
    event.preventDefault();
    choose(point.step);
  };
  const now = points[chosen ?? 0];
  return (
    <div className="step-timeline" ref={place}>
      <div
        className="step-timeline-plot"
        role="slider"
        tabIndex={0}
        aria-label="Steps of the rollout by their rewards"
        aria-valuemin={points[0]?.step ?? 0}
        aria-valuemax={points.at(-1)?.step ?? 0}
        aria-valuenow={now?.step ?? 0}
        aria-valuetext={now?.sentence ?? ""}
        onKeyDown={key}
      >
        <svg width={width} height={HEIGHT + LANE} aria-hidden="true">
          {chosen !== null && <rect className="chosen" x={chosen * wide} width={Math.max(wide, 3)} y={0} height={HEIGHT + LANE} />}
          {pointed !== null && <rect className="pointed" x={pointed * wide} width={Math.max(wide, 2)} y={0} height={HEIGHT + LANE} />}
          <line className="zero" x1={0} x2={width} y1={drawn.zero} y2={drawn.zero} />
          <path className="up" d={drawn.up} />
          <path className="down" d={drawn.down} />
          <path className="total" d={drawn.total} />
          {drawn.marks.map(({ x, kind }) => (
            <path key={`${kind}${x}`} className={`mark ${kind.replaceAll(" ", "-")}`} d={GLYPHS[kind]} transform={`translate(${x} ${HEIGHT + LANE / 2})`} />
          ))}
        </svg>
      </div>
      <a
        className="step-timeline-hit"
        href={to(points[pointed ?? 0]?.step ?? 0)}
        style={{ width }}
        tabIndex={-1}
        aria-hidden="true"
        onPointerMove={move}
        onPointerDown={move}
        onPointerLeave={() => setPointed(null)}
      />
      <div className="step-timeline-words small faint">
        <span className="step-timeline-now">{shown?.sentence ?? `${points.length} steps`}</span>
        <span className="step-timeline-legend">
          <i className="line" aria-hidden="true" /> total
          {kinds.map((kind) => (
            <span key={kind}>
              <svg width="10" height="10" viewBox="-5 -5 10 10" aria-hidden="true">
                <path className={`mark ${kind.replaceAll(" ", "-")}`} d={GLYPHS[kind]} />
              </svg>{" "}
              {kind}
            </span>
          ))}
        </span>
      </div>
    </div>
  );
}

/** Bars and marks as few paths: thousands of steps are drawn as quickly as ten. */
function drawing(points: readonly TimelinePoint[], width: number) {
  const wide = width / points.length;
  const inner = Math.max(0.75, wide > 5 ? Math.min(wide - 2, 18) : wide > 2.5 ? wide - 0.75 : wide);
  const rewards = scaleLinear(domain(points.map((point) => point.reward ?? 0)), [HEIGHT - 3, 3]);
  const totals = scaleLinear(domain(points.map((point) => point.total ?? 0)), [HEIGHT - 3, 3]);
  const zero = rewards(0);
  let up = "";
  let down = "";
  for (const [place, { reward }] of points.entries()) {
    if (reward === null || reward === 0) continue;
    const x = place * wide + (wide - inner) / 2;
    const bar = `M${round(x)} ${round(zero)}V${round(rewards(reward))}h${round(inner)}V${round(zero)}Z`;
    if (reward > 0) up += bar;
    else down += bar;
  }
  const known = points.map((point, place) => ({ place, total: point.total })).filter((point) => point.total !== null);
  const total = line<(typeof known)[number]>(
    (point) => round((point.place + 0.5) * wide),
    (point) => round(totals(point.total ?? 0)),
  )(known);
  return { zero, up, down, total: total ?? "", marks: marksOf(points, wide) };
}

/** The most severe mark of each step; overlapping marks of one kind are drawn once. */
function marksOf(points: readonly TimelinePoint[], wide: number): { x: number; kind: StepMark }[] {
  const last = new Map<StepMark, number>();
  return points.flatMap((point, place) => {
    const kind = GRAVEST.find((one) => point.marks.includes(one));
    const x = round((place + 0.5) * wide);
    if (kind === undefined || x - (last.get(kind) ?? -Infinity) < 5) return [];
    last.set(kind, x);
    return [{ x, kind }];
  });
}

function domain(values: readonly number[]): [number, number] {
  const [low = 0, high = 0] = extent(values);
  return low === 0 && high === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high)];
}

function moved(key: string, from: number, length: number): number | null {
  const to: Record<string, number> = { ArrowRight: from + 1, ArrowUp: from + 1, ArrowLeft: from - 1, ArrowDown: from - 1, Home: 0, End: length - 1, PageUp: from + 10, PageDown: from - 10 };
  const target = to[key];
  return target === undefined ? null : Math.max(0, Math.min(length - 1, target));
}

const round = (value: number): number => Math.round(value * 10) / 10;
