// The kinds of errors that rollouts ended with.
import { filter, toRollouts } from "../../addresses";
import { count, percent } from "../../format";
import { Name, plainText, LongText } from "../../parts/text";
import { Badge } from "../../parts/badge";
import { Link } from "../../router";
import type { ErrorKind, RunResponse } from "../../source/schema";

export function Errors({ answer }: { answer: RunResponse }) {
  return (
    <section className="card" aria-labelledby="run-errors">
      <header>
        <h2 id="run-errors">Errors</h2>
        <span className="small soft">
          {answer.errors.length === 0 ? "none" : `of ${count(answer.rollouts)} rollouts`}
        </span>
      </header>
      {answer.errors.length === 0 ? (
        <p className="body soft">No rollout ended with an error.</p>
      ) : (
        <table className="run-table">
          <thead>
            <tr>
              <th scope="col">Kind</th>
              <th scope="col" className="right">
                Rollouts
              </th>
              <th scope="col">Such as</th>
            </tr>
          </thead>
          <tbody>
            {answer.errors.map((kind) => (
              <Kind key={`${kind.layer} ${kind.type}`} kind={kind} answer={answer} />
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Kind({ kind, answer }: { kind: ErrorKind; answer: RunResponse }) {
  const filters = [kind.layer === "" ? filter("error_layer", "null") : filter("error_layer", "is", kind.layer), filter("error_type", "is", kind.type)];
  return (
    <tr>
      <th scope="row">
        <span className="row wrap">
          {kind.layer !== "" && <Badge tone="bad">{plainText(kind.layer, 30)}</Badge>}
          <code>
            <Name text={kind.type} />
          </code>
        </span>
      </th>
      <td className="right number">
        <Link to={toRollouts(answer.key, { filter: filters })}>{count(kind.n)}</Link> <span className="faint">{percent(kind.n, answer.rollouts)}</span>
      </td>
      <td className="small soft">
        <LongText text={kind.example} fold={240} label="message" />
      </td>
    </tr>
  );
}
