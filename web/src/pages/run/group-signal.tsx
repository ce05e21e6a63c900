// The fractions of groups over iterations with different rewards, equal rewards, or too few rewards.
import { useCallback } from "react";
import { filter } from "../../addresses";
import { ChartTable, linkedCell } from "../../charts/chart-table";
import { type StackPart, StackedBars } from "../../charts/stacked-bars";
import { iterationsOf } from "../../charts/ticks";
import { count, plural, percent } from "../../format";
import type { OutcomesBin } from "../../source/schema";
import { ChartCard, ZoomLink, isZoomed, Readout, Value } from "./chart-card";
import { type Selection, within } from "./selection";

const WITHOUT = "no signal";
const FEW = "fewer than two rewards";
const WITH = "signal";
const PARTS: readonly StackPart[] = [
  { name: WITHOUT, colour: "series-2" },
  { name: FEW, colour: "series-5" },
  { name: WITH, colour: "calm" },
];
/** As the column `group_signal` says it. */
const VALUES: Record<string, string> = { [WITH]: "yes", [WITHOUT]: "no", [FEW]: "too few" };
const LABEL = "Groups without signal over iterations, as shares of all groups";

export const groupsWithout = (selection: Selection, ...filters: string[]): string => selection.rollouts(...filters, filter("group_signal", "is", "no"));

export function GroupSignal({ bins, selection, height }: { bins: readonly OutcomesBin[]; selection: Selection; height: number }) {
  const pieceLink = useCallback((bin: OutcomesBin, part: string) => selection.rollouts(...within(bin), filter("group_signal", "is", VALUES[part] ?? "")), [selection]);
  const pieceLabel = useCallback((bin: OutcomesBin, part: string) => `${iterationsOf(bin)}, ${part}: ${plural(amount(bin, part), "group")}`, []);
  const describe = useCallback((index: number) => (bins[index] === undefined ? "" : words(bins[index])), [bins]);
  const to = useCallback((index: number) => (bins[index] === undefined ? "" : pieceLink(bins[index], WITHOUT)), [bins, pieceLink]);
  const rows = bins.map((bin) => ({
    to: pieceLink(bin, WITHOUT),
    cells: [
      iterationsOf(bin).replace(/^Iterations? /, ""),
      count(bin.groups),
      ...PARTS.map(({ name }) => linkedCell(count(amount(bin, name)), amount(bin, name), pieceLink(bin, name))),
    ],
  }));
  const shown = PARTS.filter(({ name }) => bins.some((bin) => amount(bin, name) > 0));
  return (
    <ChartCard
      name="signal"
      title="Groups without signal"
      selection={selection}
      controls={bins.some((bin) => bin.groups_without_signal > 0) && <ZoomLink name="signal" selection={selection} />}
      readout={
        <Readout bins={bins} chosen={selection.iteration}>
          {(bin) => (
            <>
              <Value name="groups">{count(bin.groups)}</Value>
              {PARTS.map(({ name }) => (amount(bin, name) > 0 || name === WITHOUT) && <Value key={name} name={name}>{percent(amount(bin, name), bin.groups)}</Value>)}
            </>
          )}
        </Readout>
      }
      table={<ChartTable caption={LABEL} columns={["Iteration", "Groups", ...PARTS.map(({ name }) => name)]} rows={rows} />}
      legend={
        <ul className="legend">
          {shown.map((part) => (
            <li key={part.name}>
              <a href={selection.rollouts(filter("group_signal", "is", VALUES[part.name] ?? ""))}>
                <span className={`legend-mark ${part.colour}`} aria-hidden="true" /> {part.name}
              </a>
            </li>
          ))}
        </ul>
      }
    >
      <StackedBars
        {...{ bins, amount, pieceLink, pieceLabel, describe, to, height }}
        parts={PARTS}
        whole={groupsOf}
        zoomedParts={isZoomed(selection, "signal") ? 2 : undefined}
        label={LABEL}
        chosen={selection.iteration}
      />
    </ChartCard>
  );
}

const groupsOf = (bin: OutcomesBin): number => bin.groups;

function amount(bin: OutcomesBin, part: string): number {
  if (part === WITH) return bin.groups_with_signal;
  return part === WITHOUT ? bin.groups_without_signal : bin.groups - bin.groups_with_signal - bin.groups_without_signal;
}

const words = (bin: OutcomesBin): string =>
  `${iterationsOf(bin)}: ${plural(bin.groups, "group")}, ${percent(bin.groups_without_signal, bin.groups)} without signal`;
