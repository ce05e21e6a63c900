// A reward or advantage, coloured by its sign.
import { number, signed } from "../format";
import type { Float } from "../source/schema";

export function Reward({ value, digits }: { value: Float | null; digits?: number }) {
  return <span className={`number mono ${tone(value)}`}>{number(value, digits)}</span>;
}

export function Advantage({ value }: { value: Float | null }) {
  return <span className={`number mono ${tone(value)}`}>{signed(value)}</span>;
}

function tone(value: Float | null): string {
  if (value === null) return "faint";
  if (typeof value !== "number") return "bad";
  return value > 0 ? "good" : value < 0 ? "bad" : "soft";
}
