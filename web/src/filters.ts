// A filter on a column, written as COLUMN:OPERATION:VALUE in addresses and requests.
import { decodeName, encodeName } from "./column-names";

/** `min` and `max` include their value, `below` does not; `has` is a tag, or text within. */
export type Operation = "is" | "not" | "min" | "max" | "below" | "has" | "null" | "notnull";

export interface Filter {
  column: string;
  operation: Operation;
  value: string;
}

const SHAPE = /^([^:]*):(is|not|min|max|below|has|null|notnull):/;

/** The parsed filter; null if the text is not a filter. */
export function readFilter(text: string): Filter | null {
  const found = SHAPE.exec(text);
  return found === null ? null : { column: decodeName(found[1] ?? ""), operation: found[2] as Operation, value: text.slice(found[0].length) };
}

export const writeFilter = ({ column, operation, value }: Filter): string => `${encodeName(column)}:${operation}:${value}`;
