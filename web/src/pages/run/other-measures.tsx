// For a run of one iteration: histograms of its other measures.
import { useState } from "react";
import { Histogram } from "../../charts/histogram";
import { count, plural } from "../../format";
import { Name, plainText } from "../../parts/text";
import { Answered, Loading } from "../../parts/states";
import { Link } from "../../router";
import { useAnswer } from "../../source/use-answer";
import type { HistogramResponse, Measure } from "../../source/schema";
import { Value } from "./chart-card";
import { shortLabel } from "./measure-picker";
import { HISTOGRAM_BINS, type Selection, valued } from "./selection";

const FEW = 8;
/** The parts of the reward say most about it. */
const RANKS: Record<Measure["kind"], number> = { reward_data: 0, grade: 1, rollout: 2, metrics: 3 };

export function OtherMeasures({ measures, selection }: { measures: readonly Measure[]; selection: Selection }) {
  const [shown, setShown] = useState(FEW);
  const others = measures.filter(({ name }) => name !== selection.measure).sort((one, other) => RANKS[one.kind] - RANKS[other.kind]);
  return (
    <section className="stack" aria-labelledby="run-measures">
      <h2 id="run-measures">Other measures</h2>
      <div className="run-measures">
        {others.slice(0, shown).map((measure) => (
          <Other key={measure.name} measure={measure} selection={selection} />
        ))}
      </div>
      {others.length > shown && (
        <button type="button" className="button run-more" onClick={() => setShown(shown + 2 * FEW)}>
          Show more of {plural(others.length, "measure")}
        </button>
      )}
    </section>
  );
}

function Other({ measure, selection }: { measure: Measure; selection: Selection }) {
  const { run, filters } = selection;
  const answer = useAnswer<HistogramResponse>("histogram", { run, measure: measure.name, bins: HISTOGRAM_BINS, filter: filters });
  return (
    <section className="card environment" aria-label={plainText(measure.label)}>
      <header>
        <h3>
          <Link to={selection.with({ measure: measure.name })}>
            <Name text={shortLabel(measure)} />
          </Link>
        </h3>
        <span className="small faint">{measure.kind === "rollout" ? "" : { reward_data: "reward component", grade: "grade", metrics: "metric" }[measure.kind]}</span>
      </header>
      <div className="body">
        <Answered of={answer} loading={<Loading lines={4} />}>
          {(found) =>
            found.n === 0 ? (
              <p className="soft run-none">No rollout here has a value of it.</p>
            ) : (
              <Histogram
                bins={found.bins}
                label={`Distribution of ${plainText(measure.label)}`}
                to={(bin, last) => selection.rollouts(...valued(measure.name, bin, last))}
                height={96}
              >
                <Value name="n">{count(found.n)}</Value>
                {found.missing > 0 && <Value name="missing">{count(found.missing)}</Value>}
              </Histogram>
            )
          }
        </Answered>
      </div>
    </section>
  );
}
