// Shares of a whole over iterations, as stacked bars: each piece is a link to what it stands for.
import { useCallback, useMemo } from "react";
import { share } from "../format";
import { IterationPlot, type IterationBin, type Place } from "./iteration-plot";

export interface Share {
  name: string;
  /** A class that gives it its colour, see palette.ts. */
  colour: string;
}
interface Properties<Row extends IterationBin> {
  bins: readonly Row[];
  /** From the bottom up. */
  parts: readonly Share[];
  amount: (bin: Row, part: string) => number;
  whole: (bin: Row) => number;
  label: string;
  height?: number;
  chosen?: number | null;
  told: (index: number) => string;
  to: (index: number) => string;
  /** The address of what a piece stands for. */
  behind: (bin: Row, part: string) => string;
  does: (bin: Row, part: string) => string;
  /** How many of the parts, from the bottom, are to be seen well; the rest is cut off at the top. By default all are seen whole. */
  closely?: number | undefined;
}

const percent = (value: number): string => share(value, 1);

export function Shares<Row extends IterationBin>({ bins, parts, amount, whole, behind, does, closely, ...frame }: Properties<Row>) {
  const pieces = useMemo(() => bins.map((bin) => stacked(bin, parts, amount, whole(bin))), [bins, parts, amount, whole]);
  const top = useMemo(() => highest(pieces, parts, closely), [pieces, parts, closely]);
  const domain = useMemo<[number, number]>(() => [0, top], [top]);
  const marks = useCallback(
    (place: Place) => {
      const gap = place.step >= 8 ? 1 : 0;
      return pieces.map((column, index) =>
        column.map(({ part, low, high }) => {
          if (low >= top) return null;
          const bin = bins[index];
          return bin === undefined ? null : (
            <a key={`${bin.first} ${part.name}`} href={behind(bin, part.name)} tabIndex={-1} aria-label={does(bin, part.name)}>
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
    [pieces, bins, behind, does, top],
  );
  return (
    <IterationPlot bins={bins} domain={domain} tick={percent} ticks={3} {...frame}>
      {marks}
    </IterationPlot>
  );
}

function stacked<Row>(bin: Row, parts: readonly Share[], amount: (bin: Row, part: string) => number, whole: number) {
  let low = 0;
  return parts.flatMap((part) => {
    const value = whole > 0 ? amount(bin, part.name) / whole : 0;
    if (value <= 0) return [];
    const piece = { part, low, high: low + value };
    low += value;
    return [piece];
  });
}

/** Where the axis ends: at the whole, or a little above the parts that are looked at closely. */
function highest(pieces: readonly (readonly { part: Share; high: number }[])[], parts: readonly Share[], closely: number | undefined): number {
  if (closely === undefined) return 1;
  const seen = new Set(parts.slice(0, closely));
  const most = Math.max(0, ...pieces.flatMap((column) => column.filter(({ part }) => seen.has(part)).map(({ high }) => high)));
  return most === 0 ? 1 : Math.min(1, 1.1 * most);
}
