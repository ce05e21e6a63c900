// The findings of `rolltrace check`, the most severe first, with links to their rollouts.
import { useEffect, useRef, useState } from "react";
import { filter, toGroup, toRollout, toRollouts } from "../../addresses";
import { Sparkline } from "../../charts/sparkline";
import { count, number, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { Name, plainText, LongText, VisibleText } from "../../parts/text";
import { Answered } from "../../parts/states";
import { Link, useRoute } from "../../router";
import type { useFindings } from "../../source/findings";
import { useSource } from "../../source/source";
import type { AuditFinding, AuditResult, FindingsResponse } from "../../source/schema";

const TONES = { error: "bad", warning: "warn", info: "plain" } as const;
const RANKS = { error: 0, warning: 1, info: 2 } as const;
const FIRST_SHOWN = 5;

export function Findings({ run, answer }: { run: string; answer: ReturnType<typeof useFindings> }) {
  return (
    <section className="card" aria-labelledby="run-findings-title" id="run-findings" tabIndex={-1}>
      <header>
        <h2 id="run-findings-title">Findings of the check</h2>
        <div className="row wrap">
          {answer.data !== undefined && <CheckState findings={answer.data} />}
          <CheckButton run={run} answer={answer} />
        </div>
      </header>
      <Answered of={answer} loading={<p className="body soft">Asking…</p>}>
        {(findings) => <FindingList run={run} findings={findings} />}
      </Answered>
    </section>
  );
}

function CheckState({ findings: { state, stale, audits } }: { findings: FindingsResponse }) {
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

function CheckButton({ run, answer }: { run: string; answer: ReturnType<typeof useFindings> }) {
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

function FindingList({ run, findings }: { run: string; findings: FindingsResponse }) {
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
  const [shown, setShown] = useState(FIRST_SHOWN);
  const chosen = useRoute().parameters.get("audit") === audit.name;
  const element = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (chosen) element.current?.scrollIntoView({ block: "center" });
  }, [chosen]);
  return (
    <li ref={element} aria-current={chosen ? "true" : undefined}>
      <div className="row wrap">
        <Badge tone={audit.error === null ? TONES[audit.severity] : "bad"}>{audit.error === null ? audit.severity : "could not run"}</Badge>
        <h3 className="mono">
          <Name text={audit.name} />
        </h3>
        {audit.error === null && <span className="soft number">× {count(audit.count)}</span>}
      </div>
      <p className="small soft long-text">
        <VisibleText text={audit.why} /> {audit.fix !== "" && <VisibleText text={audit.fix} />}
      </p>
      {audit.error !== null && <LongText text={audit.error} fold={400} label="error" />}
      <ul className="findings-each small">
        {audit.findings.slice(0, shown).map((finding, place) => (
          <li key={place}>
            <LongText text={finding.message} fold={400} label="finding" />
            <Trend finding={finding} />
            <Places run={run} finding={finding} />
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

/** The course of a share over the iterations, where the audit states it. */
function Trend({ finding: { data } }: { finding: AuditFinding }) {
  const trend = data !== null && typeof data === "object" && "trend" in data ? data.trend : null;
  if (!Array.isArray(trend) || trend.length < 2) return null;
  const values = trend.map((pair) => (Array.isArray(pair) && typeof pair[1] === "number" ? pair[1] : null));
  const last = values.at(-1) ?? null;
  return (
    <span className="findings-trend">
      <Sparkline values={values} width={72} height={18} label="Over the iterations" />
      {last !== null && <span className="number faint" title="In the last iteration">{number(last, 2)}</span>}
    </span>
  );
}

/** Links to what a finding is about: rollouts, a group, or a listing of an env or iteration. */
function Places({ run, finding: { rollouts, address } }: { run: string; finding: AuditFinding }) {
  const [split, env, iteration, group, ...rest] = address?.split("/") ?? [];
  const many = split !== undefined && env !== undefined && rest.length < 2;
  return (
    <span className="findings-places row wrap">
      {rollouts.length > 1 && <span className="faint">rollouts</span>}
      {rollouts.slice(0, FIRST_SHOWN).map((rollout, place) => (
        <Link key={rollout} className="findings-link" to={toRollout(run, rollout)} aria-label={`Open rollout ${plainText(rollout)}`}>
          {rollouts.length === 1 ? "rollout →" : place + 1}
        </Link>
      ))}
      {many && group !== undefined && iteration !== undefined && (
        <Link className="findings-link" to={toGroup(run, { split, env, iteration: Number(iteration), group })}>
          group →
        </Link>
      )}
      {many && group === undefined && (
        <Link className="findings-link" to={toRollouts(run, { filter: [filter("split", "is", split), filter("env", "is", env), ...(iteration === undefined ? [] : [filter("iteration", "is", iteration)])] })}>
          listing →
        </Link>
      )}
    </span>
  );
}
