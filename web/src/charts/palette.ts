// The colours of stop reasons, the same in every chart; expected reasons have calm colours.
import { colourOf } from "../stop-reasons";
import type { StackPart } from "./stacked-bars";

const FREE = ["series-1", "series-3", "series-6", "series-7", "series-2", "series-4"];
const MOST = 8;
export const OTHERS = "all others";

/** The reasons as parts of a stack, expected ones at the top; at most eight, the rare ones in one part. */
export function reasonParts(counts: Iterable<readonly [string, number]>): StackPart[] {
  const frequent = [...counts].sort((one, other) => other[1] - one[1] || one[0].localeCompare(other[0])).map(([name]) => name);
  const named = frequent.length > MOST ? frequent.slice(0, MOST - 1) : frequent;
  const taken = new Set(named.map(colourOf));
  const free = FREE.filter((colour) => !taken.has(colour));
  let next = 0;
  const parts = named.map((name) => ({ name, colour: colourOf(name) ?? free[next++ % Math.max(1, free.length)] ?? "series-1" }));
  const rest = frequent.length > named.length ? [{ name: OTHERS, colour: "series-5" }] : [];
  return [...parts.filter((part) => !isCalm(part)), ...rest, ...parts.filter(isCalm)];
}

/** Whether a part is an expected stop reason. */
export const isCalm = (part: StackPart): boolean => part.colour.startsWith("calm");
