// Combines filters on columns, and describes them in words.
import type { Filter, Operation } from "../../filters";
import { number, time } from "../../format";
import type { Column } from "../../source/schema";

/** Some filters on one column that are shown and removed together. */
interface Condition {
  filters: readonly Filter[];
  words: string;
}

const RANGE = new Set<Operation>(["min", "max", "below"]);

/** All filters, with those on one column exchanged for others. */
export function exchanged(filters: readonly Filter[], column: string, others: readonly Omit<Filter, "column">[]): Filter[] {
  return [...filters.filter((one) => one.column !== column), ...others.map((one) => ({ ...one, column }))];
}

/** The bounds of a range; those of a column without one are null. */
export function boundsOf(filters: readonly Filter[], column: string): { min: string | null; max: string | null; inclusive: boolean } {
  const own = filters.filter((one) => one.column === column);
  const upper = own.find((one) => one.operation === "max" || one.operation === "below");
  return { min: own.find((one) => one.operation === "min")?.value ?? null, max: upper?.value ?? null, inclusive: upper?.operation !== "below" };
}

/** The conditions, one for each chip. */
export function conditionsOf(filters: readonly Filter[], columns: ReadonlyMap<string, Column>): Condition[] {
  const conditions: Condition[] = [];
  const ranges = new Map<string, Filter[]>();
  for (const one of filters) {
    const range = ranges.get(one.column);
    if (!RANGE.has(one.operation)) conditions.push({ filters: [one], words: inWords(one, columns.get(one.column)) });
    else if (range !== undefined) range.push(one);
    else {
      const members = [one];
      ranges.set(one.column, members);
      conditions.push({ filters: members, words: "" });
    }
  }
  return conditions.map((one) => (one.words === "" ? { ...one, words: rangeInWords(one.filters, columns) } : one));
}

export function capital(label: string): string {
  return label.charAt(0).toUpperCase() + label.slice(1);
}

function rangeInWords(filters: readonly Filter[], columns: ReadonlyMap<string, Column>): string {
  const [first] = filters;
  if (first === undefined) return "";
  const column = columns.get(first.column);
  const min = filters.find((one) => one.operation === "min");
  const max = filters.find((one) => one.operation !== "min");
  if (filters.length !== 2 || min === undefined || max === undefined) return filters.map((one) => inWords(one, column)).join(", ");
  return `${nameOf(first, column)} from ${shown(min, column)} to ${max.operation === "below" ? "below " : ""}${shown(max, column)}`;
}

function inWords(one: Filter, column: Column | undefined): string {
  const name = nameOf(one, column);
  const value = shown(one, column);
  switch (one.operation) {
    case "is":
      return column?.type === "boolean" ? `${name}: ${isTrue(one.value) ? "yes" : "no"}` : `${name} is ${value}`;
    case "not":
      return column?.type === "tags" ? `${name} without ${value}` : `${name} is not ${value}`;
    case "min":
      return column?.type === "time" ? `${name} from ${value} on` : `${name} at least ${value}`;
    case "max":
      return column?.type === "time" ? `${name} until ${value}` : `${name} at most ${value}`;
    case "below":
      return column?.type === "time" ? `${name} before ${value}` : `${name} below ${value}`;
    case "has":
      return column?.type === "tags" ? `${name} with ${value}` : `${name} contains “${value}”`;
    case "null":
      return `${name} is missing`;
    case "notnull":
      return `${name} is there`;
  }
}

export const isTrue = (value: string): boolean => value === "true" || value === "1";

const nameOf = (one: Filter, column: Column | undefined): string => capital(column?.label ?? one.column);

function shown({ value }: Filter, column: Column | undefined): string {
  if (column?.type === "number" && value.trim() !== "" && Number.isFinite(Number(value))) return number(Number(value));
  if (column?.type === "time") return time(value);
  return value === "" ? "empty" : value;
}
