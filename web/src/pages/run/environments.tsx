// For a run of one iteration: the histogram of the measure and the stop reasons of each environment.
import { useMemo, useState } from "react";
import { filter } from "../../addresses";
import { Histogram } from "../../charts/histogram";
import { reasonParts } from "../../charts/palette";
import { type StackPart, StackedBar } from "../../charts/stacked-bars";
import { count, number, plural } from "../../format";
import { Name, plainText } from "../../parts/text";
import { Answered, Empty, Loading } from "../../parts/states";
import { Link } from "../../router";
import { useAnswer } from "../../source/use-answer";
import type { EnvironmentsResponse, EnvironmentStats } from "../../source/schema";
import { Value } from "./chart-card";
import { type Selection, valued } from "./selection";
import { amountOf, reasonFilters, sums } from "./stop-reasons";

const MOST = 24;

interface Properties {
  title: string;
  selection: Selection;
  controls: React.ReactNode;
}

export function Environments({ title, selection, controls }: Properties) {
  const { run, measure, filters } = selection;
  const answer = useAnswer<EnvironmentsResponse>("environments", { run, measure, filter: filters });
  return (
    <section className="stack" aria-labelledby="run-environments">
      <header className="row wrap spread">
        <h2 id="run-environments">
          <Name text={sentence(title)} />{" "}
          by environment
        </h2>
        {controls}
      </header>
      <Answered of={answer} loading={<Loading lines={8} />}>
        {({ environments }) => <Cards environments={environments} title={title} selection={selection} />}
      </Answered>
    </section>
  );
}

function Cards({ environments, title, selection }: { environments: readonly EnvironmentStats[]; title: string; selection: Selection }) {
  const [shown, setShown] = useState(MOST);
  const parts = useMemo(() => reasonParts(sums(environments)), [environments]);
  if (environments.length === 0) return <Empty title="No rollouts">Nothing that matches was recorded yet.</Empty>;
  return (
    <>
      <div className="run-environments">
        {environments.slice(0, shown).map((one) => (
          <Card key={one.env} one={one} parts={parts} title={title} selection={selection} />
        ))}
      </div>
      {environments.length > shown && (
        <button type="button" className="button" onClick={() => setShown(shown + 100)}>
          Show more of {plural(environments.length, "environment")}
        </button>
      )}
    </>
  );
}

function Card({ one, parts, title, selection }: { one: EnvironmentStats; parts: readonly StackPart[]; title: string; selection: Selection }) {
  const { measure } = selection;
  const here = selection.env === null ? [filter("env", "is", one.env)] : [];
  return (
    <section className="card environment" aria-label={`Environment ${plainText(one.env)}`}>
      <header>
        <h3>
          <Name text={one.env} />
        </h3>
        <Link className="small" to={selection.rollouts(...here)}>
          {plural(one.rollouts, "rollout")} →
        </Link>
      </header>
      <div className="body">
        {one.n === 0 ? (
          <p className="soft run-none">No rollout here has a value of this measure.</p>
        ) : (
          <Histogram
            bins={one.bins}
            label={`Distribution of ${plainText(title)} in ${plainText(one.env)}`}
            to={(bin, last) => selection.rollouts(...here, ...valued(measure, bin, last))}
            height={130}
          >
            <Value name="mean">{number(one.mean)}</Value>
            <Value name="median">{number(one.median)}</Value>
            <Value name="±">{number(one.std)}</Value>
            {one.missing > 0 && (
              <Value name="missing" className="warn">
                {count(one.missing)}
              </Value>
            )}
          </Histogram>
        )}
        <StackedBar
          parts={parts}
          amount={(part) => amountOf(one.stop_reasons, one.rollouts, parts, part)}
          whole={one.rollouts}
          to={(part) => selection.rollouts(...here, ...reasonFilters(parts, part))}
          label={`Stop reasons in ${plainText(one.env)}`}
        />
      </div>
    </section>
  );
}

export const sentence = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);
