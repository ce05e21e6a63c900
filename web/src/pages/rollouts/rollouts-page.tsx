// The rollouts of a run: a table of any size, filtered, searched and sorted by the server.
import { useCallback, useMemo, useState } from "react";
import { toRun, toRuns } from "../../addresses";
import { count, plural } from "../../format";
import { Answered, Loading } from "../../parts/states";
import { NARROW, useMedia } from "../../parts/use-media";
import { Shell } from "../../shell";
import type { RunResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { Chips } from "./chips";
import { byName, chosen, labelled } from "./columns";
import { DistributionCard } from "./distribution";
import { isNarrowed, SinceContext, useListing, type Listing } from "./listing";
import { RolloutTable } from "./rollout-table";
import "./rollouts.css";
import "./rollouts-table.css";
import { type TextSearch, useTextSearch } from "./text-search";
import { Toolbar } from "./toolbar";
import type { Rows } from "./use-rows";

type ListingStatus = Pick<Rows, "total" | "error" | "awaited">;

export function RolloutsPage({ run }: { run: string }) {
  const answer = useAnswer<RunResponse>("run", { run });
  const crumbs = [{ label: "Runs", to: toRuns() }, { label: answer.data?.name ?? run, to: toRun(run) }, { label: "Rollouts" }];
  return (
    <Shell crumbs={crumbs} run={run} tab="rollouts">
      <Answered of={answer} loading={<Loading lines={12} />}>
        {(known) => <SearchedRollouts run={known} />}
      </Answered>
    </Shell>
  );
}

function SearchedRollouts({ run }: { run: RunResponse }) {
  const { listing } = useListing();
  const search = useTextSearch(run.key, listing.search);
  return (
    <SinceContext value={search.since}>
      <RolloutsView run={run} search={search} />
    </SinceContext>
  );
}

function RolloutsView({ run: known, search }: { run: RunResponse; search: TextSearch }) {
  const run = useMemo(() => labelled(known), [known]);
  const { listing, change } = useListing();
  const [status, setStatus] = useState<ListingStatus>({ total: null, error: null, awaited: true });
  const narrow = useMedia(NARROW);
  const columns = useMemo(() => byName(run.columns), [run.columns]);
  const shown = useMemo(() => chosen(listing.columns, columns, narrow), [listing.columns, columns, narrow]);
  const onStatus = useCallback((rows: ListingStatus) => setStatus(rows), []);
  return (
    <div className="rollouts">
      <div className="rollouts-title">
        <h1>Rollouts</h1>
        <p className="soft number" role="status">
          {countText(status, listing, run, search)}
        </p>
        {search.progress !== null && search.progress.since !== "" && (
          <button type="button" className="button" onClick={search.toggle}>
            {search.going ? "Stop searching" : "Go on searching"}
          </button>
        )}
      </div>
      <Toolbar run={run} columns={columns} shown={shown} error={status.error} />
      <Chips columns={columns} />
      <DistributionCard run={run.key} measures={run.measures} />
      <section className="card rollouts-card" aria-label="Table of rollouts">
        <RolloutTable run={run} columns={shown} listing={listing} change={change} onStatus={onStatus} />
      </section>
    </div>
  );
}

/** How many there are, in words. */
function countText({ total, error, awaited }: ListingStatus, listing: Listing, run: RunResponse, { progress, going }: TextSearch): string {
  if (progress !== null && progress.since !== "")
    return `${plural(progress.hits, "hit")}${going ? " so far" : ""}, searched ${count(progress.searched)} of ${plural(progress.total, "rollout")}, newest first`;
  if (awaited && error === null) return listing.search === "" ? "Counting…" : "Searching prompts and responses…";
  if (total === null) return "";
  const all = run.rollouts + (listing.retried ? run.retried : 0);
  return isNarrowed(listing) ? `${count(total)} of ${plural(all, "rollout")}` : plural(total, "rollout");
}
