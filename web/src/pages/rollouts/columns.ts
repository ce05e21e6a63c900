// The columns of the table: defaults, widths, and the first sort direction.
import { truncated } from "../../parts/text";
import type { Column, RunResponse } from "../../source/schema";

const USUAL = ["iteration", "env", "group", "index", "reward", "advantage", "stop_reason", "steps", "completion_tokens", "seconds", "tags"];
/** Where only two or three columns are seen at once, those that matter most come first. */
const USUAL_WHEN_NARROW = ["reward", "stop_reason", "iteration", "env", "group", "index", "advantage", "steps", "completion_tokens", "seconds", "tags"];

/** What the table asks for besides what it shows: a group's link and a stop's colour need them. */
export const NEEDED = ["split", "iteration", "env", "group", "index", "status"];

/** The columns that are offered as menus above the table. */
export const FACETS = ["env", "split", "stop_reason", "status", "tags", "policy"];

const WIDTHS: Record<string, number> = {
  id: 264,
  run: 264,
  session: 264,
  iteration: 88,
  index: 72,
  steps: 72,
  calls: 72,
  seat: 72,
  seconds: 92,
  split: 84,
  status: 96,
  reward: 136,
  advantage: 106,
  env: 128,
  group: 140,
  task: 140,
  stop_reason: 132,
  error_message: 320,
  seed: 188,
  tags: 124,
};
const OF_TYPE: Record<Column["type"], number> = { text: 140, number: 96, time: 160, tags: 140, boolean: 96, json: 240 };

const LONGEST_LABEL = 80;

/** The run with labels that fit a heading: keys that a model or an environment made may be of any length. */
export function labelled(run: RunResponse): RunResponse {
  const fitted = <One extends { label: string }>(one: One): One => (one.label.length > LONGEST_LABEL ? { ...one, label: `${truncated(one.label, LONGEST_LABEL)}…` } : one);
  return { ...run, columns: run.columns.map(fitted), measures: run.measures.map(fitted) };
}

export function byName(columns: readonly Column[]): Map<string, Column> {
  return new Map(columns.map((column) => [column.name, column]));
}

/** The columns to show, in order; a name that the run does not have is shown as one without values. */
export function chosen(names: readonly string[] | null, columns: ReadonlyMap<string, Column>, narrow: boolean): Column[] {
  const wanted = names ?? (narrow ? USUAL_WHEN_NARROW : USUAL).filter((name) => columns.has(name));
  return [...new Set(wanted)].map((name) => columns.get(name) ?? { name, label: truncated(name, LONGEST_LABEL), type: "text" });
}

/** Wide enough for its values, and for each word of its heading. */
export function widthOf(column: Column): number {
  const longest = Math.max(...column.label.split(" ").map((word) => word.length));
  return Math.max(WIDTHS[column.name] ?? OF_TYPE[column.type], Math.min(200, longest * 7.8 + 38));
}

export const isNumeric = (column: Column): boolean => column.type === "number";

/** Large numbers are mostly wanted first, but places in order. */
export const descendsFirst = (column: Column): boolean =>
  (column.type === "number" && !["iteration", "index", "attempt", "episode", "seat", "seed"].includes(column.name)) || column.type === "time";
