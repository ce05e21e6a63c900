// What a series comes to in a word: its mean, and its mean at the beginning and at the end.
import { finite } from "../../format";
import type { OutcomesBin, SeriesBin } from "../../source/schema";

export interface Trend {
  mean: number | null;
  n: number;
  first: number | null;
  last: number | null;
  /** Per bin, for a small line. */
  line: (number | null)[];
}

export function trendOf(bins: readonly SeriesBin[]): Trend {
  const ends = Math.max(1, Math.round(bins.length / 10));
  return {
    mean: mean(bins),
    n: bins.reduce((sum, bin) => sum + bin.n, 0),
    first: mean(bins.slice(0, ends)),
    last: mean(bins.slice(-ends)),
    line: bins.map((bin) => finite(bin.mean)),
  };
}

/** The mean of all values in some bins, which may hold different numbers of them. */
function mean(bins: readonly SeriesBin[]): number | null {
  const known = bins.filter((bin) => finite(bin.mean) !== null && bin.n > 0);
  const n = known.reduce((sum, bin) => sum + bin.n, 0);
  return n === 0 ? null : finite(Number(known.reduce((sum, bin) => sum + (finite(bin.mean) ?? 0) * (bin.n / n), 0).toPrecision(12)));
}

export interface ShareTrend {
  part: number;
  whole: number;
  line: (number | null)[];
}

export function shareOf(bins: readonly OutcomesBin[], part: (bin: OutcomesBin) => number, whole: (bin: OutcomesBin) => number): ShareTrend {
  const sum = (of: (bin: OutcomesBin) => number) => bins.reduce((total, bin) => total + of(bin), 0);
  return { part: sum(part), whole: sum(whole), line: bins.map((bin) => (whole(bin) > 0 ? part(bin) / whole(bin) : null)) };
}
