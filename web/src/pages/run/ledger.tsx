// The ledger of the run: what became of every rollout that was begun.
import { count, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { Name } from "../../parts/text";
import type { LedgerSummary, RunResponse } from "../../source/schema";

export function Ledger({ answer }: { answer: RunResponse }) {
  const { ledger } = answer;
  return (
    <section className="card" aria-labelledby="run-ledger-title" id="run-ledger" tabIndex={-1}>
      <header>
        <h2 id="run-ledger-title">Ledger</h2>
        <Standing ledger={ledger} />
      </header>
      <div className="body stack run-ledger">
        {ledger.sessions === 0 ? <p className="soft">This run has no ledger: what is in its files is all that is known.</p> : <Sum ledger={ledger} />}
        <Notes answer={answer} />
        <Reasons title="Could not be recorded" counts={ledger.unrecordable} />
        <Reasons title="Dropped" counts={ledger.dropped} />
        <Reasons title="Scores dropped" counts={ledger.scores_dropped} />
        <Reasons title="Blobs dropped" counts={ledger.blobs_dropped} />
        <Reasons title="Redaction failed" counts={ledger.redaction_failed} />
        <Reasons title="Dropped: their rollouts had ended" counts={ledger.dropped_after_end} />
        <Reasons title="Not yet safe on disk" counts={ledger.sync_failed} />
      </div>
    </section>
  );
}

function Standing({ ledger }: { ledger: LedgerSummary }) {
  if (ledger.sessions === 0) return <Badge>none</Badge>;
  if (ledger.lost > 0) return <Badge tone="bad">{count(ledger.lost)} lost</Badge>;
  return ledger.is_balanced ? <Badge tone="good">adds up</Badge> : <Badge tone="warn">does not add up</Badge>;
}

/** Begun = recorded + what else became of them. */
function Sum({ ledger }: { ledger: LedgerSummary }) {
  const terms: [string, number][] = [
    ["recorded", ledger.recorded],
    ["not recordable", total(ledger.unrecordable)],
    ["dropped", total(ledger.dropped)],
    ["in flight", ledger.in_flight],
  ];
  return (
    <dl className="ledger-sum">
      <div>
        <dd className="number">{count(ledger.dispatched)}</dd>
        <dt>begun</dt>
      </div>
      {terms.map(([name, n], place) => (
        <div key={name} className={n === 0 ? "faint" : ""} data-sign={place === 0 ? "=" : "+"}>
          <dd className="number">{count(n)}</dd>
          <dt>{name}</dt>
        </div>
      ))}
    </dl>
  );
}

function Notes({ answer }: { answer: RunResponse }) {
  const notes = [...ofSessions(answer.ledger), ...ofRepeats(answer)];
  return notes.length === 0 ? null : <p className="soft">{notes.join(" ")}</p>;
}

function ofSessions({ sessions, open_sessions, lost, maybe_lost }: LedgerSummary): string[] {
  const closed = open_sessions === 0 ? "all closed" : `of which ${count(open_sessions)} ${is(open_sessions)} not closed`;
  const before = lost === 1 ? "it was" : "they were";
  return [
    ...(sessions > 0 ? [`Written in ${plural(sessions, "session")}, ${closed}.`] : []),
    ...(lost > 0 ? [`${plural(lost, "rollout")} ${was(lost)} begun and ${is(lost)} not in the files: a writer died before ${before} safe on disk.`] : []),
    ...(maybe_lost > 0 ? [`${plural(maybe_lost, "rollout")} ${is(maybe_lost)} being played, or lost with a session that died.`] : []),
  ];
}

function ofRepeats({ ledger, retried, superseded, collides }: RunResponse): string[] {
  return [
    ...(retried > 0 ? [`${plural(retried, "attempt")} failed and ${was(retried)} tried again; only the last attempts count.`] : []),
    ...(superseded > 0 ? [`${plural(superseded, "rollout")} ${was(superseded)} repeated after a restart; the later ones count.`] : []),
    ...(collides > 0 ? [`${plural(collides, "rollout")} collide: sessions that overlap in time recorded the same places of groups. All of them count. Give each rank or worker groups or indices of its own.`] : []),
    ...(ledger.scores_recorded > 0 ? [`${plural(ledger.scores_recorded, "late score")} recorded.`] : []),
  ];
}

function Reasons({ title, counts }: { title: string; counts: Record<string, number> }) {
  const some = Object.entries(counts).filter(([, n]) => n > 0);
  if (some.length === 0) return null;
  return (
    <div>
      <h3 className="warn">{title}</h3>
      <ul className="run-reasons">
        {some.map(([reason, n]) => (
          <li key={reason}>
            <span className="number">{count(n)}</span>{" "}
            <span className="soft">
              <Name text={reason} />
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

const total = (counts: Record<string, number>): number => Object.values(counts).reduce((sum, n) => sum + n, 0);
const was = (n: number): string => (n === 1 ? "was" : "were");
const is = (n: number): string => (n === 1 ? "is" : "are");
