// The state of a rollout's page in its address, including the listing that it was opened from.
import { toRollout, toRollouts } from "../../addresses";
import { address, changed, type Route } from "../../router";
import type { Parameters } from "../../source/source";
import type { Rollout, Step } from "../../source/schema";

const TABS = ["step", "state", "prompt", "tokens", "calls", "scores", "about", "raw"] as const;
export type Tab = (typeof TABS)[number];

const OWN = ["step", "tab", "wide", "find"] as const;
const ASKED = ["filter", "search", "since", "where", "retried", "sort"] as const;

interface ViewState {
  /** The step that was chosen; null where none was. */
  step: number | null;
  tab: Tab | null;
  wide: boolean;
  find: string;
}

export function viewState({ parameters }: Route): ViewState {
  const step = parameters.get("step");
  const tab = parameters.get("tab");
  return {
    step: step !== null && /^\d{1,9}$/.test(step) ? Number(step) : null,
    tab: TABS.find((one) => one === tab) ?? null,
    wide: parameters.get("wide") === "1",
    find: parameters.get("find") ?? parameters.get("search") ?? "",
  };
}

/** The step that the panel is about: the chosen one, else the first. */
export function shownStep(rollout: Rollout, state: ViewState): Step | null {
  return rollout.steps.find((one) => one.step === state.step) ?? rollout.steps[0] ?? null;
}

/** The address of this view with another step, tab or width. */
export const toView = (route: Route, changes: Parameters): string => changed(route, changes);

/** The address of this view with something else to find; what the listing searched for is found unless one says otherwise. */
export function toFind(route: Route, find: string): string {
  const parameters = new URLSearchParams(route.parameters);
  if (find === "" && !parameters.has("search")) parameters.delete("find");
  else parameters.set("find", find);
  return address(route.path, parameters);
}

/** The parameters of the listing, as the question for neighbours takes them. */
export function listing(route: Route): Parameters {
  return Object.fromEntries(ASKED.filter((name) => route.parameters.has(name)).map((name) => [name, route.parameters.getAll(name)]));
}

/** Another rollout of the same listing; the tab stays. */
export function toNeighbour(run: string, id: string, route: Route): string {
  const parameters = new URLSearchParams(route.parameters);
  parameters.delete("step");
  parameters.delete("find");
  return toRollout(run, id, parameters);
}

export function toListing(run: string, route: Route): string {
  const parameters = new URLSearchParams(route.parameters);
  for (const name of [...OWN, "since"]) parameters.delete(name);
  return toRollouts(run, parameters);
}
