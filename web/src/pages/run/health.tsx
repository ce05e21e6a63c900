// Whether the run is healthy, with links to each problem.
import { filter, toRollouts } from "../../addresses";
import { count, plural, percent } from "../../format";
import { useSource } from "../../source/source";
import type { FindingsResponse, RunResponse } from "../../source/schema";

interface Concern {
  tone: "bad" | "warn";
  text: string;
  /** An address, or the id of a part of this page. */
  to?: string;
  part?: string;
}

export function Health({ answer, findings }: { answer: RunResponse; findings: FindingsResponse | undefined }) {
  const { live } = useSource();
  const concerns = [...ofRecord(answer), ...ofRewards(answer, live), ...ofFindings(findings)].sort((one, other) => rank(one) - rank(other));
  if (answer.rollouts === 0) return null;
  if (concerns.length === 0)
    return (
      <p className="health fine" role="status">
        <b>Nothing stands out.</b> <span>{healthyText(answer, findings)}</span>
      </p>
    );
  return (
    <div className={`health ${concerns[0]?.tone ?? ""}`} role="status">
      <b>Worth a look</b>
      <ul>
        {concerns.map((concern) => (
          <li key={concern.text} className={concern.tone}>
            <ConcernLink concern={concern} />
          </li>
        ))}
      </ul>
    </div>
  );
}

function ConcernLink({ concern: { text, to, part } }: { concern: Concern }) {
  if (to !== undefined) return <a href={to}>{text}</a>;
  if (part === undefined) return <>{text}</>;
  return (
    <button type="button" className="as-link" onClick={() => show(part)}>
      {text}
    </button>
  );
}

/** The address behind `#` is the view's, so that a part of it is scrolled to by hand. */
function show(part: string): void {
  const element = document.getElementById(part);
  element?.scrollIntoView({ block: "start" });
  element?.focus({ preventScroll: true });
}

const rank = (concern: Concern): number => (concern.tone === "bad" ? 0 : 1);

function ofRecord({ ledger, problem_count, state, planned, finished, collides }: RunResponse): Concern[] {
  const found: Concern[] = [];
  const dropped = Object.values(ledger.dropped).reduce((sum, n) => sum + n, 0);
  if (problem_count > 0) found.push({ tone: "bad", text: `${plural(problem_count, "problem")} in the files`, part: "run-problems" });
  if (ledger.lost > 0) found.push({ tone: "bad", text: `${plural(ledger.lost, "rollout")} lost`, part: "run-ledger" });
  if (dropped > 0) found.push({ tone: "bad", text: `${plural(dropped, "rollout")} dropped`, part: "run-ledger" });
  if (!ledger.is_balanced && ledger.lost === 0) found.push({ tone: "warn", text: "the ledger does not add up", part: "run-ledger" });
  if (collides > 0) found.push({ tone: "bad", text: `${plural(collides, "rollout")} of sessions that collide`, part: "run-ledger" });
  if (state === "died") found.push({ tone: "bad", text: "a session died", part: "run-ledger" });
  if (state === "interrupted") found.push({ tone: "warn", text: planned === null ? "interrupted" : `interrupted with ${count(finished)} of ${plural(planned, "episode")}`, part: "run-ledger" });
  return found;
}

function ofRewards({ key, statuses, rollouts, rewards, groups, groups_without_signal }: RunResponse, live: boolean): Concern[] {
  const found: Concern[] = [];
  const failed = statuses.find(({ value }) => value === "error")?.n ?? 0;
  const well = statuses.find(({ value }) => value === "ok")?.n ?? 0;
  const waiting = well - rewards.n - rewards.non_finite;
  const link = (...filters: string[]) => toRollouts(key, { filter: filters });
  if (failed > 0) {
    const tone = failed >= rollouts / 20 ? "bad" : "warn";
    found.push({ tone, text: `${percent(failed, rollouts)} of rollouts failed`, to: link(filter("status", "is", "error")) });
  }
  if (groups > 1 && groups_without_signal >= groups / 2)
    found.push({ tone: "warn", text: `${percent(groups_without_signal, groups)} of groups have no signal`, to: link(filter("group_signal", "is", "no")) });
  if (rewards.non_finite > 0)
    found.push({
      tone: "bad",
      text: `${plural(rewards.non_finite, "reward")} not finite`,
      // Only a server takes expressions.
      ...(live ? { to: toRollouts(key, { where: "not isfinite(reward)" }) } : { part: "run-findings" }),
    });
  if (waiting > 0)
    found.push({
      tone: "warn",
      text: `${plural(waiting, "rollout")} ended well without a reward`,
      to: link(filter("status", "is", "ok"), filter("reward", "null")),
    });
  return found;
}

function ofFindings(findings: FindingsResponse | undefined): Concern[] {
  if (findings === undefined) return [];
  if (findings.state === "failed") return [{ tone: "warn", text: "the check failed", part: "run-findings" }];
  const of = (severity: string) => findings.found.filter((one) => one.severity === severity && one.count > 0).length;
  return [
    ...(of("error") > 0 ? [{ tone: "bad" as const, text: `${plural(of("error"), "audit")} found an error`, part: "run-findings" }] : []),
    ...(of("warning") > 0 ? [{ tone: "warn" as const, text: `${plural(of("warning"), "audit")} found something to look at`, part: "run-findings" }] : []),
  ];
}

function healthyText({ ledger, rollouts }: RunResponse, findings: FindingsResponse | undefined): string {
  const statements = [`all ${count(rollouts)} rollouts ended without a failure`];
  if (ledger.is_balanced && ledger.sessions > 0) statements.push("the ledger adds up");
  if (findings?.state === "ready" && !findings.stale) statements.push(`${plural(findings.audits, "audit")} found nothing wrong`);
  return `${statements.join(", ").replace(/^a/, "A")}.`;
}
