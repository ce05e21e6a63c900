// One run of the list.
import { filter, toRollouts, toRun } from "../../addresses";
import { Sparkline } from "../../charts/sparkline";
import { ago, bytes, count, finite, number, plural, percent, time } from "../../format";
import { Name, plainText, VisibleText } from "../../parts/text";
import { Badge, Collides, RunStateBadge } from "../../parts/badge";
import { Link } from "../../router";
import type { RunListEntry } from "../../source/schema";

export function RunRow({ run }: { run: RunListEntry }) {
  const folder = run.key === run.name ? "" : run.key.slice(0, Math.max(0, run.key.length - run.name.length));
  return (
    <tr role="row" className={run.problem === null ? "run-row" : "run-row damaged"}>
      <th role="rowheader" scope="row" className="runs-name">
        <Link to={toRun(run.key)} className="runs-link" data-run={run.key}>
          {folder !== "" && (
            <bdi className="runs-folder">
              <VisibleText text={folder} />
            </bdi>
          )}
          <Name text={run.name} />
        </Link>
        {run.problem !== null && (
          <p className="small warn long-text">
            <VisibleText text={run.problem.slice(0, 600)} />
          </p>
        )}
      </th>
      <td role="cell" className="runs-state">
        {run.run === null ? <Badge tone="warn">cannot be read</Badge> : <RunStateBadge state={run.state} live={run.live} />}
        {run.run !== null && run.problem !== null && <Badge tone="bad">damaged</Badge>}
        <Collides n={run.collides} />
      </td>
      <td role="cell" className="runs-progress">
        <Progress run={run} />
      </td>
      <td role="cell" className="runs-reward">
        <Rewarded run={run} />
      </td>
      <td role="cell" className="runs-errors number">
        <Failures run={run} />
      </td>
      <td role="cell">
        <Names of={run.envs} kind="environment" />
      </td>
      <td role="cell" className="runs-policies">
        <Names of={run.policies} kind="policy" kinds="policies" />
      </td>
      <td role="cell" className="runs-when number soft" title={time(run.written_at ?? run.created_at)}>
        {ago(run.written_at ?? run.created_at)}
      </td>
      <td role="cell" className="runs-size number soft">
        {bytes(run.bytes)}
      </td>
    </tr>
  );
}

function Progress({ run }: { run: RunListEntry }) {
  const planned = run.planned !== null && run.planned > 0 ? run.planned : null;
  const finished = run.finished ?? run.recorded;
  const isPartial = planned !== null && finished < planned;
  return (
    <>
      <span className="number">{count(isPartial ? finished : (run.rollouts ?? run.recorded))}</span>
      {isPartial && <span className="number faint"> of {count(planned)}</span>}
      {planned !== null && (
        <progress
          className={isPartial ? "" : "done"}
          value={Math.min(finished, planned)}
          max={planned}
          aria-label={`${percent(finished, planned)} of what was planned`}
        />
      )}
    </>
  );
}

function Rewarded({ run }: { run: RunListEntry }) {
  const values = run.sparkline.map(finite);
  const last = values.findLast((value) => value !== null) ?? null;
  if (last === null && run.mean_reward === null) return <span className="faint">–</span>;
  return (
    <span className="row">
      {values.length > 1 ? <Sparkline values={values} label="Mean reward over iterations" width={84} /> : <span className="runs-no-line" aria-hidden="true" />}
      <span className="runs-figures">
        <b className="number" title="Mean reward of the last iterations">
          {number(values.length > 1 ? last : run.mean_reward)}
        </b>
        {values.length > 1 && (
          <span className="number small faint" title="Mean reward of all rollouts">
            mean {number(run.mean_reward)}
          </span>
        )}
      </span>
    </span>
  );
}

function Failures({ run }: { run: RunListEntry }) {
  const lost = run.lost > 0 && <span className="bad small"> {count(run.lost)} lost</span>;
  if (run.errors === null) return lost || <span className="faint">–</span>;
  if (run.errors === 0) return lost || <span className="faint">0</span>;
  const whole = run.rollouts ?? run.recorded;
  return (
    <>
      <Link
        to={toRollouts(run.key, { filter: [filter("status", "is", "error")] })}
        className={`runs-inner ${run.errors >= whole / 20 ? "bad" : "warn"}`}
        aria-label={`${plural(run.errors, "rollout")} failed`}
      >
        {count(run.errors)}
      </Link>{" "}
      <span className="faint small">{percent(run.errors, whole)}</span>
      {lost}
    </>
  );
}

function Names({ of, kind, kinds }: { of: readonly string[] | null; kind: string; kinds?: string }) {
  if (of === null || of.every((name) => name === "")) return <span className="faint">–</span>;
  return (
    <span className="runs-names" title={of.slice(0, 30).map((name) => plainText(name)).join(", ")}>
      <Name text={plainText(of[0] ?? "", 60)} />
      {of.length > 1 && <span className="faint" aria-label={`and ${plural(of.length - 1, kind, kinds)} more`}> +{of.length - 1}</span>}
    </span>
  );
}
