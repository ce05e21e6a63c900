// Links to the previous and next rollout of the listing that this one was opened from; the next one is prefetched.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, type Route } from "../../router";
import type { NeighboursResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import { listing, toListing, toNeighbour } from "./view-state";

export interface NeighbourLinks {
  previous: string | null;
  next: string | null;
  list: string;
  /** Its position in the listing, in words. */
  place: string;
}

export function useNeighbours(run: string, id: string, route: Route): NeighbourLinks {
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

export function NeighbourBar({ neighbours, group }: { neighbours: NeighbourLinks; group: string }) {
  return (
    <nav className="rollout-neighbours" aria-label="Other rollouts">
      <NeighbourLink to={neighbours.previous} label="Previous rollout" keys="k">
        ‹ Previous
      </NeighbourLink>
      <Link className="rollout-place number" to={neighbours.list} title="Back to the listing (l)">
        {neighbours.place}
      </Link>
      <NeighbourLink to={neighbours.next} label="Next rollout" keys="j">
        Next ›
      </NeighbourLink>
      <Link className="button" to={group} title="Up to the group (u)">
        ↑ Group
      </Link>
    </nav>
  );
}

function NeighbourLink({ to, label, keys, children }: { to: string | null; label: string; keys: string; children: string }) {
  if (to === null)
    return (
      <span className="button rollout-nowhere" aria-disabled="true" role="link" aria-label={label}>
        {children}
      </span>
    );
  return (
    <Link className="button" to={to} aria-label={label} title={`${label} (${keys})`}>
      {children}
    </Link>
  );
}
