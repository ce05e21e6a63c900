// Tokens as text, or as ids if their text is unknown.
import { memo, useEffect, useRef, useState } from "react";
import { count } from "../../format";
import { VisibleText } from "../../parts/text";
import { surprise, type TokenPiece } from "./token-pieces";

const AT_ONCE = 3_000;

interface TokenTextProperties {
  pieces: readonly TokenPiece[];
  at: number | null;
  point: (place: number | null) => void;
}

export function TokenText({ pieces, at, point }: TokenTextProperties) {
  const [asked, setAsked] = useState(AT_ONCE);
  const place = useRef<HTMLDivElement>(null);
  // One that was chosen further on is shown, and all before it.
  const shown = Math.max(asked, at === null ? 0 : at + 1);
  useEffect(() => {
    if (at !== null) place.current?.querySelector(`[data-token="${at}"]`)?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const pointAt = (event: { target: EventTarget }) => {
    const found = event.target instanceof Element ? event.target.closest("[data-token]") : null;
    if (found instanceof HTMLElement) point(Number(found.dataset.token));
  };
  return (
    <div ref={place} className="long-text mono" onPointerOver={pointAt} onClick={pointAt}>
      {pieces.slice(0, shown).map((piece) => (
        <Token key={piece.place} piece={piece} at={piece.place === at} />
      ))}
      {pieces.length > shown && (
        <button type="button" className="button" onClick={() => setAsked(shown + AT_ONCE)}>
          Show more of {count(pieces.length - shown)} tokens
        </button>
      )}
    </div>
  );
}

const Token = memo(function Token({ piece, at }: { piece: TokenPiece; at: boolean }) {
  const kind = `token surprise-${surprise(piece.logprob) ?? "none"}${at ? " at" : ""}${piece.text === null ? " chip" : ""}`;
  return (
    <>
      <span className={kind} data-token={piece.place}>
        {piece.text === null ? piece.id : piece.text === "" ? <span className="token-empty">∅</span> : <VisibleText text={piece.text} />}
      </span>
      {piece.text === null && " "}
    </>
  );
});
