// One end of a range: a slider that is dragged or moved with the arrow keys, from edge to edge.
import { number } from "../format";

interface Properties {
  side: "left" | "right";
  label: string;
  x: number;
  height: number;
  width: number;
  values: readonly number[];
  /** Its place among the values, and how far it may go. */
  at: number;
  limits: readonly [number, number];
  edges: readonly [number, number];
  move: (edges: readonly [number, number] | null) => void;
  commit: (edges: readonly [number, number], replace: boolean) => void;
}

const STEPS: Record<string, number> = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5, Home: -Infinity, End: Infinity };

export function RangeHandle({ side, label, x, height, width, values, at, limits, edges, move, commit }: Properties) {
  const within = (place: number): number => Math.max(limits[0], Math.min(limits[1], place));
  const moved = (place: number): readonly [number, number] => (side === "left" ? [within(place), edges[1]] : [edges[0], within(place)]);
  const placeOf = (event: React.PointerEvent): number => {
    const left = event.currentTarget.parentElement?.getBoundingClientRect().left ?? 0;
    return Math.round(((event.clientX - left) / Math.max(1, width)) * (values.length - 1));
  };
  return (
    <div
      role="slider"
      tabIndex={0}
      className={`range-handle ${side}`}
      aria-label={label}
      aria-valuemin={values[limits[0]]}
      aria-valuemax={values[limits[1]]}
      aria-valuenow={values[at]}
      aria-valuetext={number(values[at])}
      style={{ transform: `translateX(${x}px)`, height }}
      onKeyDown={(event) => {
        const step = STEPS[event.key];
        if (step === undefined) return;
        event.preventDefault();
        const next = moved(at + step);
        if (next[0] !== edges[0] || next[1] !== edges[1]) commit(next, true);
      }}
      onPointerDown={(event) => {
        if (event.button === 0) event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        if (event.currentTarget.hasPointerCapture(event.pointerId)) move(moved(placeOf(event)));
      }}
      onPointerUp={(event) => {
        if (!event.currentTarget.hasPointerCapture(event.pointerId)) return;
        const next = moved(placeOf(event));
        move(null);
        if (next[0] !== edges[0] || next[1] !== edges[1] || at !== next[side === "left" ? 0 : 1]) commit(next, false);
      }}
      onPointerCancel={() => move(null)}
    />
  );
}
