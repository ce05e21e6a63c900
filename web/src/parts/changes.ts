// What changed between two values: the paths that were added, removed or given another value.
import type { Json } from "../source/schema";

export interface Change {
  path: (string | number)[];
  kind: "added" | "removed" | "changed";
  before: Json;
  after: Json;
}

/** The changes, depth first, at most so many. */
export function changesBetween(before: Json, after: Json, most = 200): Change[] {
  const found: Change[] = [];
  compare(before, after, [], found, most);
  return found;
}

function compare(before: Json, after: Json, path: (string | number)[], found: Change[], most: number): void {
  if (found.length >= most || before === after) return;
  if (Array.isArray(before) && Array.isArray(after)) {
    for (let place = 0; place < Math.max(before.length, after.length); place += 1) member(before, after, place, path, found, most);
  } else if (isMap(before) && isMap(after)) {
    for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) member(before, after, name, path, found, most);
  } else found.push({ path, kind: "changed", before, after });
}

function member(before: Json[] | Fields, after: Json[] | Fields, name: string | number, path: (string | number)[], found: Change[], most: number): void {
  if (found.length >= most) return;
  const inner = [...path, name];
  const was = at(before, name);
  const is = at(after, name);
  if (was === undefined && is !== undefined) found.push({ path: inner, kind: "added", before: null, after: is });
  else if (was !== undefined && is === undefined) found.push({ path: inner, kind: "removed", before: was, after: null });
  else if (was !== undefined && is !== undefined) compare(was, is, inner, found, most);
}

type Fields = { [key: string]: Json };

function at(value: Json[] | Fields, name: string | number): Json | undefined {
  return Array.isArray(value) ? value[Number(name)] : Object.hasOwn(value, name) ? value[name] : undefined;
}

function isMap(value: Json): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A path as one would write it: `board[3].owner`. */
export function pathText(path: readonly (string | number)[]): string {
  return path.map((part, place) => (typeof part === "number" ? `[${part}]` : /^[\w-]+$/.test(part) ? `${place > 0 ? "." : ""}${part}` : `[${JSON.stringify(part)}]`)).join("");
}
