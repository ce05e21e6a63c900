// The head of a rollout's page: identity, status, and related rollouts.
import { memberNumber } from "../../format";
import { Badge, StopReasonBadge } from "../../parts/badge";
import { CopyButton } from "../../parts/copy-button";
import { Name, truncated } from "../../parts/text";
import type { RolloutResponse } from "../../source/schema";
import { Facts } from "./facts";
import { Relatives } from "./relatives";
import { type NeighbourLinks, NeighbourBar } from "./neighbours";

interface RolloutHeaderProperties {
  answer: RolloutResponse;
  neighbours: NeighbourLinks;
  group: string;
  toRelative: (id: string) => string;
  /** Goes to where it failed. */
  showFailure: () => void;
}

export function RolloutHeader({ answer, neighbours, group, toRelative, showFailure }: RolloutHeaderProperties) {
  const { rollout } = answer;
  const here = answer.attempts.find((one) => one.id === rollout.id);
  const later = answer.attempts.some((one) => one.attempt > rollout.attempt && one.session === rollout.session);
  return (
    <header className="rollout-header">
      <div className="rollout-title">
        <div className="rollout-name">
          <h1>
            <Name text={rollout.task} />
            <span className="faint"> {memberNumber(rollout.index)}</span>
          </h1>
          <StopReasonBadge reason={truncated(rollout.stop_reason, 60)} status={rollout.status} />
          <span className="small faint">stopped by the {rollout.stopped_by === "env" ? "environment" : "runner"}</span>
          {later && <Badge tone="warn">tried again</Badge>}
          {here?.superseded && (
            <Badge tone="warn" title="A later session repeated it, and that one counts">
              superseded
            </Badge>
          )}
          {here?.collides && (
            <Badge tone="bad" title="Another session that overlaps in time recorded the same place; both count">
              collides
            </Badge>
          )}
          {rollout.tags.slice(0, 8).map((tag) => (
            <Badge key={tag}>
              <Name text={tag} most={40} />
            </Badge>
          ))}
          <span className="small faint mono rollout-id">
            <Name text={rollout.id} most={13} /> <CopyButton text={rollout.id} what="the id" />
          </span>
        </div>
        <NeighbourBar neighbours={neighbours} group={group} />
      </div>
      <div className="rollout-numbers">
        <Facts answer={answer} group={group} />
        <Relatives answer={answer} to={toRelative} />
      </div>
      {rollout.error !== null && (
        <p className="rollout-error small">
          <Badge tone="bad">
            <Name text={rollout.error.layer} most={20} />
          </Badge>
          <span className="rollout-error-words">
            <span className="mono bad">
              <Name text={rollout.error.type} most={80} />
            </span>{" "}
            <Name text={rollout.error.message.split("\n", 1)[0] ?? ""} most={240} />
          </span>
          <button type="button" className="link" onClick={showFailure}>
            Show where it failed
          </button>
        </p>
      )}
    </header>
  );
}
