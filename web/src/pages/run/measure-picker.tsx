// Selects the measure of the charts.
import { plainText } from "../../parts/text";
import { go } from "../../router";
import type { Measure } from "../../source/schema";
import type { Selection } from "./selection";

const KINDS: readonly [Measure["kind"], string][] = [
  ["rollout", "Of the rollout"],
  ["reward_data", "Reward components"],
  ["grade", "Grades"],
  ["metrics", "Metrics"],
];

export function MeasurePicker({ measures, selection }: { measures: readonly Measure[]; selection: Selection }) {
  const known = measures.some(({ name }) => name === selection.measure);
  const choose = (measure: string) => go(selection.with({ measure: measure === "reward" ? null : measure }));
  return (
    <select className="field run-select" id="run-measure" aria-label="Measure" value={selection.measure} onChange={(event) => choose(event.target.value)}>
      {!known && <option value={selection.measure}>{plainText(selection.measure)}</option>}
      {KINDS.map(([kind, title]) => {
        const some = measures.filter((measure) => measure.kind === kind);
        return some.length === 0 ? null : (
          <optgroup key={kind} label={title}>
            {some.map((measure) => (
              <option key={measure.name} value={measure.name}>
                {plainText(shortLabel(measure))}
              </option>
            ))}
          </optgroup>
        );
      })}
    </select>
  );
}

/** The name of the measure as a title has it. */
export function titleOf(measures: readonly Measure[], name: string): string {
  const measure = measures.find((one) => one.name === name);
  return measure === undefined ? name : shortLabel(measure);
}

/** The label without the kind. */
export function shortLabel(measure: Measure): string {
  return measure.kind === "rollout" ? measure.label : measure.name.slice(measure.kind.length + 1);
}
