// The tokens of a step's response with their text and probability.
import { finite } from "../../format";
import { codeUnitsAfter } from "../../parts/text";
import type { Rollout, Step } from "../../source/schema";
import { responseOf } from "./transcript-events";

export interface TokenPiece {
  place: number;
  id: number;
  /** The text that it gave; null where that is not known. */
  text: string | null;
  logprob: number | null;
}

/** Replaces the log-probability of a token with probability 0, which is not finite. */
const NEVER = -1e9;

export function tokenPieces(rollout: Rollout, step: Step): TokenPiece[] {
  const { tokens } = step;
  if (tokens === null) return [];
  const lengths = tokens.char_lengths ?? null;
  const text = step.raw ?? responseOf(rollout, step)?.content ?? "";
  const texts = lengths !== null && lengths.length === tokens.response.length ? sliced(text, lengths) : null;
  return tokens.response.map((id, place) => {
    const logprob = tokens.logprobs?.[place];
    return { place, id, text: texts?.[place] ?? null, logprob: logprob === "-Infinity" ? NEVER : finite(logprob) };
  });
}

/** The pieces of a text, by how many characters each has. */
function sliced(text: string, lengths: readonly number[]): string[] {
  let from = 0;
  return lengths.map((length) => {
    const to = codeUnitsAfter(text, length, from);
    const piece = text.slice(from, to);
    from = to;
    return piece;
  });
}

interface TokenFigures {
  known: number;
  mean: number | null;
  perplexity: number | null;
  least: TokenPiece[];
}

export function tokenStats(pieces: readonly TokenPiece[]): TokenFigures {
  const known = pieces.filter((piece) => piece.logprob !== null);
  const mean = known.length === 0 ? null : known.reduce((sum, piece) => sum + (piece.logprob ?? 0), 0) / known.length;
  const least = known.toSorted((one, other) => (one.logprob ?? 0) - (other.logprob ?? 0)).slice(0, 10);
  return { known: known.length, mean, perplexity: mean === null ? null : Math.exp(-mean), least };
}

/** From 0, certain, to 5, a surprise; null where it is not known. */
export function surprise(logprob: number | null): number | null {
  if (logprob === null) return null;
  const bounds = [0.9, 0.5, 0.2, 0.05, 0.01];
  const found = bounds.findIndex((bound) => Math.exp(logprob) >= bound);
  return found < 0 ? bounds.length : found;
}

export function chance(logprob: number | null): string {
  if (logprob === null) return "not known";
  const percent = 100 * Math.exp(logprob);
  if (percent >= 0.0001) return `${percent >= 1 ? percent.toFixed(percent >= 99.95 || percent < 10 ? 2 : 1) : Number(percent.toPrecision(2))} %`;
  return percent > 0 ? `${percent.toExponential(1)} %` : "0 %";
}
