// The numbers of a rollout in a strip.
import { sum } from "d3-array";
import { count, number, seconds, short, signed } from "../../format";
import { Fact } from "../../parts/fact";
import { OldNew } from "../../parts/old-new";
import { Name, plainText } from "../../parts/text";
import { Advantage, Reward } from "../../parts/reward";
import { Link } from "../../router";
import type { RolloutResponse } from "../../source/schema";

/** How many characters of a name are shown; the title has all. */
const MOST = 48;
const PREFIX = "regrade/";

export function Facts({ answer, group }: { answer: RolloutResponse; group: string }) {
  const { rollout } = answer;
  const regrade = answer.regrades.at(-1);
  const prompt = sum(rollout.steps, (step) => step.usage?.prompt_tokens ?? 0);
  const completion = sum(rollout.steps, (step) => step.usage?.completion_tokens ?? 0);
  const took = (Date.parse(rollout.ended_at) - Date.parse(rollout.started_at)) / 1000;
  return (
    <dl className="rollout-facts">
      <Fact name="Reward" large note={rewardNote(answer)}>
        <Reward value={answer.reward} />
      </Fact>
      <Fact name="Advantage" large note={answer.group.n > 0 ? `mean of ${count(answer.group.n)}: ${number(answer.group.mean)}` : null}>
        <Advantage value={answer.advantage} />
      </Fact>
      {regrade !== undefined && (
        <Fact name="Regraded" title={plainText(regrade.name, 300)} note={<Name text={regrade.name.slice(PREFIX.length)} most={30} />}>
          <OldNew before={regrade.old} after={regrade.new} />
        </Fact>
      )}
      <Fact name="Steps">{count(rollout.steps.length)}</Fact>
      <Fact name="Tokens" note={completion > 0 || prompt > 0 ? `${short(prompt)} of prompts` : null}>
        {completion > 0 || prompt > 0 ? `${short(completion)} generated` : "–"}
      </Fact>
      <Fact name="Time">{Number.isFinite(took) ? seconds(took) : "–"}</Fact>
      <Fact name="Policy" title={plainText(rollout.policy, 300)} note={rollout.policy_version === null ? null : <Version version={rollout.policy_version} />}>
        {rollout.policy === "" ? "–" : <Name text={rollout.policy} most={MOST} />}
      </Fact>
      <Fact name="Environment" title={plainText(rollout.env, 300)} note={<Place split={rollout.split} iteration={rollout.iteration} />}>
        <Name text={rollout.env} most={MOST} />
      </Fact>
      <Fact name="Group" title={plainText(rollout.group, 300)} note={[rollout.index === null ? "no index" : `index ${rollout.index}`, rollout.seat === null ? "" : `seat ${rollout.seat}`, rollout.attempt > 0 ? `attempt ${rollout.attempt}` : ""].filter(Boolean).join(", ")}>
        <Link to={group}>
          <Name text={rollout.group} most={MOST} />
        </Link>
      </Fact>
    </dl>
  );
}

function Version({ version }: { version: number | string }) {
  return (
    <>
      version <Name text={String(version)} most={30} />
    </>
  );
}

function Place({ split, iteration }: { split: string; iteration: number }) {
  return (
    <>
      <Name text={split} most={24} />, iteration {iteration}
    </>
  );
}

function rewardNote({ rollout, reward, terms }: RolloutResponse): string | null {
  if (reward === null) return rollout.status === "ok" ? "grade pending" : `so far ${number(rollout.reward_so_far)}`;
  const clamp = terms.find((term) => term.name === "clamp");
  if (clamp !== undefined) return `clamped by ${signed(clamp.value)}`;
  return terms.some((term) => term.name === "score") ? "from a later score" : null;
}
