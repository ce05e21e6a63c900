// What could not be read of a run: said first, and calmly.
import { count, plural } from "../../format";
import { Visible } from "../../parts/said";
import type { RunResponse } from "../../source/schema";

export function Problems({ answer: { problems, problem_count } }: { answer: RunResponse }) {
  if (problem_count === 0) return null;
  return (
    <section className="card run-problems" id="run-problems" tabIndex={-1} aria-labelledby="run-problems-title">
      <h2 id="run-problems-title">{plural(problem_count, "part")} of this run could not be read</h2>
      <p className="soft">Everything else is shown as usual; nothing was changed on disk.</p>
      <details open={problems.length <= 3}>
        <summary>What, and where</summary>
        <ul>
          {problems.map((problem, place) => (
            <li key={place} className="said">
              <Visible text={problem.slice(0, 2_000)} />
            </li>
          ))}
          {problem_count > problems.length && <li className="faint">and {count(problem_count - problems.length)} more</li>}
        </ul>
      </details>
    </section>
  );
}
