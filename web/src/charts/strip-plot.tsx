// A few numbers as dots on one axis, equal ones stacked, each a link; with the mean, and members without a number beside it.
import { scaleLinear, type ScaleLinear } from "d3-scale";
import { useMemo } from "react";
import { number } from "../format";
import { go } from "../router";
import { axisNumber } from "./ticks";
import { useWidth } from "./use-width";
import "./strip-plot.css";

interface StripDot {
  id: string;
  /** Null if there is no number, or one that no axis can show. */
  value: number | null;
  /** What it is, in words. */
  label: string;
  to: string;
}

interface StripPlotProperties {
  dots: readonly StripDot[];
  mean: number | null;
  std: number | null;
  selected: string | undefined;
  label: string;
}

const TALLEST = 6;
const AXIS = 22;
const TOP = 16;
const ASIDE = 96;

export function StripPlot({ dots, mean, std, selected, label }: StripPlotProperties) {
  const [place, width] = useWidth<HTMLDivElement>(800);
  const radius = dots.length <= 24 ? 6.5 : dots.length <= 80 ? 5 : 3.5;
  const { placed, aside, scale, height } = useMemo(() => layOut(dots, mean, width, radius), [dots, mean, width, radius]);
  const base = height - AXIS;
  const ticks = scale.ticks(Math.max(2, Math.min(8, Math.floor(width / 90))));
  const written = Math.max(...ticks.map(Math.abs)) < 1e9 ? axisNumber(ticks) : (value: number) => number(value);
  const [left, right] = scale.range() as [number, number];
  const clamped = (value: number): number => Math.max(left, Math.min(right, scale(value)));
  return (
    <div ref={place} className="strip-plot">
      <svg width={width} height={height} role="group" aria-label={label}>
        {mean !== null && std !== null && std > 0 && (
          <rect className="strip-std" x={clamped(mean - std)} width={Math.max(0, clamped(mean + std) - clamped(mean - std))} y={TOP} height={base - TOP} />
        )}
        <g aria-hidden="true">
          <line className="strip-base" x1={left - radius} x2={right + radius} y1={base} y2={base} />
          {ticks.map((value) => (
            <g key={value} transform={`translate(${scale(value)},${base})`}>
              <line className="strip-base" y2={4} />
              <text y={17} textAnchor="middle">
                {written(value)}
              </text>
            </g>
          ))}
          {aside.length > 0 && (
            <text x={width - 4} y={base + 17} textAnchor="end">
              no reward
            </text>
          )}
          {mean !== null && (
            <>
              <line className="strip-mean" x1={clamped(mean)} x2={clamped(mean)} y1={TOP - 2} y2={base} />
              <text className="strip-mean-label" x={clamped(mean)} y={10} textAnchor={clamped(mean) < 30 ? "start" : clamped(mean) > right - 30 ? "end" : "middle"}>
                mean
              </text>
            </>
          )}
        </g>
        {[...placed, ...aside].map((dot) => (
          <a
            key={dot.id}
            href={dot.to}
            className={dot.id === selected ? "strip-dot strip-selected" : "strip-dot"}
            aria-label={dot.label}
            tabIndex={dot.id === selected ? 0 : -1}
            onClick={follow}
            {...(dot.id === selected ? { "aria-current": "true" as const } : {})}
          >
            <title>{dot.label}</title>
            {dot.value === null ? <Cross x={dot.x} y={dot.y} size={radius * 0.75} /> : <circle cx={dot.x} cy={dot.y} r={radius - 1} />}
            <circle className="strip-target" cx={dot.x} cy={dot.y} r={Math.max(radius, 9)} />
          </a>
        ))}
      </svg>
    </div>
  );
}

// A link inside a drawing has no text cursor to move: the address changes, the page stays where it is.
function follow(event: React.MouseEvent<SVGAElement | HTMLAnchorElement>): void {
  if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(event.currentTarget.getAttribute("href") ?? "");
}

function Cross({ x, y, size }: { x: number; y: number; size: number }) {
  return <path className="strip-cross" d={`M${x - size} ${y - size}L${x + size} ${y + size}M${x + size} ${y - size}L${x - size} ${y + size}`} />;
}

type Placed = StripDot & { x: number; y: number };

function layOut(dots: readonly StripDot[], mean: number | null, width: number, radius: number) {
  const missing = dots.filter((dot) => dot.value === null);
  const scale = scaleOf(dots, mean, [radius + 8, width - radius - 8 - (missing.length > 0 ? ASIDE : 0)]);
  const piles = new Map<number, Placed[]>();
  for (const dot of dots) {
    if (dot.value === null) continue;
    const x = scale(dot.value);
    const bin = Math.round(x / (2 * radius));
    piles.set(bin, [...(piles.get(bin) ?? []), { ...dot, x, y: 0 }]);
  }
  const tallest = Math.max(1, ...[...piles.values(), missing].map((pile) => Math.min(TALLEST, pile.length)));
  const height = TOP + AXIS + 6 + tallest * 2 * radius;
  const base = height - AXIS;
  const placed = [...piles.values()].flatMap((pile) => piled(pile, base, radius));
  const aside = piled(missing.map((dot) => ({ ...dot, x: width - 34, y: 0 })), base, radius);
  return { placed, aside, scale, height };
}

/** A pile is at most so tall; a larger one grows to both sides. */
function piled(pile: readonly Placed[], base: number, radius: number): Placed[] {
  const columns = Math.ceil(pile.length / TALLEST);
  return pile.map((dot, place) => {
    const column = place % columns;
    return { ...dot, x: dot.x + (column - (columns - 1) / 2) * 2 * radius, y: base - radius - 2 - Math.floor(place / columns) * 2 * radius };
  });
}

function scaleOf(dots: readonly StripDot[], mean: number | null, range: [number, number]): ScaleLinear<number, number> {
  const values = [...dots.map((dot) => dot.value), mean].filter((value) => value !== null).map((value) => Math.max(-1e300, Math.min(1e300, value)));
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (values.length === 0) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - Math.max(0.5, Math.abs(low) / 2), high + Math.max(0.5, Math.abs(high) / 2)];
  return scaleLinear([low, high], range).clamp(true).nice(4);
}
