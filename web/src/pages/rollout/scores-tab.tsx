// Late scores about the rollout.
import { number, time } from "../../format";
import { Badge } from "../../parts/badge";
import { FailureBox } from "../../parts/failure";
import { OldNew } from "../../parts/old-new";
import { Name } from "../../parts/text";
import type { RolloutResponse } from "../../source/schema";
import { CallList } from "./call-list";
import { Fields } from "./panel-section";

export function ScoresTab({ run, answer }: { run: string; answer: RolloutResponse }) {
  return (
    <>
      {answer.regrades.length > 0 && (
        <section className="panel-section" aria-label="Old against new">
          <h2 className="panel-title">Old against new</h2>
          {[...answer.regrades].reverse().map((regrade) => (
            <div key={regrade.name} className="row spread wrap">
              <span>
                <Name text={regrade.name} /> {regrade.is_reward && <Badge tone="accent">the reward now</Badge>}
              </span>
              <OldNew before={regrade.old} after={regrade.new} />
            </div>
          ))}
        </section>
      )}
      <h2 className="panel-title">Late scores</h2>
      {answer.scores.length === 0 && <p className="soft">None came.</p>}
      {answer.scores.map((score) => (
        <section key={score.id} className="panel-section">
          <div className="row wrap">
            <h3>
              <Name text={score.name} />
            </h3>
            <b className="number mono">{number(score.value, 4)}</b>
            {score.id === answer.reward_score && <Badge tone="accent">the reward that counts</Badge>}
            {score.rollout === null && <Badge>about the group</Badge>}
          </div>
          <p className="small faint">
            by <Name text={score.producer} />, {time(score.created_at)}
          </p>
          {score.error !== null && <FailureBox error={score.error} />}
          <Fields value={score.data} open={2} />
          {score.calls !== undefined && <CallList run={run} calls={score.calls} />}
        </section>
      ))}
    </>
  );
}
