// How a measure is distributed: each bar is a link to the rollouts in it.
import { scaleLinear } from "d3-scale";
import { useRef, useState, type KeyboardEvent } from "react";
import { number, plural, percent, short } from "../format";
import { HorizontalAxis } from "./axis";
import "./charts.css";
import { axisNumber } from "./ticks";
import { useWidth } from "./use-width";

interface HistogramBin {
  low: number;
  high: number;
  n: number;
}
interface Properties {
  bins: readonly HistogramBin[];
  label: string;
  /** The address of the rollouts in a bin; the last bin holds its upper end. */
  to: (bin: HistogramBin, last: boolean) => string;
  height?: number;
  /** The ends of the axis, where they are to be the same for several. */
  domain?: readonly [number, number] | undefined;
  /** What is read where no bar is pointed at. */
  children?: React.ReactNode;
}

const SIDE = 2;
const FOOT = 22;

export function Histogram({ bins, label, to, height = 150, domain, children }: Properties) {
  const [holder, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const bars = useRef<SVGGElement>(null);
  const total = bins.reduce((sum, bin) => sum + bin.n, 0);
  const pointed = at === null ? undefined : bins[at];
  return (
    <div className="chart">
      <p className="chart-readout small">
        {pointed === undefined ? children : <Within bin={pointed} last={at === bins.length - 1} total={total} />}
      </p>
      <div ref={holder} style={{ height }}>
        {width > 0 && (
          <svg width={width} height={height} role="group" aria-label={label}>
            <g ref={bars} transform={`translate(${SIDE},0)`} onKeyDown={walk} onPointerLeave={() => setAt(null)}>
              <Bars {...{ bins, to, at, setAt, total }} width={width - 2 * SIDE} height={height - FOOT} domain={domain ?? ends(bins)} />
            </g>
          </svg>
        )}
      </div>
    </div>
  );
}

function Within({ bin, last, total }: { bin: HistogramBin; last: boolean; total: number }) {
  const where = bin.low === bin.high ? number(bin.low) : `${number(bin.low)} to ${last ? "" : "below "}${number(bin.high)}`;
  return (
    <>
      <b>{where}</b> {plural(bin.n, "rollout")}, {percent(bin.n, total)}
    </>
  );
}

interface BarsProperties extends Pick<Properties, "bins" | "to"> {
  width: number;
  height: number;
  domain: readonly [number, number];
  total: number;
  at: number | null;
  setAt: (at: number | null) => void;
}

function Bars({ bins, to, width, height, domain, total, at, setAt }: BarsProperties) {
  const [low, high] = domain[0] === domain[1] ? [domain[0] - 1, domain[1] + 1] : domain;
  const x = scaleLinear([low, high], [0, width]);
  const most = Math.max(1, ...bins.map((bin) => bin.n));
  const y = scaleLinear([0, most], [height, 16]);
  const ticks = x.ticks(Math.max(2, Math.min(10, Math.floor(width / 60))));
  const written = axisNumber(ticks);
  const first = bins.findIndex((bin) => bin.n > 0);
  const few = bins.filter((bin) => bin.n > 0).length <= 8;
  return (
    <>
      <HorizontalAxis labels={ticks.map((value) => ({ at: x(value), text: written(value) }))} width={width} y={height} />
      {low < 0 && high > 0 && <line className="chart-zero" x1={x(0)} x2={x(0)} y2={height} />}
      {bins.map((bin, index) => {
        if (bin.n === 0) return null;
        const last = index === bins.length - 1;
        const wide = Math.max(bin.low === bin.high ? 10 : 2, x(bin.high) - x(bin.low) - 1);
        const left = bin.low === bin.high ? x(bin.low) - wide / 2 : x(bin.low) + 0.5;
        const top = Math.min(y(bin.n), height - 2);
        return (
          <a
            key={bin.low}
            href={to(bin, last)}
            tabIndex={index === (at ?? first) ? 0 : -1}
            aria-label={`${number(bin.low)} to ${number(bin.high)}: ${plural(bin.n, "rollout")}, ${percent(bin.n, total)}`}
            onPointerEnter={() => setAt(index)}
            onFocus={() => setAt(index)}
            onBlur={() => setAt(null)}
          >
            <rect className="chart-hit" x={left} width={wide} height={height} />
            <rect className="chart-bar" x={left} y={top} width={wide} height={height - top} rx={Math.min(2, wide / 3)} />
            {(few || wide > 30) && (
              <text className="chart-count" x={left + wide / 2} y={top - 4} textAnchor="middle" aria-hidden="true">
                {short(bin.n)}
              </text>
            )}
          </a>
        );
      })}
    </>
  );
}

const ends = (bins: readonly HistogramBin[]): [number, number] => [bins[0]?.low ?? 0, bins[bins.length - 1]?.high ?? 1];

/** Arrow keys move from bar to bar. */
function walk(event: KeyboardEvent<SVGGElement>): void {
  const links = [...event.currentTarget.querySelectorAll<SVGAElement>("a")];
  const here = links.findIndex((link) => link === document.activeElement);
  const moves: Record<string, number> = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: links.length - 1 };
  const next = moves[event.key];
  if (next === undefined) return;
  event.preventDefault();
  links[Math.max(0, Math.min(links.length - 1, next))]?.focus();
}
