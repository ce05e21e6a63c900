// The page of a run: health, key numbers, charts, errors, ledger, findings and configuration.
import { useMemo } from "react";
import { toRuns } from "../../addresses";
import { HoveredIteration, HoveredIterationContext } from "../../charts/hovered-iteration";
import { Answered, Empty, Loading } from "../../parts/states";
import { plainText } from "../../parts/text";
import { Shell } from "../../shell";
import { useFindings } from "../../source/findings";
import type { OutcomesResponse, RunResponse, SeriesResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import { Charts } from "./charts";
import { Config } from "./config";
import { Environments } from "./environments";
import { Errors } from "./errors";
import { Findings } from "./findings";
import { Heading } from "./heading";
import { Health } from "./health";
import { KeyNumbers } from "./key-numbers";
import { Ledger } from "./ledger";
import { MeasurePicker, titleOf } from "./measure-picker";
import { OtherMeasures } from "./other-measures";
import "./run.css";
import "./sections.css";
import { ANSWERED, type Selection, useSelection } from "./selection";
import { Selectors } from "./selectors";

export function RunPage({ run }: { run: string }) {
  const answer = useAnswer<RunResponse>("run", { run });
  const selection = useSelection(run, answer.data);
  const pointed = useMemo(() => new HoveredIteration(), []);
  return (
    <Shell crumbs={[{ label: "Runs", to: toRuns() }, { label: plainText(run) }]} run={run} tab="run">
      <HoveredIterationContext value={pointed}>
        <Answered of={answer} loading={<Waiting />}>
          {(known) => <Overview answer={known} selection={selection} />}
        </Answered>
      </HoveredIterationContext>
    </Shell>
  );
}

function Overview({ answer, selection }: { answer: RunResponse; selection: Selection }) {
  const findings = useFindings(selection.run);
  return (
    <div className="run stack">
      <Heading answer={answer} />
      <Health answer={answer} findings={findings.data} />
      {answer.rollouts === 0 ? (
        <Nothing answer={answer} />
      ) : (
        <Numbers answer={answer} selection={selection} />
      )}
      <div className="run-pair">
        <Errors answer={answer} />
        <Ledger answer={answer} />
      </div>
      <Findings run={selection.run} answer={findings} />
      <Config config={answer.config} />
    </div>
  );
}

function Nothing({ answer: { live, problem_count } }: { answer: RunResponse }) {
  if (live) return <Empty title="No rollouts yet">The run was begun; its rollouts appear here as they end.</Empty>;
  if (problem_count > 0) return <Empty title="No rollouts">No rollouts could be read. See the errors above.</Empty>;
  return <Empty title="No rollouts">The run was begun, and nothing was recorded in it.</Empty>;
}

function Numbers({ answer, selection }: { answer: RunResponse; selection: Selection }) {
  const { run, filters, measure } = selection;
  const source = useSource();
  const measures = answer.measures.filter(({ name }) => source.has("series", { measure: name, filter: filters }));
  const picker = <MeasurePicker measures={measures} selection={selection} />;
  // Not every policy says how many tokens it took; the turns are always known.
  const inTokens = answer.completion_tokens > 0;
  const lengthName = inTokens ? "length, tokens" : "length, turns";
  const rewards = useAnswer<SeriesResponse>("series", { run, measure: "reward", filter: filters });
  const lengths = useAnswer<SeriesResponse>("series", { run, measure: inTokens ? "completion_tokens" : "steps", filter: [...filters, ANSWERED] });
  const outcomes = useAnswer<OutcomesResponse>("outcomes", { run, filter: filters });
  const drawn = useAnswer<SeriesResponse>("series", { run, measure, filter: filters });
  const title = titleOf(answer.measures, measure);
  return (
    <Answered of={outcomes} loading={<Waiting />}>
      {({ bins }) => (
        <>
          <KeyNumbers {...{ answer, lengthName, selection }} rewards={rewards.data?.bins ?? []} lengths={lengths.data?.bins ?? []} outcomes={bins} />
          <Selectors answer={answer} selection={selection} />
          {measures.length < answer.measures.length && (
            <p className="small faint">
              This report has charts of {measures.length} of {answer.measures.length} measures.
            </p>
          )}
          {bins.length === 1 ? (
            <>
              <Environments title={title} selection={selection} controls={picker} />
              <OtherMeasures measures={measures} selection={selection} />
            </>
          ) : (
            <Answered of={drawn}>
              {(series) => <Charts {...{ answer, lengthName, picker, selection }} bins={series.bins} lengths={lengths.data?.bins ?? []} outcomes={bins} />}
            </Answered>
          )}
        </>
      )}
    </Answered>
  );
}

const Waiting = () => (
  <div className="stack">
    <Loading lines={2} height={26} />
    <Loading lines={1} height={90} />
    <Loading lines={1} height={300} />
  </div>
);
