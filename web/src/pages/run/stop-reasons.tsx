// Stop reasons over iterations, as fractions of all rollouts.
import { useCallback, useMemo } from "react";
import { filter } from "../../addresses";
import { ChartTable, linkedCell } from "../../charts/chart-table";
import { isCalm, OTHERS, reasonParts } from "../../charts/palette";
import { type StackPart, StackedBars } from "../../charts/stacked-bars";
import { iterationsOf } from "../../charts/ticks";
import { count, plural, percent } from "../../format";
import { Name, plainText } from "../../parts/text";
import type { OutcomesBin } from "../../source/schema";
import { ChartCard, ZoomLink, isZoomed, Readout, Value } from "./chart-card";
import { type Selection, within } from "./selection";

interface Properties {
  bins: readonly OutcomesBin[];
  selection: Selection;
  height: number;
}

const LABEL = "Stop reasons over iterations, as shares of all rollouts";

export function StopReasons({ bins, selection, height }: Properties) {
  const totals = useMemo(() => sums(bins), [bins]);
  const parts = useMemo(() => reasonParts(totals), [totals]);
  const amount = useCallback((bin: OutcomesBin, part: string) => amountOf(bin.stop_reasons, bin.rollouts, parts, part), [parts]);
  const pieceLink = useCallback((bin: OutcomesBin, part: string) => selection.rollouts(...within(bin), ...reasonFilters(parts, part)), [selection, parts]);
  const pieceLabel = useCallback((bin: OutcomesBin, part: string) => `${iterationsOf(bin)}, ${plainText(part)}: ${plural(amount(bin, part), "rollout")}`, [amount]);
  const describe = useCallback((index: number) => (bins[index] === undefined ? "" : words(bins[index], parts, amount)), [bins, parts, amount]);
  const to = useCallback((index: number) => (bins[index] === undefined ? "" : selection.rollouts(...within(bins[index]))), [bins, selection]);
  const all = bins.reduce((sum, bin) => sum + bin.rollouts, 0);
  const rows = bins.map((bin) => ({
    to: selection.rollouts(...within(bin)),
    cells: [
      iterationsOf(bin).replace(/^Iterations? /, ""),
      count(bin.rollouts),
      ...parts.map(({ name }) => linkedCell(percent(amount(bin, name), bin.rollouts), amount(bin, name), pieceLink(bin, name))),
    ],
  }));
  return (
    <ChartCard
      name="stops"
      title="Stop reasons"
      selection={selection}
      controls={parts.some((part) => !isCalm(part)) && <ZoomLink name="stops" selection={selection} />}
      readout={
        <Readout bins={bins} chosen={selection.iteration}>
          {(bin) => <Reasons bin={bin} parts={parts} amount={amount} />}
        </Readout>
      }
      table={<ChartTable caption={LABEL} columns={["Iteration", "Rollouts", ...parts.map(({ name }) => plainText(name, 40))]} rows={rows} />}
      legend={
        <ul className="legend">
          {parts.map((part) => (
            <li key={part.name}>
              <a href={selection.rollouts(...reasonFilters(parts, part.name))}>
                <span className={`legend-mark ${part.colour}`} aria-hidden="true" />{" "}
                <Name text={part.name} />{" "}
                <span className="number">{percent(bins.reduce((sum, bin) => sum + amount(bin, part.name), 0), all)}</span>
              </a>
            </li>
          ))}
        </ul>
      }
    >
      <StackedBars
        {...{ bins, parts, amount, pieceLink, pieceLabel, describe, to, height }}
        whole={rolloutsOf}
        zoomedParts={isZoomed(selection, "stops") ? parts.filter((part) => !isCalm(part)).length : undefined}
        label={LABEL}
        chosen={selection.iteration}
      />
    </ChartCard>
  );
}

const rolloutsOf = (bin: OutcomesBin): number => bin.rollouts;

function Reasons({ bin, parts, amount }: { bin: OutcomesBin; parts: readonly StackPart[]; amount: (bin: OutcomesBin, part: string) => number }) {
  const most = parts.map(({ name }) => ({ name, n: amount(bin, name) })).filter(({ n }) => n > 0);
  return (
    <>
      <Value name="n">{count(bin.rollouts)}</Value>
      {most.slice(0, 4).map(({ name, n }) => (
        <Value key={name} name={plainText(name, 24)}>
          {percent(n, bin.rollouts)}
        </Value>
      ))}
    </>
  );
}

function words(bin: OutcomesBin, parts: readonly StackPart[], amount: (bin: OutcomesBin, part: string) => number): string {
  const each = parts.map(({ name }) => ({ name, n: amount(bin, name) })).filter(({ n }) => n > 0);
  return `${iterationsOf(bin)}: ${plural(bin.rollouts, "rollout")}; ${each.map(({ name, n }) => `${plainText(name)} ${percent(n, bin.rollouts)}`).join(", ")}`;
}

/** All reasons of some bins with how often they occur. */
export function sums(bins: readonly { stop_reasons: Record<string, number> }[]): Map<string, number> {
  const totals = new Map<string, number>();
  for (const bin of bins) for (const [name, n] of Object.entries(bin.stop_reasons)) totals.set(name, (totals.get(name) ?? 0) + n);
  return totals;
}

/** The number of rollouts of a part; the rare reasons are in one part together. */
export function amountOf(reasons: Record<string, number>, rollouts: number, parts: readonly StackPart[], part: string): number {
  if (!isRest(parts, part)) return Object.hasOwn(reasons, part) ? (reasons[part] ?? 0) : 0;
  return rollouts - named(parts).reduce((sum, name) => sum + amountOf(reasons, rollouts, parts, name), 0);
}

/** Filters for the rollouts of a part: its reason, or none of those that have a part of their own. */
export function reasonFilters(parts: readonly StackPart[], part: string): string[] {
  if (!isRest(parts, part)) return [filter("stop_reason", "is", part)];
  return named(parts).map((name) => filter("stop_reason", "not", name));
}

const named = (parts: readonly StackPart[]): string[] => parts.filter((part) => !isRest(parts, part.name)).map(({ name }) => name);

// A reason may have the very name of the rest, but then there are fewer than eight parts.
const isRest = (parts: readonly StackPart[], part: string): boolean => part === OTHERS && parts.length === 8;
