// Why rollouts stopped, over iterations, as shares of all rollouts.
import { useCallback, useMemo } from "react";
import { filter } from "../../addresses";
import { Figures, linked } from "../../charts/figures";
import { isCalm, OTHERS, reasonParts } from "../../charts/palette";
import { Shares, type Share } from "../../charts/shares";
import { iterationsOf } from "../../charts/ticks";
import { count, plural, share } from "../../format";
import { Name } from "../../parts/name";
import { plain } from "../../parts/plain";
import type { OutcomesBin } from "../../source/schema";
import { ChartCard, Closely, isClose, Readout, Value } from "./chart-card";
import { within, type Selection } from "./selection";

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
  const behind = useCallback((bin: OutcomesBin, part: string) => selection.rollouts(...within(bin), ...reasonFilters(parts, part)), [selection, parts]);
  const does = useCallback((bin: OutcomesBin, part: string) => `${iterationsOf(bin)}, ${plain(part)}: ${plural(amount(bin, part), "rollout")}`, [amount]);
  const told = useCallback((index: number) => (bins[index] === undefined ? "" : words(bins[index], parts, amount)), [bins, parts, amount]);
  const to = useCallback((index: number) => (bins[index] === undefined ? "" : selection.rollouts(...within(bins[index]))), [bins, selection]);
  const all = bins.reduce((sum, bin) => sum + bin.rollouts, 0);
  const rows = bins.map((bin) => ({
    to: selection.rollouts(...within(bin)),
    cells: [
      iterationsOf(bin).replace(/^Iterations? /, ""),
      count(bin.rollouts),
      ...parts.map(({ name }) => linked(share(amount(bin, name), bin.rollouts), amount(bin, name), behind(bin, name))),
    ],
  }));
  return (
    <ChartCard
      name="stops"
      title="Stop reasons"
      selection={selection}
      controls={parts.some((part) => !isCalm(part)) && <Closely name="stops" selection={selection} />}
      readout={
        <Readout bins={bins} chosen={selection.iteration}>
          {(bin) => <Reasons bin={bin} parts={parts} amount={amount} />}
        </Readout>
      }
      figures={<Figures caption={LABEL} columns={["Iteration", "Rollouts", ...parts.map(({ name }) => plain(name, 40))]} rows={rows} />}
      legend={
        <ul className="legend">
          {parts.map((part) => (
            <li key={part.name}>
              <a href={selection.rollouts(...reasonFilters(parts, part.name))}>
                <span className={`legend-mark ${part.colour}`} aria-hidden="true" />{" "}
                <Name text={part.name} />{" "}
                <span className="number">{share(bins.reduce((sum, bin) => sum + amount(bin, part.name), 0), all)}</span>
              </a>
            </li>
          ))}
        </ul>
      }
    >
      <Shares
        {...{ bins, parts, amount, behind, does, told, to, height }}
        whole={rolloutsOf}
        closely={isClose(selection, "stops") ? parts.filter((part) => !isCalm(part)).length : undefined}
        label={LABEL}
        chosen={selection.iteration}
      />
    </ChartCard>
  );
}

const rolloutsOf = (bin: OutcomesBin): number => bin.rollouts;

function Reasons({ bin, parts, amount }: { bin: OutcomesBin; parts: readonly Share[]; amount: (bin: OutcomesBin, part: string) => number }) {
  const most = parts.map(({ name }) => ({ name, n: amount(bin, name) })).filter(({ n }) => n > 0);
  return (
    <>
      <Value name="n">{count(bin.rollouts)}</Value>
      {most.slice(0, 4).map(({ name, n }) => (
        <Value key={name} name={plain(name, 24)}>
          {share(n, bin.rollouts)}
        </Value>
      ))}
    </>
  );
}

function words(bin: OutcomesBin, parts: readonly Share[], amount: (bin: OutcomesBin, part: string) => number): string {
  const each = parts.map(({ name }) => ({ name, n: amount(bin, name) })).filter(({ n }) => n > 0);
  return `${iterationsOf(bin)}: ${plural(bin.rollouts, "rollout")}; ${each.map(({ name, n }) => `${plain(name)} ${share(n, bin.rollouts)}`).join(", ")}`;
}

/** All reasons of some bins with how often they occur. */
export function sums(bins: readonly { stop_reasons: Record<string, number> }[]): Map<string, number> {
  const totals = new Map<string, number>();
  for (const bin of bins) for (const [name, n] of Object.entries(bin.stop_reasons)) totals.set(name, (totals.get(name) ?? 0) + n);
  return totals;
}

/** How many rollouts a part has; of very many reasons, the rare ones are not told by name. */
export function amountOf(reasons: Record<string, number>, rollouts: number, parts: readonly Share[], part: string): number {
  if (!isRest(parts, part)) return Object.hasOwn(reasons, part) ? (reasons[part] ?? 0) : 0;
  return rollouts - named(parts).reduce((sum, name) => sum + amountOf(reasons, rollouts, parts, name), 0);
}

/** Filters for the rollouts of a part: its reason, or none of those that have a part of their own. */
export function reasonFilters(parts: readonly Share[], part: string): string[] {
  if (!isRest(parts, part)) return [filter("stop_reason", "is", part)];
  return named(parts).map((name) => filter("stop_reason", "not", name));
}

const named = (parts: readonly Share[]): string[] => parts.filter((part) => !isRest(parts, part.name)).map(({ name }) => name);

// A reason may have the very name of the rest, but then there are fewer than eight parts.
const isRest = (parts: readonly Share[], part: string): boolean => part === OTHERS && parts.length === 8;
