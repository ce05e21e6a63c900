// Which colour a stop reason has: the same in every chart, calm for what is as it should be.
import { colourOf } from "../stop-reasons";
import type { Share } from "./shares";

const FREE = ["series-1", "series-3", "series-6", "series-7", "series-2", "series-4"];
const MOST = 8;
export const OTHERS = "all others";

/** The reasons as parts of a stack, what is as it should be at the top, at most eight parts; the rare ones are one. */
export function reasonParts(counts: Iterable<readonly [string, number]>): Share[] {
  const frequent = [...counts].sort((one, other) => other[1] - one[1] || one[0].localeCompare(other[0])).map(([name]) => name);
  const named = frequent.length > MOST ? frequent.slice(0, MOST - 1) : frequent;
  const taken = new Set(named.map(colourOf));
  const free = FREE.filter((colour) => !taken.has(colour));
  let next = 0;
  const parts = named.map((name) => ({ name, colour: colourOf(name) ?? free[next++ % Math.max(1, free.length)] ?? "series-1" }));
  const rest = frequent.length > named.length ? [{ name: OTHERS, colour: "series-5" }] : [];
  return [...parts.filter((part) => !isCalm(part)), ...rest, ...parts.filter(isCalm)];
}

/** Whether a part is as it should be. */
export const isCalm = (part: Share): boolean => part.colour.startsWith("calm");
