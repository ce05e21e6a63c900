// Requests an answer for a component, and again whenever the run has changed.
import { keepPreviousData, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { useSource, type Parameters } from "./source";
import type { RevisionsResponse } from "./schema";

const LOOK_EVERY = 1_400; // with the time of an answer, a page about a growing run is less than 2 s old
const REVISIONS = ["revisions"];

interface Options<Answer> {
  enabled?: boolean;
  /** Whether to request the answer again after a while. */
  isPartial?: (answer: Answer) => boolean;
  /** Whether to show the previous answer until this one arrives; by default yes. */
  keep?: boolean;
}

/** Query keys are [run key, question, parameters], so that all queries about one run can be invalidated together. */
export function useAnswer<Answer>(question: string, parameters: Parameters = {}, options: Options<Answer> = {}): UseQueryResult<Answer, Error> {
  const source = useSource();
  return useQuery<Answer, Error>({
    queryKey: [String(parameters.run ?? ""), question, parameters],
    queryFn: () => source.ask<Answer>(question, parameters),
    enabled: options.enabled ?? parameters.since !== null, // of a search that has not found anything yet
    refetchInterval: ({ state }) => (state.data !== undefined && options.isPartial?.(state.data) ? LOOK_EVERY : false),
    ...(options.keep === false ? {} : { placeholderData: keepPreviousData }),
  });
}

/** The error if the server does not respond; null while it does. */
export function useLostServer(): Error | null {
  const source = useSource();
  const { error } = useQuery({ queryKey: REVISIONS, queryFn: () => source.ask<RevisionsResponse>("revisions"), enabled: false });
  return error;
}

/** Polls which runs have changed, and invalidates their queries and the list of runs. */
export function useLiveRuns(): void {
  const source = useSource();
  const client = useQueryClient();
  const known = useRef<Record<string, string> | null>(null);
  const { data } = useQuery({
    queryKey: REVISIONS,
    queryFn: () => source.ask<RevisionsResponse>("revisions"),
    enabled: source.live,
    refetchInterval: LOOK_EVERY,
    retry: false,
  });
  useEffect(() => {
    if (data === undefined) return;
    const before = known.current;
    known.current = data.revisions;
    if (before === null) return;
    const changed = [...new Set([...Object.keys(before), ...Object.keys(data.revisions)])].filter((key) => before[key] !== data.revisions[key]);
    // Running requests are not cancelled: a slow one about a growing run would otherwise never finish.
    const options = { cancelRefetch: false };
    for (const key of changed) void client.invalidateQueries({ queryKey: [key] }, options);
    if (changed.length > 0) void client.invalidateQueries({ queryKey: ["", "runs"] }, options);
  }, [data, client]);
}
