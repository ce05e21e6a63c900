// Text from models and environments: shown as text, with invisible characters made visible, and cut where it is long.
import { Fragment, useState } from "react";
import { short } from "../format";

const FOLD_AT = 4_000;

/** Controls, marks of direction, zero widths, tags and lone surrogates. */
const INVISIBLE = "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]";
/** Joiners, which Persian, Hindi and many emoji need; they neither hide nor reorder text. */
const JOINERS = "[\\u200c\\u200d]";

/** An invisible character in text of several lines. */
const INVISIBLE_IN_TEXT = new RegExp(`(?!${JOINERS}|[\\t\\n]|\\r\\n)${INVISIBLE}`, "gu");

/** Invisible characters in text on one line. */
const INVISIBLE_IN_LINE = new RegExp(`(?:(?!${JOINERS})${INVISIBLE})+`, "gu");

/** The text, with marks such as U+202E in place of invisible characters. */
export function VisibleText({ text }: { text: string }) {
  const pieces: React.ReactNode[] = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE_IN_TEXT)) {
    if (match.index > from) pieces.push(text.slice(from, match.index));
    pieces.push(<InvisibleCharacter key={match.index} character={match[0]} />);
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

function InvisibleCharacter({ character }: { character: string }) {
  const code = `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
  return (
    <span className="invisible-character" title={`${code}, an invisible character`}>
      {code}
    </span>
  );
}

/** A text, cut if it is long, with a button that shows more. */
export function LongText({ text, fold = FOLD_AT, label = "text" }: { text: string; fold?: number; label?: string }) {
  const [shown, setShown] = useState(fold);
  const rest = text.length - shown;
  return (
    <div className="long-text">
      <VisibleText text={rest > 0 ? truncated(text, shown) : text} />
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

/** The first characters of a text, never cut within a surrogate pair. */
export function truncated(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last <= 0xdbff ? length - 1 : length);
}

/** Text for places that take only plain text, such as options and titles: one short line without invisible characters. */
export function plainText(text: string, most = 80): string {
  const seen = text.slice(0, 4 * most).replace(INVISIBLE_IN_LINE, "�");
  const letters = [...seen];
  return letters.length > most || text.length > 4 * most ? `${letters.slice(0, most - 1).join("")}…` : seen;
}

/** A name from outside, such as of an environment: with its own text direction, and not too long. */
export function Name({ text, most = 120 }: { text: string; most?: number }) {
  const shown = text.length > most ? `${truncated(text, most - 1)}…` : text;
  return (
    <bdi {...(shown === text ? {} : { title: plainText(text, 1_000) })}>
      <VisibleText text={shown} />
    </bdi>
  );
}

/** The index in the string after so many code points from an index on. */
export function codeUnitsAfter(text: string, characters: number, from = 0): number {
  let place = from;
  for (let left = characters; left > 0 && place < text.length; left -= 1) place += (text.codePointAt(place) ?? 0) > 0xffff ? 2 : 1;
  return place;
}

/** The index in the string after its first so many code points. */
export function codeUnits(text: string, characters: number): number {
  return /[\ud800-\udbff]/.test(text) ? codeUnitsAfter(text, characters) : Math.min(characters, text.length);
}

interface HashedText {
  length: number;
  hash: string;
}

/** The length and hash of a hashed text; null for any other text. */
export function hashedText(text: string): HashedText | null {
  const match = text.length < 64 ? /^hashed:(\d+):([0-9a-f]{16})$/.exec(text) : null;
  return match === null ? null : { length: Number(match[1]), hash: match[2] ?? "" };
}
