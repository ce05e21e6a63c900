// Late scores about the group as a whole.
import { number, time } from "../../format";
import { VisibleText } from "../../parts/text";
import type { GroupScore } from "../../source/schema";

const MOST = 50;

export function GroupScores({ scores }: { scores: readonly GroupScore[] }) {
  return (
    <section className="card group-scores" aria-label="Scores of the group">
      <header>
        <h2>Scores of the group</h2>
        {scores.length > MOST && (
          <span className="small soft">
            the latest {MOST} of {scores.length}
          </span>
        )}
      </header>
      <div className="group-scroll" role="region" aria-label="Scores of the group, as a table" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col" className="number">
                Value
              </th>
              <th scope="col">By</th>
              <th scope="col">At</th>
              <th scope="col">Error</th>
            </tr>
          </thead>
          <tbody>
            {scores.slice(-MOST).map((score) => (
              <tr key={score.id}>
                <th scope="row">
                  <bdi>
                    <VisibleText text={score.name.slice(0, 120)} />
                  </bdi>
                </th>
                <td className="number">{number(score.value)}</td>
                <td>
                  <bdi>
                    <VisibleText text={score.producer.slice(0, 120)} />
                  </bdi>
                </td>
                <td className="number">{time(score.created_at)}</td>
                <td className="bad">{score.error !== null && <VisibleText text={`${score.error.layer}: ${score.error.type.slice(0, 120)}: ${score.error.message.slice(0, 300)}`} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
