// Bins whose edges are round, the same as rolltrace.query.histogram makes them.
import { bisectRight } from "d3-array";
import type { Bin } from "../schema";

const ROUND = [1, 2, 2.5, 5];

/** The edges of at most so many bins around sorted values; only the value where all are the same, none of no values. */
export function edgesOf(values: readonly number[], most: number): number[] {
  const low = values[0];
  const high = values.at(-1);
  if (low === undefined || high === undefined) return [];
  if (low === high) return [low];
  const width = high / most - low / most;
  if (width > 0) {
    const exponent = Math.floor(Math.log10(width)) - 1;
    for (let power = exponent; power < exponent + 4; power += 1)
      for (const factor of ROUND) {
        const edges = multiples(low, high, factor, power, most);
        if (edges !== null) return edges;
      }
  }
  return [low, high];
}

export function inBins(values: readonly number[], edges: readonly number[]): Bin[] {
  if (edges.length === 0) return [];
  const counts = new Array<number>(Math.max(1, edges.length - 1)).fill(0);
  for (const value of values) {
    const place = edges.length < 3 ? 0 : bisectRight(edges, value, 1, edges.length - 1) - 1;
    counts[place] = (counts[place] ?? 0) + 1;
  }
  return counts.map((n, place) => ({ low: edges[place] ?? 0, high: edges[place + 1] ?? edges[place] ?? 0, n }));
}

function multiples(low: number, high: number, factor: number, power: number, most: number): number[] | null {
  const width = factor * 10 ** power;
  const first = Math.floor(low / width);
  const last = Math.ceil(high / width);
  if (!(last - first <= most)) return null;
  const edges = Array.from({ length: last - first + 1 }, (_, place) => rounded((first + place) * width, 1 - power));
  const fits = (edges[0] ?? Infinity) <= low && high <= (edges.at(-1) ?? -Infinity) && edges.every((edge, place) => place === 0 || (edges[place - 1] ?? edge) < edge);
  return fits ? edges : null;
}

/** So that it is 0.3 and not 0.30000000000000004. */
function rounded(value: number, digits: number): number {
  if (digits > 100) return value;
  if (digits >= 0) return Number(value.toFixed(digits)) + 0;
  return Math.round(value / 10 ** -digits) * 10 ** -digits + 0;
}
