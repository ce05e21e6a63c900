// Filters and sorts the table of rollouts in a report as the server does it.
import { type Filter, readFilter } from "../../filters";
import { decodeNames } from "../../column-names";
import { AnswerError, type Parameters, searchOf } from "../source";
import type { Column, Json, RolloutRow } from "../schema";

export type Row = RolloutRow;

/** The rows of a table that is stored by column. */
export function rowsOf(columns: Record<string, Json[]>): Row[] {
  const names = Object.keys(columns);
  const count = columns.id?.length ?? 0;
  return Array.from({ length: count }, (_, index) => Object.fromEntries(names.map((name) => [name, columns[name]?.[index] ?? null])) as Row);
}

/** The rows that pass every filter; retried attempts only if requested. */
export function filterRows(rows: readonly Row[], parameters: Parameters, columns: readonly Column[]): Row[] {
  const types = new Map(columns.map((column) => [column.name, column.type]));
  const filters = [parameters.filter ?? []].flat().filter(Boolean).map(parseFilter);
  const withRetried = searchOf({ retried: parameters.retried }).get("retried") === "1";
  return rows.filter(
    (row) => (withRetried || row.retried !== true) && filters.every((filter) => passes(row[filter.column] ?? null, filter, types.get(filter.column) ?? "text")),
  );
}

function parseFilter(text: string | number | boolean): Filter {
  const filter = readFilter(String(text));
  if (filter === null) throw new AnswerError("InputError", `Expected a filter written as COLUMN:OPERATION:VALUE, got ${text}.`, 400);
  return filter;
}

function passes(value: Json, { operation, value: wanted }: Filter, type: Column["type"]): boolean {
  if (operation === "null") return value === null;
  if (operation === "notnull") return value !== null;
  if (operation === "not") return !equals(value, wanted, type);
  if (value === null) return false;
  switch (operation) {
    case "is":
      return equals(value, wanted, type);
    case "has":
      return Array.isArray(value) ? value.includes(wanted) : textOf(value).toLowerCase().includes(wanted.toLowerCase());
    case "min":
      return value !== "NaN" && ordered(value, type) >= ordered(wanted, type);
    case "max":
      return value !== "NaN" && ordered(value, type) <= ordered(wanted, type);
    case "below":
      return value !== "NaN" && ordered(value, type) < ordered(wanted, type);
  }
}

function equals(value: Json, wanted: string, type: Column["type"]): boolean {
  if (value === null) return false;
  if (type === "tags") return Array.isArray(value) && value.includes(wanted);
  if (type === "boolean") return value === (wanted === "true" || wanted === "1");
  if (type === "number") return value === "NaN" || wanted === "NaN" ? value === wanted : rank(value, type) === rank(wanted, type);
  if (type === "time") return rank(value, type) === rank(wanted, type);
  return textOf(value) === wanted;
}

function textOf(value: Json): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function ordered(value: Json, type: Column["type"]): number | string {
  return type === "number" || type === "time" ? rank(value, type) : textOf(value);
}

/** A number by which values of a column are compared. */
function rank(value: Json, type: Column["type"]): number {
  return type === "time" ? microseconds(textOf(value)) : Number(value);
}

/** Times have microseconds; a `Date` has only milliseconds. */
function microseconds(text: string): number {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? "";
  return Date.parse(text.replace(/\.\d+/, "")) * 1000 + Number(fraction.slice(0, 6).padEnd(6, "0"));
}

interface Key {
  column: string;
  descending: boolean;
}

const DEFAULT: Key[] = [
  { column: "iteration", descending: true },
  { column: "env", descending: false },
  { column: "group", descending: false },
  { column: "index", descending: false },
];

/** The rows in an order such as `-reward,iteration`, then by iteration and group; missing values come last, NaN just before them. */
export function sortRows(rows: readonly Row[], sort: string, columns: readonly Column[]): Row[] {
  const types = new Map(columns.map((column) => [column.name, column.type]));
  const given = decodeNames(sort).map((key) => ({ column: key.replace(/^-/, ""), descending: key.startsWith("-") }));
  const rest = DEFAULT.filter((key) => given.every((one) => one.column !== key.column)).map((key) => ({ ...key, descending: false }));
  const keys = given.length > 0 ? [...given, ...rest] : DEFAULT;
  return [...rows].sort((one, other) => {
    for (const { column, descending } of keys) {
      const order = compare(one[column] ?? null, other[column] ?? null, column === "group" ? "group" : (types.get(column) ?? "text"), descending);
      if (order !== 0) return order;
    }
    return one.id < other.id ? -1 : 1;
  });
}

function compare(one: Json, other: Json, type: Column["type"] | "group", descending: boolean): number {
  const sign = descending ? -1 : 1;
  if (one === null || other === null) return Number(one === null) - Number(other === null);
  if (type === "group") return compareGroups(textOf(one), textOf(other), sign);
  if (type === "number" && (one === "NaN" || other === "NaN")) return Number(one === "NaN") - Number(other === "NaN");
  if (type === "number" || type === "time" || type === "boolean") {
    const [left, right] = [rank(one, type), rank(other, type)];
    return left === right ? 0 : sign * (left < right ? -1 : 1);
  }
  if (Array.isArray(one) && Array.isArray(other)) return sign * compareLists(one.map(textOf), other.map(textOf));
  return sign * inOrder(textOf(one), textOf(other));
}

function compareLists(one: readonly string[], other: readonly string[]): number {
  const place = one.findIndex((value, at) => value !== other[at]);
  if (place < 0) return one.length - other.length;
  const [left, right] = [one[place], other[place]];
  return left === undefined || right === undefined ? 1 : inOrder(left, right);
}

/** Groups whose names are integers come first, in numeric order. */
function compareGroups(one: string, other: string, sign: number): number {
  const [left, right] = [wholeNumber(one), wholeNumber(other)];
  if (left === null || right === null) return left === right ? sign * inOrder(one, other) : Number(left === null) - Number(right === null);
  return sign * (left - right || inOrder(one, other));
}

function wholeNumber(text: string): number | null {
  return /^[+-]?[0-9]{1,15}$/.test(text) ? Number(text) : null;
}

/** Order by code points, as in the server's SQL. */
function inOrder(one: string, other: string): number {
  if (one === other) return 0;
  const [left, right] = [[...one], [...other]];
  const place = left.findIndex((character, at) => character !== right[at]);
  if (place < 0) return -1;
  return (left[place]?.codePointAt(0) ?? 0) < (right[place]?.codePointAt(0) ?? -1) ? -1 : 1;
}
