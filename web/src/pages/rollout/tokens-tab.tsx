// The tokens of the chosen step, coloured by how likely each was.
import { type KeyboardEvent, useMemo, useState } from "react";
import { count, number, plural } from "../../format";
import { VisibleText, truncated } from "../../parts/text";
import type { Rollout, Step } from "../../source/schema";
import { PanelSection } from "./panel-section";
import { chance, surprise, tokenStats, type TokenPiece, tokenPieces } from "./token-pieces";
import { TokenText } from "./token-text";

const LEGEND = ["≥ 90 %", "≥ 50 %", "≥ 20 %", "≥ 5 %", "≥ 1 %", "less"];

export function TokensTab({ rollout, step }: { rollout: Rollout; step: Step | null }) {
  const pieces = useMemo(() => (step === null ? [] : tokenPieces(rollout, step)), [rollout, step]);
  const stats = useMemo(() => tokenStats(pieces), [pieces]);
  const [at, setAt] = useState<number | null>(null);
  if (step === null || step.tokens === null) return <p className="soft">The tokens of this step were not captured.</p>;
  const { tokens } = step;
  const shown = at === null ? undefined : pieces[at];
  const key = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    setAt(Math.max(0, Math.min(pieces.length - 1, (at ?? -1) + by)));
  };
  return (
    <>
      <h2 className="panel-title">Tokens of step {step.step}</h2>
      <p className="small faint">
        {plural(tokens.response.length, "token")} after {count((tokens.shared_prefix ?? 0) + tokens.prompt.length)} of prompt
        {stats.mean !== null && `; mean log-probability ${number(stats.mean)}, perplexity ${number(stats.perplexity, 2)}`}.
        {tokens.logprobs == null && " Log-probabilities were not captured."}
        {tokens.char_lengths == null && " What text each token gave was not captured: they are shown by their ids."}
      </p>
      {stats.known > 0 && <Legend />}
      <p className="token-now small" role="status">
        {shown === undefined ? <span className="faint">Point at a token, or step through them with the arrow keys.</span> : <TokenDetails piece={shown} />}
      </p>
      <div className="token-text" tabIndex={0} role="group" aria-label="Tokens, walked through with the arrow keys" onKeyDown={key}>
        <TokenText pieces={pieces} at={at} point={setAt} />
      </div>
      {stats.least.length > 0 && (
        <PanelSection title="Least likely">
          <ol className="token-least small">
            {stats.least.map((piece) => (
              <li key={piece.place}>
                <button type="button" className="link" onClick={() => setAt(piece.place)}>
                  <TokenDetails piece={piece} />
                </button>
              </li>
            ))}
          </ol>
        </PanelSection>
      )}
    </>
  );
}

function Legend() {
  return (
    <div className="token-legend tiny" aria-label="How likely a token was">
      {LEGEND.map((words, level) => (
        <span key={words} className={`token surprise-${level}`}>
          {words}
        </span>
      ))}
    </div>
  );
}

function TokenDetails({ piece }: { piece: TokenPiece }) {
  return (
    <>
      <bdi className={`token mono surprise-${surprise(piece.logprob) ?? "none"}`}>{piece.text === null ? piece.id : piece.text === "" ? "∅" : <VisibleText text={shownText(truncated(piece.text, 60))} />}</bdi>{" "}
      <b className="number">{chance(piece.logprob)}</b>, log-probability {number(piece.logprob)}, no. {piece.place}, id {piece.id}
    </>
  );
}

/** White space that one would not see. */
const shownText = (text: string): string => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·");
