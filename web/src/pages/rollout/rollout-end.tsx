// How the rollout ended, and the terms of its reward.
import { number, time } from "../../format";
import { StopReasonBadge } from "../../parts/badge";
import { NumberTable } from "../../parts/number-table";
import { Reward } from "../../parts/reward";
import { truncated } from "../../parts/text";
import type { RolloutResponse } from "../../source/schema";

export function RolloutEnd({ answer }: { answer: RolloutResponse }) {
  const { rollout } = answer;
  return (
    <section className="rollout-end" aria-label="How it ended">
      <div className="row wrap">
        <h3>End</h3>
        <StopReasonBadge reason={truncated(rollout.stop_reason, 60)} status={rollout.status} />
        <span className="small faint">
          stopped by the {rollout.stopped_by === "env" ? "environment" : "runner"}, {time(rollout.ended_at)}
        </span>
      </div>
      <RewardTerms answer={answer} />
      {rollout.grade !== null && <NumberTable caption="What the grade is made of" numbers={rollout.grade.reward_data} />}
      {rollout.ended_before_first_turn != null && <p className="small soft">The environment was over before the policy's first turn.</p>}
    </section>
  );
}

/** What a term is, where its name alone does not say it. */
const ABOUT: Readonly<Record<string, string>> = {
  env: "What the environment gave before the first turn",
  limit: "What a limit charged",
  clamp: "What a limit took or gave",
  score: "A later score states the total",
  unexplained: "What is left over: the record does not say where it comes from",
};

/** The reward as a sum; without a reward, the sum so far. */
export function RewardTerms({ answer: { terms, reward } }: { answer: RolloutResponse }) {
  return (
    <p className="small">
      {terms.map(({ name, value }, place) => (
        <span key={name} title={ABOUT[name]}>
          {place > 0 && <span className="faint"> + </span>}
          {name} <span className="number mono">{number(value)}</span>
        </span>
      ))}
      {reward === null ? (
        <span className="faint">{terms.length > 0 ? " so far, and no reward" : "no reward"}</span>
      ) : (
        <>
          <span className="faint"> = </span>
          <b>
            <Reward value={reward} />
          </b>
        </>
      )}
    </p>
  );
}
