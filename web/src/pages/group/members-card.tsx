// The members: side by side, as a table, or two of them word by word.
import { useMemo } from "react";
import { filtersOf } from "../../addresses";
import { encodeNames } from "../../column-names";
import { plural } from "../../format";
import { Link } from "../../router";
import type { Float, GroupComparison, RolloutsResponse, RunResponse } from "../../source/schema";
import { useAnswer } from "../../source/use-answer";
import type { GroupState } from "./group-state";
import type { ColumnFrame } from "./member-column";
import { MemberColumns } from "./member-columns";
import { MembersTable } from "./members-table";
import "./members.css";
import { type Row, rowsOf, termRows } from "./numbers";
import { PairComparison } from "./pair-comparison";
import { SingleMember } from "./single-member";
import { extentOf } from "./terms";

/** With more numbers than these, a column shows only those in which members differ. */
const MANY = 12;

interface MembersCardProperties {
  run: string;
  group: GroupComparison;
  state: GroupState;
  narrow: boolean;
}

export function MembersCard({ run, group, state, narrow }: MembersCardProperties) {
  const { members } = group;
  const metrics = useMetrics(run, group, state.view === "table" && state.pair === null);
  const frame = useMemo(() => frameOf(run, group, state.allNumbers), [run, group, state.allNumbers]);
  return (
    <section className="card group-members" aria-label="Members">
      <header>
        <div className="row">
          <h2>Members</h2>
          <span className="small soft">{plural(members.length, "rollout")}, the best reward first</span>
        </div>
        <div className="row" role="group" aria-label="How members are shown">
          <Choice to={state.to({ view: null, compare: null })} chosen={state.pair === null && state.view === "columns"} label={narrow ? "One by one" : "Columns"} />
          <Choice to={state.to({ view: "table", compare: null })} chosen={state.pair === null && state.view === "table"} label="Table" />
          {members.length > 1 && <Choice to={state.to({ compare: pairFor(group, state) })} chosen={state.pair !== null} label="Compare two" />}
        </div>
      </header>
      {members.length === 0 ? (
        <p className="body soft">There are no rollouts in this group.</p>
      ) : state.pair !== null ? (
        <PairComparison run={run} members={members} pair={state.pair} state={state} />
      ) : state.view === "table" ? (
        <MembersTable run={run} members={members} metrics={metrics} state={state} />
      ) : narrow ? (
        <SingleMember frame={frame} members={members} state={state} />
      ) : (
        <MemberColumns frame={frame} members={members} state={state} />
      )}
    </section>
  );
}

function Choice({ to, chosen, label }: { to: string; chosen: boolean; label: string }) {
  return (
    <Link className="button" to={to} {...(chosen ? { "aria-current": "true" as const } : {})}>
      {label}
    </Link>
  );
}

/** The best and the worst, unless a member is chosen: then that and its neighbour. */
function pairFor(group: GroupComparison, state: GroupState): string {
  const { members } = group;
  const place = state.named && state.selected !== undefined ? members.indexOf(state.selected) : -1;
  const worst = members.findLast((member) => member.reward !== null && member !== members[0]) ?? members.at(-1);
  if (place < 0) return `${members[0]?.id},${worst?.id}`;
  return place === 0 ? `${members[0]?.id},${members[1]?.id}` : `${members[place - 1]?.id},${members[place]?.id}`;
}

function frameOf(run: string, group: GroupComparison, all: boolean): ColumnFrame {
  const { members } = group;
  const numbers = rowsOf(members, (member) => member.reward_data);
  const shown = all || numbers.length <= MANY ? numbers : numbers.filter((row) => row.differs);
  const terms = termRows(members);
  return {
    run,
    terms,
    oneTerm: terms.length === 1 && members.every((member, place) => (terms[0]?.values[place] ?? null) === member.reward),
    extent: extentOf(members),
    numbers: shown,
    hidden: numbers.length - shown.length,
    scores: rowsOf(members, (member) => member.scores),
    severalPolicies: new Set(members.map((member) => `${member.policy} ${member.policy_version}`)).size > 1,
  };
}

/** The limit for the metrics in the table. */
const MOST = 40;
const PREFIX = "metrics.";

function useMetrics(run: string, group: GroupComparison, enabled: boolean): Row[] {
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
