// The page of a rollout: its transcript, the reward of each step, and all other fields of its record.
import { toRollouts, toRun, toRuns } from "../../addresses";
import { memberNumber } from "../../format";
import { plainText } from "../../parts/text";
import { Answered, Loading } from "../../parts/states";
import { useRoute } from "../../router";
import { Shell } from "../../shell";
import type { RolloutResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { CutTexts } from "./cut-texts";
import { RolloutView } from "./rollout-view";
import { useNeighbours } from "./neighbours";
import "./rollout.css";
import "./panel.css";

export function RolloutPage({ run, id }: { run: string; id: string }) {
  const route = useRoute();
  const answer = useAnswer<RolloutResponse>("rollout", { run, id });
  const neighbours = useNeighbours(run, id, route);
  const name = answer.data === undefined ? "Rollout" : `${plainText(answer.data.rollout.task, 60)} ${memberNumber(answer.data.rollout.index)}`;
  return (
    <Shell
      run={run}
      tab="rollouts"
      crumbs={[{ label: "Runs", to: toRuns() }, { label: run, to: toRun(run) }, { label: "Rollouts", to: neighbours.list || toRollouts(run) }, { label: name }]}
    >
      <div className="rollout-page" aria-busy={answer.isPlaceholderData}>
        <Answered of={answer} loading={<Loading lines={12} height={22} />}>
          {(data) => (
            <CutTexts key={data.rollout.id} run={run} answer={data}>
              {(loaded) => <RolloutView run={run} answer={loaded} neighbours={neighbours} />}
            </CutTexts>
          )}
        </Answered>
      </div>
    </Shell>
  );
}
