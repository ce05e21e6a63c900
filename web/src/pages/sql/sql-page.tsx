// SQL over the tables of a run: write a statement, run it, read the rows.
import { useQuery } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { toRollouts, toRun, toRuns } from "../../addresses";
import { Empty } from "../../parts/states";
import { changed, go, Link, useRoute } from "../../router";
import { Shell } from "../../shell";
import { useSource } from "../../source/source";
import type { RunResponse, SqlResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import { Editor } from "./editor";
import { Reference } from "./reference";
import { Result } from "./result";
import "./sql.css";

const LIMIT = 1_000;
export const MOST = 10_000;

export function SqlPage({ run }: { run: string }) {
  const { live } = useSource();
  const { data } = useAnswer<RunResponse>("run", { run });
  return (
    <Shell crumbs={[{ label: "Runs", to: toRuns() }, { label: data?.name ?? run, to: toRun(run) }, { label: "SQL" }]} run={run} tab="sql">
      {live ? (
        <SqlView run={run} />
      ) : (
        <Empty title="A report cannot run SQL">
          Its <Link to={toRollouts(run)}>rollouts</Link> can be filtered; <code>rolltrace view</code> runs SQL.
        </Empty>
      )}
    </Shell>
  );
}

function SqlView({ run }: { run: string }) {
  const route = useRoute();
  const asked = route.parameters.get("q") ?? "";
  const limit = route.parameters.get("limit") === String(MOST) ? MOST : LIMIT;
  const [text, setText] = useState({ of: asked, draft: asked });
  // Going back and forth brings the statement of that address.
  if (text.of !== asked) setText({ of: asked, draft: asked });
  const answer = useStatement(run, asked, limit);
  const { refetch } = answer;
  const start = useCallback(
    (sql: string) => {
      const wanted = sql.trim();
      if (wanted === asked) void refetch();
      else go(changed(route, { q: wanted, limit: null }));
    },
    [asked, route, refetch],
  );
  const write = useCallback((draft: string) => setText((before) => ({ ...before, draft })), []);
  return (
    <div className="sql">
      <h1 className="only-heard">SQL</h1>
      <Editor text={text.draft} write={write} start={start} running={answer.isFetching} />
      <Reference run={run} />
      <Result run={run} asked={asked} answer={answer} more={limit < MOST ? () => go(changed(route, { limit: MOST })) : null} />
    </div>
  );
}

/** A statement is run on demand, and not again when the run grows. */
function useStatement(run: string, sql: string, limit: number) {
  const source = useSource();
  return useQuery<SqlResponse, Error>({
    queryKey: ["sql", run, sql, limit],
    queryFn: () => source.ask<SqlResponse>("sql", { run, sql, limit }),
    enabled: sql !== "",
    staleTime: Infinity,
    retry: false,
  });
}
