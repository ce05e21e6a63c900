// JSON as a tree; only unfolded parts are rendered, and long lists are shown in parts.
import { useState } from "react";
import { count, short } from "../format";
import type { Json } from "../source/schema";
import "./json.css";
import { hashedText, VisibleText, truncated } from "./text";
import { TextPiece } from "./text-piece";

const AT_ONCE = 100;
const LONG = 300;

interface JsonTreeProperties {
  value: Json;
  label?: string;
  /** How many levels are unfolded at first. */
  open?: number;
}

export function JsonTree({ value, label, open = 0 }: JsonTreeProperties) {
  return (
    <div className="json-tree mono">
      <Branch name={label ?? null} value={value} open={open} isLabel />
    </div>
  );
}

function Branch({ name, value, open, isLabel = false }: { name: string | number | null; value: Json; open: number; isLabel?: boolean }) {
  const entries = isLeaf(value) ? null : entriesOf(value);
  const [unfolded, setUnfolded] = useState(open > 0);
  const [shown, setShown] = useState(AT_ONCE);
  const key = name === null ? null : <Name name={name} isLabel={isLabel} />;
  if (entries === null || entries.length === 0)
    return (
      <div className="json-line">
        {key} <JsonLeaf value={value} />
      </div>
    );
  return (
    <div>
      <button type="button" className="json-line json-toggle" aria-expanded={unfolded} onClick={() => setUnfolded(!unfolded)}>
        <span className="json-arrow" aria-hidden="true">
          {unfolded ? "▾" : "▸"}
        </span>
        {key}
        <span className="faint">
          {Array.isArray(value) ? `[${count(entries.length)}]` : `{${count(entries.length)}}`} {!unfolded && <VisibleText text={preview(value)} />}
        </span>
      </button>
      {unfolded && (
        <div className="json-children">
          {entries.slice(0, shown).map(([inner, one]) => (
            <Branch key={inner} name={inner} value={one} open={open - 1} />
          ))}
          {entries.length > shown && (
            <button type="button" className="link" onClick={() => setShown(shown + 10 * AT_ONCE)}>
              Show more of {count(entries.length - shown)}
            </button>
          )}
        </div>
      )}
    </div>
  );
}

function Name({ name, isLabel }: { name: string | number; isLabel: boolean }) {
  return (
    <bdi className={isLabel ? "json-label" : "json-key"}>
      <VisibleText text={truncated(String(name), LONG)} />
      {isLabel ? "" : ":"}
    </bdi>
  );
}

/** A value that has nothing inside it. */
export function JsonLeaf({ value, long = LONG }: { value: Json; long?: number }) {
  const [all, setAll] = useState(false);
  if (value === null) return <span className="json-null">null</span>;
  if (typeof value === "boolean" || typeof value === "number") return <span className="json-number">{String(value)}</span>;
  if (typeof value !== "string") {
    const marked = marker(value);
    return <span className={marked === null ? "faint" : "json-marker"}>{marked === null ? (Array.isArray(value) ? "[]" : "{}") : <VisibleText text={truncated(marked, LONG)} />}</span>;
  }
  if (hashedText(value) !== null) return <TextPiece text={value} />;
  return (
    <bdi className="json-string long-text">
      “<VisibleText text={all ? value.slice(0, 200_000) : truncated(value, long)} />”
      {value.length > long && (
        <button type="button" className="link" onClick={() => setAll(!all)}>
          {all ? "fold" : `${short(value.length - long)} more`}
        </button>
      )}
    </bdi>
  );
}

function isLeaf(value: Json): boolean {
  return value === null || typeof value !== "object" || marker(value) !== null;
}

function entriesOf(value: Json): [string | number, Json][] {
  if (Array.isArray(value)) return value.map((one, place) => [place, one]);
  return typeof value === "object" && value !== null ? Object.entries(value) : [];
}

/** The beginning of a value in a line. */
export function preview(value: Json, length = 60): string {
  const words: string[] = [];
  let left = length;
  for (const [name, one] of entriesOf(value)) {
    if (left <= 0) return `${words.join(", ")}, …`;
    const inner = typeof one === "string" ? one.slice(0, 30) : one === null || typeof one !== "object" ? String(one) : (marker(one) ?? (Array.isArray(one) ? "[…]" : "{…}"));
    words.push(Array.isArray(value) ? inner : `${String(name).slice(0, 30)}: ${inner}`);
    left -= words.at(-1)?.length ?? 0;
  }
  return words.join(", ");
}

/** The meaning of a marker object such as `{"$float": "NaN"}`; null for any other value. */
function marker(value: Json): string | null {
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
