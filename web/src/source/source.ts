// Where answers come from: the server, or the report that the page stands in. Pages do not know which.
import { createContext, useContext } from "react";

export type Parameters = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export interface Source {
  /** The answer to a question of the API, by its name, such as `rollouts`. */
  ask<Answer>(question: string, parameters?: Parameters): Promise<Answer>;
  /** Whether `ask` has numbers for these parameters: a server computes them, a report has those that were stored. */
  has(question: string, parameters: Parameters): boolean;
  /** Whether runs may grow while one looks. */
  readonly live: boolean;
  /** In a report, what it holds of the run; null on a server. */
  readonly selection: Selection | null;
  /** The address of a blob that may be shown as an image; null where it is not at hand. */
  image(run: string, blob: string): string | null;
}

export interface Selection {
  /** In words. */
  text: string;
  /** Whether a condition was given: the column `selected` then says which rollouts fulfil it. */
  marks: boolean;
}

/** A question that was refused or failed, in the server's own words. */
export class AnswerError extends Error {
  constructor(
    readonly type: string,
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** What names a group or a run is said even where it is empty. */
const NAMES = new Set(["split", "env", "group"]);

export function searchOf(parameters: Parameters): URLSearchParams {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === false) continue;
    if (value === "" && !NAMES.has(name)) continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, one === true ? "1" : String(one));
  }
  return search;
}

export const SourceContext = createContext<Source | null>(null);

export function useSource(): Source {
  const source = useContext(SourceContext);
  if (source === null) throw new Error("useSource needs a SourceContext above it");
  return source;
}
