// A condition on a column, as addresses and questions spell it: COLUMN:OPERATION:VALUE.
import { read, spelt } from "./names";

/** `min` and `max` include their value, `below` does not; `has` is a tag, or text within. */
export type Operation = "is" | "not" | "min" | "max" | "below" | "has" | "null" | "notnull";

export interface Filter {
  column: string;
  operation: Operation;
  value: string;
}

const SHAPE = /^([^:]*):(is|not|min|max|below|has|null|notnull):/;

/** The condition that the text says; null where it is none. */
export function readFilter(text: string): Filter | null {
  const found = SHAPE.exec(text);
  return found === null ? null : { column: read(found[1] ?? ""), operation: found[2] as Operation, value: text.slice(found[0].length) };
}

export const writeFilter = ({ column, operation, value }: Filter): string => `${spelt(column)}:${operation}:${value}`;
