// A text with a mark where it first differs from the neighbour's; the equal text before is faint, and folded if it is long.
import { useState } from "react";
import { count, plural } from "../../format";
import { codeUnits, hashedText, VisibleText, truncated } from "../../parts/text";

/** How many equal characters are shown before the mark. */
const BEFORE = 240;
const AFTER = 2_000;

interface DifferingTextProperties {
  text: string;
  /** Where it differs, in code points; past its end where the text was cut before. */
  character: number;
  /** Whether it may go on after its end. */
  isCut: boolean;
  /** Whom it is compared with, such as "#3". */
  neighbour: string;
  mono?: boolean;
}

export function DifferingText({ text, character, isCut, neighbour, mono = false }: DifferingTextProperties) {
  const [wholeBefore, setWholeBefore] = useState(false);
  const [shown, setShown] = useState(AFTER);
  if (hashedText(text) !== null) return <HashedDifference neighbour={neighbour} />;
  const at = codeUnits(text, character);
  const before = text.slice(0, at);
  const after = text.slice(at);
  const hidden = wholeBefore || before.length <= 2 * BEFORE ? 0 : truncated(before, before.length - BEFORE).length;
  const rest = after.length - shown;
  return (
    <div className={mono ? "long-text mono" : "long-text"} dir="auto">
      {hidden > 0 && (
        <button type="button" className="group-same" onClick={() => setWholeBefore(true)} title={`Show what is the same as in ${neighbour}`}>
          … {count(hidden)} characters the same
        </button>
      )}
      <span className="group-soft">
        <VisibleText text={before.slice(hidden)} />
      </span>
      <DifferenceMark neighbour={neighbour} {...(isCut && after === "" ? { words: `differs from ${neighbour} at character ${count(character + 1)}, which is left out here` } : {})} />
      <VisibleText text={rest > 0 ? truncated(after, shown) : after} />
      {rest > 0 && (
        <div className="more">
          <button type="button" className="button" onClick={() => setShown(Number.POSITIVE_INFINITY)}>
            Show {plural(rest, "more character")}
          </button>
        </div>
      )}
    </div>
  );
}

/** The place itself; a button jumps to it. */
export function DifferenceMark({ neighbour, words }: { neighbour: string; words?: string }) {
  return (
    <span className="group-mark" data-mark="" tabIndex={-1}>
      <span className={words === undefined ? "only-heard" : "group-mark-words"}>{words ?? `From here it differs from ${neighbour}: `}</span>
    </span>
  );
}

function HashedDifference({ neighbour }: { neighbour: string }) {
  return <DifferenceMark neighbour={neighbour} words={`the text, which is hashed, differs from that of ${neighbour}`} />;
}
