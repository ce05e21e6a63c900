// Fractions of a whole as stacked bars, over iterations or as a single bar: each piece links to its rollouts.
import { useCallback, useMemo } from "react";
import { count, percent } from "../format";
import { Name } from "../parts/text";
import "./charts.css";
import { type IterationBin, IterationPlot, type Place } from "./iteration-plot";

export interface StackPart {
  name: string;
  /** A class that gives it its colour, see palette.ts. */
  colour: string;
}
interface Properties<Row extends IterationBin> {
  bins: readonly Row[];
  /** From the bottom up. */
  parts: readonly StackPart[];
  amount: (bin: Row, part: string) => number;
  whole: (bin: Row) => number;
  label: string;
  height?: number;
  chosen?: number | null;
  describe: (index: number) => string;
  to: (index: number) => string;
  /** The address of the rollouts that a piece counts. */
  pieceLink: (bin: Row, part: string) => string;
  pieceLabel: (bin: Row, part: string) => string;
  /** How many parts, from the bottom, the axis shows in full; by default all. */
  zoomedParts?: number | undefined;
}

const percentTick = (value: number): string => percent(value, 1);

export function StackedBars<Row extends IterationBin>({ bins, parts, amount, whole, pieceLink, pieceLabel, zoomedParts, ...frame }: Properties<Row>) {
  const pieces = useMemo(() => bins.map((bin) => stacked(bin, parts, amount, whole(bin))), [bins, parts, amount, whole]);
  const top = useMemo(() => highest(pieces, parts, zoomedParts), [pieces, parts, zoomedParts]);
  const domain = useMemo<[number, number]>(() => [0, top], [top]);
  const marks = useCallback(
    (place: Place) => {
      const gap = place.step >= 8 ? 1 : 0;
      return pieces.map((column, index) =>
        column.map(({ part, low, high }) => {
          if (low >= top) return null;
          const bin = bins[index];
          return bin === undefined ? null : (
            <a key={`${bin.first} ${part.name}`} href={pieceLink(bin, part.name)} tabIndex={-1} aria-label={pieceLabel(bin, part.name)}>
              <rect
                className={`chart-piece ${part.colour}`}
                x={index * place.step}
                width={Math.max(0.5, place.step - gap)}
                y={place.y(Math.min(high, top))}
                height={Math.max(0.5, place.y(low) - place.y(Math.min(high, top)))}
              />
            </a>
          );
        }),
      );
    },
    [pieces, bins, pieceLink, pieceLabel, top],
  );
  return (
    <IterationPlot bins={bins} domain={domain} tick={percentTick} ticks={3} {...frame}>
      {marks}
    </IterationPlot>
  );
}

function stacked<Row>(bin: Row, parts: readonly StackPart[], amount: (bin: Row, part: string) => number, whole: number) {
  let low = 0;
  return parts.flatMap((part) => {
    const value = whole > 0 ? amount(bin, part.name) / whole : 0;
    if (value <= 0) return [];
    const piece = { part, low, high: low + value };
    low += value;
    return [piece];
  });
}

/** The end of the axis: 1, or a little above the zoomed parts. */
function highest(pieces: readonly (readonly { part: StackPart; high: number }[])[], parts: readonly StackPart[], zoomedParts: number | undefined): number {
  if (zoomedParts === undefined) return 1;
  const seen = new Set(parts.slice(0, zoomedParts));
  const most = Math.max(0, ...pieces.flatMap((column) => column.filter(({ part }) => seen.has(part)).map(({ high }) => high)));
  return most === 0 ? 1 : Math.min(1, 1.1 * most);
}

interface BarProperties {
  parts: readonly StackPart[];
  amount: (part: string) => number;
  whole: number;
  to: (part: string) => string;
  label: string;
}

export function StackedBar({ parts, amount, whole, to, label }: BarProperties) {
  const shown = parts.filter((part) => amount(part.name) > 0);
  return (
    <div className="stack-bar" role="group" aria-label={label}>
      <div className="stack-pieces" aria-hidden="true">
        {shown.map((part) => (
          <a
            key={part.name}
            href={to(part.name)}
            tabIndex={-1}
            className={`stack-piece ${part.colour}`}
            style={{ flexGrow: amount(part.name) / Math.max(1, whole) }}
          />
        ))}
      </div>
      <ul className="legend">
        {shown.map((part) => (
          <li key={part.name}>
            <a href={to(part.name)} title={`${count(amount(part.name))} of ${count(whole)}`}>
              <span className={`legend-mark ${part.colour}`} aria-hidden="true" /> <Name text={part.name} most={60} />{" "}
              <span className="number soft">{percent(amount(part.name), whole)}</span>
            </a>
          </li>
        ))}
      </ul>
    </div>
  );
}
