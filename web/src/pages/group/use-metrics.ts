// The metrics of a group's members, requested only when they are shown.
import { useMemo } from "react";
import { filtersOf } from "../../addresses";
import { encodeNames } from "../../column-names";
import { useAnswer } from "../../source/use-answer";
import type { Float, GroupComparison, RolloutsResponse, RunResponse } from "../../source/schema";
import { type Row, rowsOf } from "./numbers";

/** The limit for the metrics in the table. */
const MOST = 40;
const PREFIX = "metrics.";

export function useMetrics(run: string, group: GroupComparison, enabled: boolean): Row[] {
  const about = useAnswer<RunResponse>("run", { run }, { enabled });
  const names = (about.data?.measures ?? []).filter((measure) => measure.kind === "metrics").map((measure) => measure.name).slice(0, MOST);
  const listing = useAnswer<RolloutsResponse>(
    "rollouts",
    {
      run,
      filter: filtersOf(group),
      columns: encodeNames(names),
      limit: group.members.length,
    },
    { enabled: enabled && names.length > 0, keep: false },
  );
  return useMemo(() => {
    const byId = new Map((listing.data?.rows ?? []).map((row) => [row.id, row]));
    return rowsOf(group.members, (member) =>
      Object.fromEntries(names.flatMap((name) => (isNumber(byId.get(member.id)?.[name]) ? [[name.slice(PREFIX.length), byId.get(member.id)?.[name] as Float]] : []))),
    );
    // The names come with the answer about the run.
  }, [listing.data, about.data, group.members]);
}

const isNumber = (value: unknown): boolean => typeof value === "number" || value === "NaN" || value === "Infinity" || value === "-Infinity";
