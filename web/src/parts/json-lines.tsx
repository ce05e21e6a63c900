// JSON as indented lines, coloured, of any length; a line that is long is folded.
import { useMemo, useState } from "react";
import { short } from "../format";
import type { Json } from "../source/schema";
import { VisibleText, truncated } from "./text";
import { VirtualRows } from "./virtual-rows";
import "./json.css";

const LONG = 400;
const TOKENS = /^(\s*)("(?:[^"\\]|\\.)*"?)(: )?(.*)$/s;

export function JsonLines({ text, label }: { text: string; label: string }) {
  const lines = useMemo(() => text.split("\n"), [text]);
  return (
    <VirtualRows rows={lines} keyOf={(_, index) => index} estimate={(line) => 19 * Math.ceil(Math.min(line.length, LONG + 20) / 60 || 1)} label={label} className="json-lines">
      {(line, index) => <Line line={line} index={index} />}
    </VirtualRows>
  );
}

function Line({ line, index }: { line: string; index: number }) {
  const [shown, setShown] = useState(LONG);
  const indent = line.search(/\S|$/);
  const cut = truncated(line.slice(indent), shown);
  return (
    <div style={{ position: "relative" }}>
      <span className="row-number" aria-hidden="true">
        {index + 1}
      </span>
      <div className="json-text" style={{ paddingLeft: 56 + 7 * Math.min(indent, 24) }}>
        <Coloured line={cut} />
        {line.length - indent > shown && (
          <button type="button" className="link" onClick={() => setShown(shown + 50_000)}>
            … {short(line.length - indent - shown)} more
          </button>
        )}
      </div>
    </div>
  );
}

function Coloured({ line }: { line: string }) {
  const match = TOKENS.exec(line);
  if (match === null) return <Scalar text={line} />;
  const [, indent, text = "", colon, rest = ""] = match;
  if (colon === undefined)
    return (
      <>
        {indent}
        <span className="json-string">
          <VisibleText text={text} />
        </span>
        <VisibleText text={rest} />
      </>
    );
  return (
    <>
      {indent}
      <span className="json-key">
        <VisibleText text={text} />:
      </span>
      <Scalar text={rest} />
    </>
  );
}

function Scalar({ text }: { text: string }) {
  const kind = text.startsWith('"') ? "json-string" : /^-?\d|^true|^false/.test(text) ? "json-number" : text.startsWith("null") ? "json-null" : "";
  return (
    <span className={kind}>
      <VisibleText text={text} />
    </span>
  );
}

/** A value as indented text. */
export const jsonText = (value: Json | object): string => JSON.stringify(value, null, 2);
