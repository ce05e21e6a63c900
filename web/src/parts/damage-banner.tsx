// A banner on every page of a run of which something could not be read.
import { count, plural } from "../format";
import type { DamageResponse } from "../source/schema";
import { useAnswer } from "../source/use-answer";
import { VisibleText } from "./text";

export function DamageBanner({ run }: { run: string }) {
  const { data } = useAnswer<DamageResponse>("damage", { run });
  if (data === undefined || data.problem_count === 0) return null;
  const { problems, problem_count } = data;
  return (
    <section className="banner damage" id="run-problems" tabIndex={-1} aria-labelledby="run-problems-title">
      <details>
        <summary>
          <h2 id="run-problems-title">{plural(problem_count, "part")} of this run could not be read</h2>
          <span className="soft">: every number here is without {problem_count === 1 ? "it" : "them"}.</span>
        </summary>
        <ul>
          {problems.map((problem, place) => (
            <li key={place} className="long-text">
              <VisibleText text={problem.slice(0, 2_000)} />
            </li>
          ))}
          {problem_count > problems.length && <li className="faint">and {count(problem_count - problems.length)} more</li>}
        </ul>
      </details>
    </section>
  );
}
