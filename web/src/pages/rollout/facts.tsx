// The numbers of a rollout in a strip.
import { sum } from "d3-array";
import type { ReactNode } from "react";
import { count, number, seconds, short } from "../../format";
import { Advantage, Reward } from "../../parts/reward";
import { Visible, whole } from "../../parts/said";
import { Link } from "../../router";
import type { RolloutAnswer } from "../../source/types";

export function Facts({ answer, group }: { answer: RolloutAnswer; group: string }) {
  const { rollout } = answer;
  const asked = sum(rollout.steps, (step) => step.usage?.prompt_tokens ?? 0);
  const said = sum(rollout.steps, (step) => step.usage?.completion_tokens ?? 0);
  const took = (Date.parse(rollout.ended_at) - Date.parse(rollout.started_at)) / 1000;
  return (
    <dl className="rollout-facts">
      <Fact name="Reward" large note={rewardNote(answer)}>
        <Reward value={answer.reward} />
      </Fact>
      <Fact name="Advantage" large note={answer.group.n > 0 ? `mean of ${count(answer.group.n)}: ${number(answer.group.mean)}` : ""}>
        <Advantage value={answer.advantage} />
      </Fact>
      <Fact name="Steps">{count(rollout.steps.length)}</Fact>
      <Fact name="Tokens" note={said > 0 || asked > 0 ? `${short(asked)} of prompts` : ""}>
        {said > 0 || asked > 0 ? `${short(said)} said` : "–"}
      </Fact>
      <Fact name="Time">{Number.isFinite(took) ? seconds(took) : "–"}</Fact>
      <Fact name="Policy" note={rollout.policy_version === null ? "" : `version ${whole(String(rollout.policy_version), 30)}`}>
        <Name text={rollout.policy} />
      </Fact>
      <Fact name="Environment" note={`${whole(rollout.split, 24)}, iteration ${rollout.iteration}`}>
        <Name text={rollout.env} />
      </Fact>
      <Fact name="Group" note={[`index ${rollout.index}`, rollout.seat === null ? "" : `seat ${rollout.seat}`, rollout.attempt > 0 ? `attempt ${rollout.attempt}` : ""].filter(Boolean).join(", ")}>
        <Link to={group}>
          <Name text={rollout.group} />
        </Link>
      </Fact>
    </dl>
  );
}

function rewardNote({ rollout, reward }: RolloutAnswer): string {
  if (reward === null) return rollout.status === "ok" ? "grade pending" : `so far ${number(rollout.reward_so_far)}`;
  return rollout.unclamped_reward === null ? "" : `clamped from ${number(rollout.unclamped_reward)}`;
}

function Name({ text }: { text: string }) {
  if (text === "") return <>–</>;
  return (
    <bdi title={whole(text, 300)}>
      <Visible text={whole(text, 48)} />
    </bdi>
  );
}

function Fact({ name, note = "", large = false, children }: { name: string; note?: string; large?: boolean; children: ReactNode }) {
  return (
    <div className={large ? "rollout-fact large" : "rollout-fact"}>
      <dt>{name}</dt>
      <dd>{children}</dd>
      {note !== "" && <dd className="tiny faint">{note}</dd>}
    </div>
  );
}
