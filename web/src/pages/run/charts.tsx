// The charts of a run: the measure and its distribution, stop reasons, groups without signal, response lengths.
import { type ReactNode, useCallback, useMemo } from "react";
import { Name, plainText } from "../../parts/text";
import { Empty } from "../../parts/states";
import { go } from "../../router";
import { useShortcuts } from "../../shortcuts";
import type { OutcomesBin, RunResponse, SeriesBin } from "../../source/schema";
import { sentence } from "./environments";
import { GroupSignal } from "./group-signal";
import { titleOf } from "./measure-picker";
import { MeasureSeries } from "./measure-series";
import { ANSWERED, type Selection, within } from "./selection";
import { StopReasons } from "./stop-reasons";
import { ValueHistogram } from "./value-histogram";

interface Properties {
  answer: RunResponse;
  bins: readonly SeriesBin[];
  lengths: readonly SeriesBin[];
  lengthName: string;
  picker: ReactNode;
  outcomes: readonly OutcomesBin[];
  selection: Selection;
}

export function Charts({ answer, bins, lengths, lengthName, outcomes, picker, selection }: Properties) {
  const title = titleOf(answer.measures, selection.measure);
  const choose = useCallback((bin: SeriesBin) => selection.with({ iteration: bin.first }), [selection]);
  const open = useCallback((bin: SeriesBin) => selection.rollouts(...within(bin), ANSWERED), [selection]);
  useShortcuts(useMemo(() => keys(bins, selection), [bins, selection]));
  if (bins.length === 0) return <Empty title="No rollouts here">Nothing that matches was recorded yet.</Empty>;
  return (
    <div className="run-charts">
      <MeasureSeries
        name="measure"
        title={
          <>
            <Name text={sentence(title)} />{" "}
            over iterations
          </>
        }
        label={plainText(sentence(title))}
        bins={bins}
        selection={selection}
        height={250}
        controls={picker}
        to={choose}
        does="show its distribution"
      />
      <ValueHistogram title={title} bins={bins} selection={selection} height={252} />
      <StopReasons bins={outcomes} selection={selection} height={170} />
      <GroupSignal bins={outcomes} selection={selection} height={170} />
      <MeasureSeries
        name="length"
        title={`Response ${lengthName}`}
        label={`Response ${lengthName}`}
        bins={lengths}
        selection={selection}
        height={170}
        to={open}
        does="show its rollouts"
      />
    </div>
  );
}

/** Keys that walk from iteration to iteration. */
function keys(bins: readonly SeriesBin[], selection: Selection) {
  const at = selection.iteration;
  const here = at === null ? bins.length : bins.findIndex((bin) => bin.first <= at && at <= bin.last);
  const move = (by: number) => {
    const bin = bins[Math.max(0, Math.min(bins.length - 1, here + by))];
    if (bin !== undefined) go(selection.with({ iteration: bin.first }), { replace: at !== null });
  };
  return [
    { keys: "ArrowLeft", does: "Choose the iteration before", run: () => move(-1) },
    { keys: "ArrowRight", does: "Choose the iteration after", run: () => move(1) },
    { keys: "Escape", does: "Choose no iteration", run: () => go(selection.with({ iteration: null })) },
    { keys: "m", does: "Choose a measure", run: () => document.getElementById("run-measure")?.focus() },
  ];
}
