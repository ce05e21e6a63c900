// Text that a model or an environment wrote: as text, with what cannot be seen made visible, and folded where it is long.
import { Fragment, useState } from "react";
import { short } from "../format";
import { UNSEEN_IN_TEXT } from "./unseen";

const FOLD_AT = 4_000;

/** The text with its unseen characters as small marks such as U+202E. */
export function Visible({ text }: { text: string }) {
  const pieces: React.ReactNode[] = [];
  let from = 0;
  for (const match of text.matchAll(UNSEEN_IN_TEXT)) {
    if (match.index > from) pieces.push(text.slice(from, match.index));
    pieces.push(<Unseen key={match.index} character={match[0]} />);
    from = match.index + match[0].length;
  }
  if (from === 0) return <>{text}</>;
  pieces.push(text.slice(from));
  return (
    <>
      {pieces.map((piece, place) => (
        <Fragment key={place}>{piece}</Fragment>
      ))}
    </>
  );
}

function Unseen({ character }: { character: string }) {
  const code = `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
  return (
    <span className="unseen" title={`${code}, which is not seen`}>
      {code}
    </span>
  );
}

/** What was said, the first part of it where it is long, and a button for more. */
export function Said({ text, fold = FOLD_AT, label = "text" }: { text: string; fold?: number; label?: string }) {
  const [shown, setShown] = useState(fold);
  const rest = text.length - shown;
  return (
    <div className="said">
      <Visible text={rest > 0 ? whole(text, shown) : text} />
      {rest > 0 && (
        <div className="row more">
          <button type="button" className="button" onClick={() => setShown(shown + 20 * fold)} aria-label={`Show more of the ${label}`}>
            Show {short(Math.min(rest, 20 * fold))} more of {short(rest)} characters
          </button>
        </div>
      )}
    </div>
  );
}

/** The first characters, not cut within a surrogate pair. */
export function whole(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? length - 1 : length);
}
