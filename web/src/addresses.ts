// The addresses of all views, in one place.
import { writeFilter, type Operation } from "./filters";
import { address } from "./router";
import type { Parameters } from "./source/source";
import type { GroupKey } from "./source/schema";

export const toRuns = (): string => address([]);
export const toRun = (run: string, parameters: Parameters = {}): string => address(["run", run], parameters);
/** Parameters: filter (repeated COLUMN:OP:VALUE), search, where, sort, columns, retried. */
export const toRollouts = (run: string, parameters: Parameters | URLSearchParams = {}): string => address(["run", run, "rollouts"], parameters);
export const toSql = (run: string, parameters: Parameters = {}): string => address(["run", run, "sql"], parameters);
export const toGroup = (run: string, key: GroupKey): string =>
  address(["run", run, "group"], { split: key.split, iteration: key.iteration, env: key.env, group: key.group });
/** `listing` are the parameters of the listing it was opened from: previous and next walk through that. */
export const toRollout = (run: string, id: string, parameters: Parameters | URLSearchParams = {}): string => address(["run", run, "rollout", id], parameters);

/** A filter as the API takes it. */
export const filter = (column: string, operation: Operation, value: string | number = ""): string => writeFilter({ column, operation, value: String(value) });

/** The filters for the rollouts of a group. */
export const filtersOf = ({ split, iteration, env, group }: GroupKey): string[] => [
  filter("split", "is", split),
  filter("iteration", "is", iteration),
  filter("env", "is", env),
  filter("group", "is", group),
];
