// The source of answers: a server, or the report that holds the page.
import { createContext, useContext } from "react";

export type Parameters = Record<string, string | number | boolean | readonly string[] | null | undefined>;

export interface Source {
  /** The answer to a question of the API, by its name, such as `rollouts`. */
  ask<Answer>(question: string, parameters?: Parameters): Promise<Answer>;
  /** Whether `ask` has numbers for these parameters: a server computes them, a report has those that were stored. */
  has(question: string, parameters: Parameters): boolean;
  /** Whether the answers come from a server, whose runs may grow. */
  readonly live: boolean;
  /** What a report holds of the run; null on a server. */
  readonly selection: Selection | null;
  /** The URL of a blob that may be shown as an image; null if it is not available. */
  image(run: string, blob: string): string | null;
}

export interface Selection {
  /** In words. */
  text: string;
  /** Whether the report was made with a condition: the column `selected` then marks the rollouts that fulfil it. */
  marks: boolean;
}

/** A request that was refused or failed, with the server's message. */
export class AnswerError extends Error {
  constructor(
    readonly type: string,
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** Parameters that are sent even if they are empty: an empty name is a name, and a search since the empty id is complete. */
const NAMES = new Set(["split", "env", "group", "since"]);

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
