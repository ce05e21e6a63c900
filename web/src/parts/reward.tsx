// A reward as a number that is read at a glance: colour says the sign, never the only thing that says it.
import { number, signed } from "../format";
import type { Num } from "../source/records";

export function Reward({ value, digits }: { value: Num | null; digits?: number }) {
  return <span className={`number mono ${tone(value)}`}>{number(value, digits)}</span>;
}

export function Advantage({ value }: { value: Num | null }) {
  return <span className={`number mono ${tone(value)}`}>{signed(value)}</span>;
}

function tone(value: Num | null): string {
  if (value === null) return "faint";
  if (typeof value !== "number") return "bad";
  return value > 0 ? "good" : value < 0 ? "bad" : "soft";
}
