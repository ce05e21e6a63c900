// Banners on every page of a run that is not read completely yet, or is damaged.
import { count, percent, plural } from "../format";
import type { DamageResponse } from "../source/schema";
import { useAnswer } from "../source/use-answer";
import { VisibleText } from "./text";

export function DamageBanner({ run }: { run: string }) {
  const { data } = useAnswer<DamageResponse>("damage", { run }, { isPartial: (answer) => answer.coverage < 1 });
  if (data === undefined) return null;
  return (
    <>
      {data.coverage < 1 && <ReadingBanner coverage={data.coverage} />}
      {data.problem_count > 0 && <ProblemBanner {...data} />}
    </>
  );
}

function ReadingBanner({ coverage }: { coverage: number }) {
  return (
    <section className="banner reading" role="status">
      <progress value={coverage} aria-label="How much of this run was read" />
      <span>
        Reading this run, the newest rollouts first and late scores last. <span className="soft">Every number here is about the {percent(coverage, 1)} read so far.</span>
      </span>
    </section>
  );
}

function ProblemBanner({ problems, problem_count }: DamageResponse) {
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
