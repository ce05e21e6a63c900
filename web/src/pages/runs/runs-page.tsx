// The list of all runs: state, progress, reward, and errors.
import { useCallback, useMemo, useState } from "react";
import { count, plural } from "../../format";
import { Answered, Empty, Loading } from "../../parts/states";
import { plainText } from "../../parts/text";
import { changed, go, Link, type Route, useRoute } from "../../router";
import { Shell } from "../../shell";
import { useShortcuts } from "../../shortcuts";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import type { RunsResponse } from "../../source/schema";
import { RunRow } from "./run-row";
import "./runs.css";
import { matching, type Order, orderOf, sorted, written } from "./sorting";

const MOST = 200;
const COLUMNS: readonly [name: string, title: string, firstDown: boolean][] = [
  ["name", "Run", false],
  ["state", "State", false],
  ["progress", "Rollouts", true],
  ["reward", "Reward", true],
  ["errors", "Errors", true],
  ["env", "Environments", false],
  ["policy", "Policies", false],
  ["written", "Written", true],
  ["size", "Size", true],
];

export function RunsPage() {
  const answer = useAnswer<RunsResponse>("runs", {}, { isPartial: ({ pending }) => pending > 0 });
  useShortcuts(useMemo(() => KEYS, []));
  return (
    <Shell crumbs={[{ label: "Runs" }]}>
      <Answered of={answer} loading={<Loading lines={8} height={30} />}>
        {(known) => (known.runs.length === 0 ? <NoRuns folder={known.folder} /> : <Listing answer={known} />)}
      </Answered>
    </Shell>
  );
}

function Listing({ answer }: { answer: RunsResponse }) {
  const route = useRoute();
  const words = route.parameters.get("q") ?? "";
  const order = orderOf(route.parameters.get("sort"));
  const [shown, setShown] = useState(MOST);
  const { column, down } = order;
  const found = useMemo(() => sorted(matching(answer.runs, words), { column, down }), [answer.runs, words, column, down]);
  const search = useCallback((text: string) => go(changed(route, { q: text }), { replace: true }), [route]);
  return (
    <div className="runs stack">
      <header className="row wrap spread">
        <div>
          <h1>Runs</h1>
          <p className="small faint runs-where" title={plainText(answer.folder, 1_000)}>
            {found.length < answer.total && `${count(found.length)} of `}
            {plural(answer.total, "run")} in <bdi>{plainText(answer.folder, 120)}</bdi> · Rolltrace {plainText(answer.version, 24)}
          </p>
          {answer.pending > 0 && (
            <p className="small soft" role="status">
              Reading {plural(answer.pending, "run")}: numbers that are missing here follow.
            </p>
          )}
          {answer.runs.length < answer.total && <p className="small warn">Only the newest {count(answer.runs.length)} are listed here, and filtered.</p>}
        </div>
        <input
          id="runs-filter"
          className="field runs-filter"
          type="search"
          placeholder="Filter by name, environment, policy"
          aria-label="Filter runs"
          aria-keyshortcuts="/"
          value={words}
          onChange={(event) => search(event.target.value)}
        />
      </header>
      {found.length === 0 ? (
        <Empty title="No run matches">
          <p>
            Nothing here is called <bdi>“{plainText(words)}”</bdi>.
          </p>
          <button type="button" className="button" onClick={() => search("")}>
            Show all runs
          </button>
        </Empty>
      ) : (
        <div className="card runs-card">
          <table role="table" className="runs-table">
            <caption className="only-heard">Runs</caption>
            <Head order={order} route={route} />
            <tbody role="rowgroup">
              {found.slice(0, shown).map((run) => (
                <RunRow key={run.key} run={run} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {found.length > shown && (
        <button type="button" className="button" onClick={() => setShown(shown + 5 * MOST)}>
          Show {count(Math.min(found.length - shown, 5 * MOST))} more of {plural(found.length, "run")}
        </button>
      )}
    </div>
  );
}

function Head({ order, route }: { order: Order; route: Route }) {
  return (
    <thead role="rowgroup">
      <tr role="row">
        {COLUMNS.map(([column, title, firstDown]) => {
          const here = order.column === column;
          const next: Order = { column, down: here ? !order.down : firstDown };
          return (
            <th key={column} role="columnheader" scope="col" className={`runs-head-${column}`} aria-sort={here ? (order.down ? "descending" : "ascending") : "none"}>
              <Link to={changed(route, { sort: written(next) })}>
                {title}
                <span aria-hidden="true">{here ? (order.down ? " ↓" : " ↑") : ""}</span>
              </Link>
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function NoRuns({ folder }: { folder: string }) {
  const { live } = useSource();
  return (
    <Empty title="No runs yet">
      <p>
        There is no run in <code>{plainText(folder, 200)}</code>.
      </p>
      {live && (
        <>
          <p>Record one, and it appears here while it is played:</p>
          <pre className="runs-command">rolltrace run arithmetic --policy local --out {plainText(folder, 200)}/first</pre>
        </>
      )}
    </Empty>
  );
}

/** Moves the focus by so many runs; Enter then opens the one that has it. */
function move(by: number): void {
  const links = [...document.querySelectorAll<HTMLAnchorElement>(".runs-link")];
  const here = links.findIndex((link) => link === document.activeElement);
  const next = here < 0 ? (by > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, here + by));
  links[next]?.focus();
  links[next]?.scrollIntoView({ block: "nearest" });
}

const KEYS = [
  { keys: "j", does: "The next run; Enter opens it", run: () => move(1) },
  { keys: "k", does: "The run before", run: () => move(-1) },
  { keys: "/", does: "Filter runs", run: () => document.getElementById("runs-filter")?.focus() },
];
