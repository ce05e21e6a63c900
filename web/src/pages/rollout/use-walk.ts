// Previous and next in the listing that the rollout was opened from; the next one is fetched ahead.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import type { Route } from "../../router";
import { useSource } from "../../source/source";
import type { NeighboursResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { listing, toListing, toNeighbour } from "./view-state";

export interface Walk {
  previous: string | null;
  next: string | null;
  list: string;
  /** Where it stands, in words. */
  place: string;
}

export function useWalk(run: string, id: string, route: Route): Walk {
  const source = useSource();
  const client = useQueryClient();
  const { data, isPlaceholderData } = useAnswer<NeighboursResponse>("neighbours", { run, id, ...listing(route) });
  const known = isPlaceholderData ? undefined : data;
  const next = known?.next ?? null;
  useEffect(() => {
    if (next === null) return;
    const parameters = { run, id: next };
    void client.prefetchQuery({ queryKey: [run, "rollout", parameters], queryFn: () => source.ask("rollout", parameters) });
  }, [client, source, run, next]);
  return {
    previous: known?.previous == null ? null : toNeighbour(run, known.previous, route),
    next: next === null ? null : toNeighbour(run, next, route),
    list: toListing(run, route),
    place: placeText(data),
  };
}

function placeText(neighbours: NeighboursResponse | undefined): string {
  if (neighbours === undefined) return "…";
  const total = neighbours.total.toLocaleString("en");
  return neighbours.position === null ? `not among these ${total}` : `${(neighbours.position + 1).toLocaleString("en")} of ${total}`;
}
