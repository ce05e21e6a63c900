// The addresses of all views, in one place.
import { spelt } from "./names";
import { address } from "./router";
import type { Parameters } from "./source/source";
import type { GroupKey } from "./source/types";

export const toRuns = (): string => address([]);
export const toRun = (run: string, parameters: Parameters = {}): string => address(["run", run], parameters);
/** Parameters: filter (repeated COLUMN:OP:VALUE), search, where, sort, columns, retried. */
export const toRollouts = (run: string, parameters: Parameters | URLSearchParams = {}): string => address(["run", run, "rollouts"], parameters);
export const toSql = (run: string, parameters: Parameters = {}): string => address(["run", run, "sql"], parameters);
export const toGroup = (run: string, key: GroupKey): string =>
  address(["run", run, "group"], { split: key.split, iteration: key.iteration, env: key.env, group: key.group });
/** `listing` are the parameters of the listing it was opened from: previous and next walk through that. */
export const toRollout = (run: string, id: string, parameters: Parameters | URLSearchParams = {}): string => address(["run", run, "rollout", id], parameters);

/** Filters as the API takes them. */
export const filter = (column: string, operation: "is" | "not" | "min" | "max" | "below" | "has" | "null" | "notnull", value: string | number = ""): string =>
  `${spelt(column)}:${operation}:${value}`;
