// Formats numbers, times and sizes.
import type { Float } from "./source/schema";

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–";

/** A reward or metric with about four significant digits. */
export function number(value: Float | boolean | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "boolean") return value ? "1" : "0";
  if (typeof value === "string") return value === "NaN" ? "NaN" : value === "Infinity" ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return minus(WHOLE.format(value));
  const size = Math.abs(value);
  if (size < 1e-12) return "0"; // a sum that would be zero but for rounding
  if (size && (size < 1e-3 || size >= 1e9)) return minus(value.toExponential(2));
  return minus(value.toFixed(size >= 1000 ? 1 : size >= 100 ? Math.min(2, digits) : digits));
}

/** With a sign: for advantages and differences. */
export function signed(value: Float | null | undefined, digits = 3): string {
  const text = number(value, digits);
  return typeof value === "number" && value > 0 ? `+${text}` : text;
}

export const count = (value: number | null | undefined): string => (value === null || value === undefined ? NONE : WHOLE.format(value));
export const short = (value: number): string => (Math.abs(value) < 1e15 ? SHORT.format(value) : minus(value.toExponential(1)));
export const plural = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;

/** A fraction as a percentage; only 0 and 1 are written as 0 % and 100 %. */
export function percent(part: number, whole: number): string {
  if (whole === 0) return NONE;
  const percent = (100 * part) / whole;
  if (part > 0 && percent < 0.1) return "<0.1 %";
  if (part < whole && percent > 99.9) return ">99.9 %";
  return `${percent < 10 && percent % 1 !== 0 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

export function seconds(value: Float | null | undefined): string {
  if (typeof value !== "number") return number(value);
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let place = 0;
  for (; value >= 1000 && place < units.length - 1; place += 1) value /= 1000;
  return `${value < 10 && place > 0 ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

export function time(value: string | null | undefined): string {
  if (!value) return NONE;
  const date = new Date(value);
  return Number.isNaN(date.getTime()) ? value : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export function ago(value: string | null | undefined, now = Date.now()): string {
  if (!value) return NONE;
  const past = (now - new Date(value).getTime()) / 1000;
  if (!Number.isFinite(past)) return value;
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return past < 86400 * 30 ? plural(Math.floor(past / 86400), "day") + " ago" : time(value);
}

/** How a member of a group is named by its index. */
export const memberNumber = (index: number | null): string => (index === null ? "#?" : `#${index}`);

/** The finite number in a value, else null. */
export const finite = (value: Float | boolean | null | undefined): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

function minus(text: string): string {
  return text.replace("-", "−");
}
