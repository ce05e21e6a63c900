// Numbers about the rows of a report, computed as the server computes them about a run.
import { max, mean, min, quantileSorted } from "d3-array";
import type { Parameters } from "../source";
import type { EnvironmentsResponse, Float, HistogramResponse, Json, NumberStats, OutcomesBin, OutcomesResponse, SeriesResponse } from "../schema";
import { edgesOf, inBins } from "./edges";
import type { Row } from "./rows";

const MOST_SERIES_BINS = 200;
/** As the server has it. */
const HISTOGRAM_BINS = 20;

export function series(rows: readonly Row[], parameters: Parameters): SeriesResponse {
  const measure = String(parameters.measure ?? "reward");
  const bins = byIteration(rows).map(({ first, last, rows: some }) => {
    const values = finiteOf(some, measure);
    const at = (share: number) => told(quantileSorted(values, share));
    return {
      ...{ first, last, rollouts: some.length, ...spreadOf(some, measure) },
      ...{ q05: at(0.05), q25: at(0.25), median: at(0.5), q75: at(0.75), q95: at(0.95) },
    };
  });
  return { measure, bins };
}

export function outcomes(rows: readonly Row[], all: readonly Row[]): OutcomesResponse {
  const signals = signalsOf(all);
  return { bins: byIteration(rows).map((bin) => outcomesBin(bin, signals)) };
}

export function histogramOf(rows: readonly Row[], parameters: Parameters): HistogramResponse {
  const measure = String(parameters.measure ?? "reward");
  const { n, missing, non_finite } = spreadOf(rows, measure);
  const values = finiteOf(rows, measure);
  return { measure, bins: inBins(values, edgesOf(values, binsIn(parameters))), n, missing, non_finite };
}

export function environments(rows: readonly Row[], parameters: Parameters): EnvironmentsResponse {
  const measure = String(parameters.measure ?? "reward");
  const edges = edgesOf(finiteOf(rows, measure), binsIn(parameters));
  const found = [...grouped(rows, (row) => String(row.env))].map(([env, some]) => {
    const values = finiteOf(some, measure);
    return {
      ...{ env, rollouts: some.length, ...spreadOf(some, measure) },
      ...{ median: told(quantileSorted(values, 0.5)), bins: inBins(values, edges), stop_reasons: counted(some, (row) => row.stop_reason) },
    };
  });
  return { measure, environments: found.sort((one, other) => other.rollouts - one.rollouts || (one.env < other.env ? -1 : 1)) };
}

interface Span {
  first: number;
  last: number;
  rows: Row[];
}

function byIteration(rows: readonly Row[]): Span[] {
  const placed = rows.filter((row) => typeof row.iteration === "number");
  const first = min(placed, (row) => Number(row.iteration)) ?? 0;
  const last = max(placed, (row) => Number(row.iteration)) ?? 0;
  const width = Math.ceil((last - first + 1) / MOST_SERIES_BINS);
  const bins = grouped(placed, (row) => Math.floor((Number(row.iteration) - first) / width));
  return [...bins]
    .sort(([one], [other]) => one - other)
    .map(([number, some]) => {
      const from = first + number * width;
      return { first: from, last: Math.min(from + width - 1, last), rows: some };
    });
}

function outcomesBin({ first, last, rows }: Span, signals: ReadonlyMap<string, Signal>): OutcomesBin {
  const found = [...new Set(rows.map(groupOf))].map((key) => signals.get(key));
  return {
    first,
    last,
    rollouts: rows.length,
    stop_reasons: counted(rows, (row) => row.stop_reason),
    statuses: counted(rows, (row) => row.status),
    errors: counted(
      rows.filter((row) => row.error_type !== null),
      (row) => `${String(row.error_layer)}: ${String(row.error_type)}`,
    ),
    groups: found.length,
    groups_with_signal: found.filter((signal) => signal === "some").length,
    groups_without_signal: found.filter((signal) => signal === "none").length,
  };
}

/** `few`: less than two rewards, so that there is nothing to compare. */
type Signal = "some" | "none" | "few";

function signalsOf(rows: readonly Row[]): Map<string, Signal> {
  const groups = grouped(
    rows.filter((row) => row.retried !== true),
    groupOf,
  );
  return new Map(
    [...groups].map(([key, members]) => {
      const rewards = members.map((row) => row.reward).filter((reward) => reward !== null && reward !== undefined);
      return [key, new Set(rewards).size > 1 ? "some" : rewards.length > 1 ? "none" : "few"];
    }),
  );
}

function groupOf(row: Row): string {
  return JSON.stringify([row.split, row.iteration, row.env, row.group]);
}

function spreadOf(rows: readonly Row[], measure: string): NumberStats {
  const values = finiteOf(rows, measure);
  const missing = rows.filter((row) => (row[measure] ?? null) === null).length;
  return {
    ...{ n: values.length, missing, non_finite: rows.length - missing - values.length },
    ...{ mean: told(mean(values)), std: told(deviationOf(values)), min: values[0] ?? null, max: values.at(-1) ?? null },
  };
}

/** Of all values, step by step: so it is 0 of equal values that are too large to be added up. */
function deviationOf(values: readonly number[]): number | undefined {
  let [middle, squares] = [0, 0];
  values.forEach((value, place) => {
    const apart = value - middle;
    middle += apart / (place + 1);
    squares += apart * (value - middle);
  });
  return values.length === 0 ? undefined : Math.sqrt(squares / values.length);
}

/** As JSON has it. */
function told(value: number | undefined): Float | null {
  if (value === undefined) return null;
  return Number.isFinite(value) ? value : (String(value) as Float);
}

/** The finite values of a measure, from the smallest on. */
function finiteOf(rows: readonly Row[], measure: string): number[] {
  return rows
    .map((row) => row[measure])
    .filter((value): value is number => typeof value === "number")
    .sort((one, other) => one - other);
}

function counted(rows: readonly Row[], of: (row: Row) => Json | undefined): Record<string, number> {
  const counts = [...grouped(rows, (row) => String(of(row)))].map(([value, some]) => [value, some.length] as const);
  return Object.fromEntries(counts.sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1)));
}

function grouped<Key>(rows: readonly Row[], of: (row: Row) => Key): Map<Key, Row[]> {
  const groups = new Map<Key, Row[]>();
  for (const row of rows) {
    const key = of(row);
    const some = groups.get(key);
    if (some === undefined) groups.set(key, [row]);
    else some.push(row);
  }
  return groups;
}

const binsIn = (parameters: Parameters): number => Number(parameters.bins ?? HISTOGRAM_BINS);
