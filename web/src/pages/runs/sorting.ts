// The order of the list of runs, from the address.
import { finite } from "../../format";
import type { RunListEntry } from "../../source/schema";

export interface Order {
  column: string;
  down: boolean;
}

const VALUES: Record<string, (run: RunListEntry) => number | string | null> = {
  name: (run) => run.key,
  state: (run) => (run.live ? "0" : run.problem === null ? run.state : "z"),
  progress: (run) => run.rollouts ?? run.recorded,
  reward: (run) => finite(run.mean_reward),
  errors: (run) => run.errors,
  env: (run) => run.envs?.join(", ") ?? null,
  policy: (run) => run.policies?.join(", ") ?? null,
  written: (run) => run.written_at ?? run.created_at,
  size: (run) => run.bytes,
};

const NEWEST: Order = { column: "written", down: true };

export function orderOf(text: string | null): Order {
  const column = text?.replace(/^-/, "") ?? "";
  return text !== null && Object.hasOwn(VALUES, column) ? { column, down: text.startsWith("-") } : NEWEST;
}

/** The order in the address; the default, newest first, is omitted. */
export function written(order: Order): string | null {
  return order.column === NEWEST.column && order.down ? null : `${order.down ? "-" : ""}${order.column}`;
}

/** Unknown values come last in both directions. */
export function sorted(runs: readonly RunListEntry[], order: Order): RunListEntry[] {
  const value = VALUES[order.column] ?? (() => null);
  return [...runs].sort((one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1;
    const compared = typeof left === "string" ? left.localeCompare(String(right), "en", { numeric: true }) : left - Number(right);
    return order.down ? -compared : compared;
  });
}

/** The runs whose path, environments or policies hold every word. */
export function matching(runs: readonly RunListEntry[], words: string): RunListEntry[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const text = [run.key, ...(run.envs ?? []), ...(run.policies ?? [])].join(" ").toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}
