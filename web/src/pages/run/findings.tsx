// The findings of `rolltrace check`, the most severe first, with links to their rollouts.
import { useEffect, useState } from "react";
import { toRollout } from "../../addresses";
import { count, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { Name, plainText, LongText, VisibleText } from "../../parts/text";
import { Answered } from "../../parts/states";
import { Link } from "../../router";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import type { AuditResult, FindingsResponse } from "../../source/schema";

const LOOK_EVERY = 1_000;
const TONES = { error: "bad", warning: "warn", info: "plain" } as const;
const RANKS = { error: 0, warning: 1, info: 2 } as const;
const FEW = 5;

/** The findings; asked again while a check is running. */
export function useFindings(run: string) {
  const answer = useAnswer<FindingsResponse>("findings", { run });
  const running = answer.data?.state === "running";
  const { refetch } = answer;
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => void refetch(), LOOK_EVERY);
    return () => clearInterval(timer);
  }, [running, refetch]);
  return answer;
}

export function Findings({ run, answer }: { run: string; answer: ReturnType<typeof useFindings> }) {
  return (
    <section className="card" aria-labelledby="run-findings-title" id="run-findings" tabIndex={-1}>
      <header>
        <h2 id="run-findings-title">Findings of the check</h2>
        <div className="row wrap">
          {answer.data !== undefined && <Standing findings={answer.data} />}
          <Again run={run} answer={answer} />
        </div>
      </header>
      <Answered of={answer} loading={<p className="body soft">Asking…</p>}>
        {(findings) => <Found run={run} findings={findings} />}
      </Answered>
    </section>
  );
}

function Standing({ findings: { state, stale, audits } }: { findings: FindingsResponse }) {
  if (state === "running") return <Badge tone="accent">checking…</Badge>;
  if (state === "failed") return <Badge tone="bad">failed</Badge>;
  if (state === "absent") return <Badge>not checked</Badge>;
  return (
    <>
      {stale && <Badge tone="warn" title="The run has changed since">out of date</Badge>}
      <span className="small soft">{plural(audits, "audit")}</span>
    </>
  );
}

function Again({ run, answer }: { run: string; answer: ReturnType<typeof useFindings> }) {
  const source = useSource();
  const [problem, setProblem] = useState<string | null>(null);
  if (!source.live || answer.data === undefined || answer.data.state === "running") return null;
  const start = async () => {
    try {
      await source.ask("check", { run });
      setProblem(null);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    void answer.refetch();
  };
  return (
    <>
      {problem !== null && (
        <span className="small bad" role="alert">
          {problem}
        </span>
      )}
      <button type="button" className="button" onClick={() => void start()}>
        {answer.data.state === "absent" ? "Check the run" : "Check again"}
      </button>
    </>
  );
}

function Found({ run, findings }: { run: string; findings: FindingsResponse }) {
  const { state, found, message, audits } = findings;
  if (state === "absent" && message !== null)
    return (
      <div className="body soft">
        <LongText text={message} fold={400} label="message" />
      </div>
    );
  if (state === "absent")
    return (
      <p className="body soft">
        This run is large, so it is checked when you ask for it. A check looks for silent bugs: rewards that do not add up, prompts that change, groups
        without a signal, and more.
      </p>
    );
  if (state === "failed")
    return (
      <div className="body bad">
        <LongText text={message ?? "The check failed."} fold={400} label="message" />
      </div>
    );
  if (state === "running") return <p className="body soft">The audits are running; what they find appears here.</p>;
  if (found.length === 0) return <p className="body soft">{plural(audits, "audit")} ran and found nothing.</p>;
  const sorted = [...found].sort((one, other) => RANKS[one.severity] - RANKS[other.severity] || other.count - one.count);
  return (
    <ul className="findings">
      {sorted.map((audit) => (
        <Audit key={audit.name} run={run} audit={audit} />
      ))}
    </ul>
  );
}

function Audit({ run, audit }: { run: string; audit: AuditResult }) {
  const [shown, setShown] = useState(FEW);
  return (
    <li>
      <div className="row wrap">
        <Badge tone={audit.error === null ? TONES[audit.severity] : "bad"}>{audit.error === null ? audit.severity : "could not run"}</Badge>
        <h3 className="mono">
          <Name text={audit.name} />
        </h3>
        {audit.error === null && <span className="soft number">× {count(audit.count)}</span>}
      </div>
      <p className="small soft long-text">
        <VisibleText text={audit.about} />
      </p>
      {audit.error !== null && <LongText text={audit.error} fold={400} label="error" />}
      <ul className="findings-each small">
        {audit.findings.slice(0, shown).map((finding, place) => (
          <li key={place}>
            <LongText text={finding.message} fold={400} label="finding" />
            {finding.rollout !== null && (
              <Link className="findings-link" to={toRollout(run, finding.rollout)} aria-label={`Open rollout ${plainText(finding.rollout)}`}>
                rollout →
              </Link>
            )}
          </li>
        ))}
      </ul>
      {audit.findings.length > shown && (
        <button type="button" className="button small" onClick={() => setShown(audit.findings.length)}>
          Show {count(audit.findings.length - shown)} more
        </button>
      )}
      {shown >= audit.findings.length && audit.count > audit.findings.length && audit.findings.length > 0 && (
        <p className="small faint">{count(audit.count - audit.findings.length)} more are not listed here; `rolltrace check` counts them all.</p>
      )}
    </li>
  );
}
