// A measure over iterations, drawn with its distribution.
import { useCallback, useMemo } from "react";
import { Distribution } from "../../charts/distribution";
import { ChartTable } from "../../charts/chart-table";
import { iterationsOf } from "../../charts/ticks";
import { count, finite, number } from "../../format";
import type { Float, SeriesBin } from "../../source/schema";
import { ChartCard, Readout, Value } from "./chart-card";
import type { Selection } from "./selection";

interface Properties {
  name: string;
  title: React.ReactNode;
  /** As read in a sentence. */
  label: string;
  bins: readonly SeriesBin[];
  selection: Selection;
  height: number;
  controls?: React.ReactNode;
  /** Where a click on an iteration leads, and what that is called. */
  to: (bin: SeriesBin) => string;
  does: string;
}

const COLUMNS = ["Iteration", "Rollouts", "Values", "Missing", "Mean", "5 %", "25 %", "Median", "75 %", "95 %"];

/** As many digits as values of this size need. */
const digitsOf = (bins: readonly SeriesBin[]): number => (bins.some((bin) => Math.abs(finite(bin.q95) ?? 0) >= 10) ? 1 : 3);

export function MeasureSeries({ name, title, label, bins, selection, height, controls, to, does }: Properties) {
  const { mean, iteration } = selection;
  const toBin = useCallback((index: number) => (bins[index] === undefined ? "" : to(bins[index])), [bins, to]);
  const describe = useCallback((index: number) => (bins[index] === undefined ? "" : words(bins[index])), [bins]);
  const doing = useCallback((index: number) => (bins[index] === undefined ? "" : `${iterationsOf(bins[index])}: ${does}`), [bins, does]);
  const rows = useMemo(() => bins.map((bin) => ({ to: to(bin), cells: cells(bin) })), [bins, to]);
  const digits = digitsOf(bins);
  return (
    <ChartCard
      {...{ name, title, selection, controls }}
      readout={
        <Readout bins={bins} chosen={iteration}>
          {(bin) => <Numbers bin={bin} mean={mean} digits={digits} />}
        </Readout>
      }
      table={<ChartTable caption={`${label} over iterations`} columns={COLUMNS} rows={rows} />}
      legend={<Legend mean={mean} selection={selection} />}
    >
      <Distribution {...{ bins, mean, height, describe }} label={`${label} over iterations`} chosen={iteration} to={toBin} does={doing} />
    </ChartCard>
  );
}

function Numbers({ bin, mean, digits }: { bin: SeriesBin; mean: boolean; digits: number }) {
  const format = (value: Float | null) => number(value, digits);
  return (
    <>
      <Value name="n">{count(bin.n)}</Value>
      {mean && <Value name="mean">{format(bin.mean)}</Value>}
      <Value name="median">{format(bin.median)}</Value>
      <Value name="quartiles">
        {format(bin.q25)} to {format(bin.q75)}
      </Value>
      <Value name="5–95 %">
        {format(bin.q05)} to {format(bin.q95)}
      </Value>
      <Value name="missing" className={bin.missing > 0 ? "warn" : ""}>
        {count(bin.missing)}
      </Value>
      {bin.non_finite > 0 && (
        <Value name="not finite" className="bad">
          {count(bin.non_finite)}
        </Value>
      )}
    </>
  );
}

function Legend({ mean, selection }: { mean: boolean; selection: Selection }) {
  return (
    <ul className="legend">
      <li>
        <a href={selection.with({ mean: mean ? "0" : null })} aria-label={mean ? "Hide the mean" : "Show the mean"} aria-current={mean}>
          <span className={`legend-mark line ${mean ? "series-2" : "quiet-part"}`} aria-hidden="true" /> mean{mean ? "" : " (hidden)"}
        </a>
      </li>
      <li className="soft">
        <span className="legend-mark line series-1" aria-hidden="true" /> median
      </li>
      <li className="soft">
        <span className="legend-mark band" aria-hidden="true" /> middle half
      </li>
      <li className="soft">
        <span className="legend-mark band wide" aria-hidden="true" /> 5–95 %
      </li>
    </ul>
  );
}

function words(bin: SeriesBin): string {
  const missing = bin.missing > 0 ? `, ${bin.missing} missing` : "";
  const quartiles = `quartiles ${number(bin.q25)} to ${number(bin.q75)}`;
  return `${iterationsOf(bin)}: ${bin.n} values, mean ${number(bin.mean)}, median ${number(bin.median)}, ${quartiles}${missing}`;
}

const cells = (bin: SeriesBin): string[] => [
  iterationsOf(bin).replace(/^Iterations? /, ""),
  count(bin.rollouts),
  count(bin.n),
  count(bin.missing),
  ...[bin.mean, bin.q05, bin.q25, bin.median, bin.q75, bin.q95].map((value) => number(value)),
];
