// How the rollout ended, and what its reward is the sum of.
import { number, time } from "../../format";
import { StopReason } from "../../parts/badge";
import { NumberTable } from "../../parts/number-table";
import { Reward } from "../../parts/reward";
import { whole } from "../../parts/said";
import type { Num, RolloutAnswer } from "../../source/types";

export function RolloutEnd({ answer }: { answer: RolloutAnswer }) {
  const { rollout } = answer;
  return (
    <section className="rollout-end" aria-label="How it ended">
      <div className="row wrap">
        <h3>End</h3>
        <StopReason reason={whole(rollout.stop_reason, 60)} status={rollout.status} />
        <span className="small faint">
          stopped by the {rollout.stopped_by === "env" ? "environment" : "runner"}, {time(rollout.ended_at)}
        </span>
      </div>
      <RewardTerms answer={answer} />
      {rollout.grade !== null && <NumberTable caption="What the grade is made of" numbers={rollout.grade.reward_data} />}
      {rollout.unplayed != null && <p className="small soft">The environment was over before the policy's first turn.</p>}
    </section>
  );
}

/** The reward as a sum. */
export function RewardTerms({ answer }: { answer: RolloutAnswer }) {
  const terms = termsOf(answer);
  return (
    <p className="reward-terms small">
      {terms.map(({ name, value }, place) => (
        <span key={name}>
          {place > 0 && <span className="faint"> + </span>}
          {name} <span className="number mono">{number(value)}</span>
        </span>
      ))}
      <span className="faint"> = </span>
      <b>
        {answer.reward === null ? "no reward" : <Reward value={answer.reward} />}
      </b>
      {answer.rollout.unclamped_reward !== null && <span className="faint">, clamped by a limit from {number(answer.rollout.unclamped_reward)}</span>}
    </p>
  );
}

function termsOf({ rollout, scores }: RolloutAnswer): { name: string; value: Num }[] {
  const late = scores.findLast((score) => score.name === "reward" && score.value !== null);
  const group = late?.data.group_grade;
  const steps = rollout.unplayed != null ? rollout.unplayed.reward : rollout.steps.length > 0 ? rollout.steps.reduce((total, step) => total + Number(step.reward), 0) : rollout.reward_so_far;
  return [
    { name: rollout.steps.length === 1 ? "step" : "steps", value: Number.isFinite(Number(steps)) ? Number(steps) : rollout.reward_so_far },
    ...(rollout.grade === null ? [] : [{ name: "grade", value: rollout.grade.reward }]),
    ...(typeof group === "number" ? [{ name: "group's grade", value: group }] : []),
  ];
}
