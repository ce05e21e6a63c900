// The selection of a run's page in its address, and the addresses of the rollouts behind a mark.
import { useMemo } from "react";
import { filter, toRollouts } from "../../addresses";
import { changed, useRoute, type Route } from "../../router";
import type { Parameters } from "../../source/source";
import type { Bin, RunResponse } from "../../source/schema";


export const ALL = "*";

/** The most bins of a histogram; reports are made for this number. */
export const HISTOGRAM_BINS = 24;

export interface Selection {
  run: string;
  route: Route;
  /** Null: all of them. */
  split: string | null;
  env: string | null;
  measure: string;
  /** An iteration of the bin that was clicked on. */
  iteration: number | null;
  mean: boolean;
  /** Filters for the split and the environment. */
  filters: readonly string[];
  /** This view with other parameters. */
  with: (changes: Parameters) => string;
  /** The rollouts of the selection that also pass these filters. */
  rollouts: (...filters: readonly string[]) => string;
}

export function useSelection(run: string, answer: RunResponse | undefined): Selection {
  const route = useRoute();
  return useMemo(() => select(run, route, answer), [run, route, answer]);
}

function select(run: string, route: Route, answer: RunResponse | undefined): Selection {
  const { parameters } = route;
  const split = chosenSplit(parameters.get("split"), answer);
  const env = parameters.get("env");
  const iteration = parameters.get("iteration");
  const filters = filtersFor(split, env);
  return {
    run,
    route,
    split,
    env,
    measure: parameters.get("measure") ?? "reward",
    iteration: iteration !== null && /^-?\d{1,15}$/.test(iteration) ? Number(iteration) : null,
    mean: parameters.get("mean") !== "0",
    filters,
    with: (changes) => changed(route, changes),
    rollouts: (...more) => toRollouts(run, { filter: [...filters, ...more] }),
  };
}

/** Filters for a split and an environment; null is any. */
export const filtersFor = (split: string | null, env: string | null): string[] => [
  ...(split === null ? [] : [filter("split", "is", split)]),
  ...(env === null ? [] : [filter("env", "is", env)]),
];

/** By default a single split: training and evaluations are not mixed. */
function chosenSplit(asked: string | null, answer: RunResponse | undefined): string | null {
  if (asked !== null) return asked === ALL ? null : asked;
  const splits = answer?.splits ?? [];
  return splits.length > 1 ? (splits.find(({ value }) => value === "train") ?? splits[0])?.value ?? null : null;
}

/** A rollout that failed before its first response has no length; its sum over steps would be 0. */
export const ANSWERED = filter("steps", "min", 1);

/** Filters for the iterations of a bin. */
export const within = (bin: { first: number; last: number }): string[] => [filter("iteration", "min", bin.first), filter("iteration", "max", bin.last)];

/** Filters for the values of a bar. */
export function valued(measure: string, bin: Bin, last: boolean): string[] {
  if (bin.low === bin.high) return [filter(measure, "is", bin.low)];
  return [filter(measure, "min", bin.low), filter(measure, last ? "max" : "below", bin.high)];
}
