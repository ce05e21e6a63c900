// The tick labels of an axis.
import { number, short } from "../format";

/** A way to write values of one axis: all with as many digits as their distance needs. */
export function axisNumber(values: readonly number[]): (value: number) => string {
  const step = Math.abs((values[1] ?? 1) - (values[0] ?? 0)) || 1;
  const largest = Math.max(...values.map(Math.abs), 0);
  if (largest >= 10_000) return (value) => short(value).replace("-", "−");
  if (largest > 0 && largest < 1e-3) return (value) => number(value);
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  return (value) => value.toFixed(digits).replace(/^-(?=0(\.0*)?$)/, "").replace("-", "−");
}

/** The bins that get an axis label: at most this many, evenly spaced, at round iterations if possible. */
export function labelled(firsts: readonly number[], most: number): number[] {
  if (firsts.length <= most) return firsts.map((_, place) => place);
  for (const step of steps()) {
    const places = firsts.flatMap((first, place) => (first % step === 0 ? [place] : []));
    if (places.length <= most) return places.length >= 2 ? places : evenly(firsts.length, most);
  }
  return evenly(firsts.length, most);
}

function* steps(): Generator<number> {
  for (let size = 1; size < 1e12; size *= 10) yield* [size, 2 * size, 5 * size];
}

function evenly(length: number, most: number): number[] {
  const apart = Math.max(1, Math.ceil(length / most));
  return Array.from({ length: Math.ceil(length / apart) }, (_, place) => place * apart);
}

/** How a bin of iterations is named. */
export const iterationsOf = (bin: { first: number; last: number }): string =>
  bin.first === bin.last ? `Iteration ${bin.first}` : `Iterations ${bin.first}–${bin.last}`;
