// What was learnt about the rollout after it had ended.
import { number, time } from "../../format";
import { Badge } from "../../parts/badge";
import { Failure } from "../../parts/failure";
import { Visible, whole } from "../../parts/said";
import type { RolloutAnswer } from "../../source/types";
import { CallList } from "./call-list";
import { Fields } from "./panel-section";

export function ScoresTab({ run, answer }: { run: string; answer: RolloutAnswer }) {
  const counts = answer.scores.findLast((score) => score.name === "reward");
  return (
    <>
      <h2 className="panel-title">Scores that came late</h2>
      {answer.scores.length === 0 && <p className="soft">None came.</p>}
      {answer.scores.slice(0, 500).map((score) => (
        <section key={score.id} className="panel-section score">
          <div className="row wrap">
            <h3>
              <bdi>
                <Visible text={whole(score.name, 120)} />
              </bdi>
            </h3>
            <b className="number mono">{number(score.value, 4)}</b>
            {score === counts && <Badge tone="accent">the reward that counts</Badge>}
            {score.rollout === null && <Badge>about the group</Badge>}
          </div>
          <p className="small faint">
            by{" "}
            <bdi>
              <Visible text={whole(score.producer, 120)} />
            </bdi>
            , {time(score.at)}
          </p>
          {score.error !== null && <Failure error={score.error} />}
          <Fields value={score.data} open={2} />
          {(score.calls ?? []).length > 0 && <CallList run={run} calls={score.calls} />}
        </section>
      ))}
    </>
  );
}
