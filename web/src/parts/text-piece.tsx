// A piece of text with invisible characters made visible and search matches marked.
import { memo } from "react";
import { count } from "../format";
import { hashedText, VisibleText } from "./text";

interface TextPieceProperties {
  text: string;
  /** Letters of one width. */
  mono?: boolean;
  /** What to mark, in any case; empty for nothing. */
  find?: string;
}

export const TextPiece = memo(function TextPiece({ text, mono = false, find = "" }: TextPieceProperties) {
  const absent = hashedText(text);
  if (absent !== null)
    return (
      <span className="hashed" title={`XXH3 hash ${absent.hash}`}>
        {count(absent.length)} characters hashed <code>{absent.hash.slice(0, 8)}</code>
      </span>
    );
  return (
    <div className={mono ? "long-text mono" : "long-text"} dir="auto">
      {find === "" ? <VisibleText text={text} /> : <Marked text={text} find={find} />}
    </div>
  );
});

function Marked({ text, find }: { text: string; find: string }) {
  const parts: React.ReactNode[] = [];
  let from = 0;
  for (const match of text.matchAll(pattern(find))) {
    if (match.index > from) parts.push(<VisibleText key={from} text={text.slice(from, match.index)} />);
    parts.push(
      <mark key={`found-${match.index}`}>
        <VisibleText text={match[0]} />
      </mark>,
    );
    from = match.index + match[0].length;
  }
  parts.push(<VisibleText key={from} text={text.slice(from)} />);
  return <>{parts}</>;
}

/** A pattern that finds a text literally, in any case. */
export function pattern(find: string): RegExp {
  return new RegExp(find.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), "gi");
}
