// The rows of an answer as text to copy.
import type { Json, SqlResponse } from "../../source/schema";

/** As RFC 4180 has it; null is an empty field, and text that is empty is quoted. */
export function asCsv({ columns, rows }: SqlResponse): string {
  return [columns.map((column) => field(column.name)), ...rows.map((row) => row.map(field))].map((line) => `${line.join(",")}\r\n`).join("");
}

/** One object a row. Where columns share a name, each row is a list. */
export function asJson({ columns, rows }: SqlResponse): string {
  const names = columns.map((column) => column.name);
  if (new Set(names).size < names.length) return JSON.stringify(rows, null, 2);
  return JSON.stringify(
    rows.map((row) => Object.fromEntries(names.map((name, place) => [name, row[place] ?? null]))),
    null,
    2,
  );
}

function field(value: Json): string {
  if (value === null) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
