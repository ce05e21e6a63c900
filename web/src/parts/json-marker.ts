// Markers: what stands in a record's free-form places for what JSON does not have.
import type { Json } from "../source/schema";

/** What a marker means, in a word; null for any other value. */
export function marker(value: Json): string | null {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const names = Object.keys(value);
  const name = names[0];
  if (names.length !== 1 || name === undefined) return null;
  const inner = value[name];
  if (typeof inner !== "string") return null;
  if (name === "$float" && /^(NaN|-?Infinity)$/.test(inner)) return inner.replace("Infinity", "∞").replace("-", "−");
  if (name === "$bytes") return `${Math.floor((inner.replace(/=+$/, "").length * 3) / 4)} bytes`;
  return name === "$unrepresentable" ? `not kept: ${inner}` : null;
}
