// The members: side by side, as a table, or two of them word by word.
import { useMemo } from "react";
import { filtersOf } from "../../addresses";
import { encodeNames } from "../../column-names";
import { count, plural } from "../../format";
import { Link } from "../../router";
import type { Float, GroupComparison, RolloutsResponse, RunResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { useAnswer } from "../../source/use-answer";
import { type GroupState, neighbouringWindow } from "./group-state";
import type { ColumnFrame } from "./member-column";
import { MemberColumns } from "./member-columns";
import { MembersTable } from "./members-table";
import "./members.css";
import { nameOf, type Row, rowsOf, termRows } from "./numbers";
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
  const { live } = useSource();
  const metrics = useMetrics(run, group, state.view === "table" && state.pair === null);
  const frame = useMemo(() => frameOf(run, group, state.allNumbers), [run, group, state.allNumbers]);
  return (
    <section className="card group-members" aria-label="Members">
      <header>
        <div className="row">
          <h2>Members</h2>
          <WindowLinks group={group} state={state} />
        </div>
        {live && members.length > 1 && <ReferenceChoice group={group} state={state} />}
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
        <SingleMember frame={frame} group={group} state={state} />
      ) : (
        <MemberColumns frame={frame} group={group} state={state} />
      )}
    </section>
  );
}

/** Which members are shown, and links to those before and after them. */
function WindowLinks({ group, state }: { group: GroupComparison; state: GroupState }) {
  const { live } = useSource();
  const { members, offset, size } = group;
  if (group.omitted === 0) return <span className="small soft">{plural(members.length, "rollout")}, the best reward first</span>;
  if (!live) return <span className="small soft">the {count(members.length)} best of {count(size)} rollouts; the others are in the listing</span>;
  const [before, after] = [neighbouringWindow(group, -1), neighbouringWindow(group, 1)];
  return (
    <nav className="row small soft" aria-label="Other members">
      {before !== null && (
        <Link className="button quiet" to={state.to(before)} aria-label="Better members">
          ‹
        </Link>
      )}
      <span>
        {count(offset + 1)} to {count(offset + members.length + group.unreadable)} of {count(size)} rollouts, the best reward first
      </span>
      {after !== null && (
        <Link className="button quiet" to={state.to(after)} aria-label="Worse members">
          ›
        </Link>
      )}
    </nav>
  );
}

/** Which member all others are compared with: each the one before it, or one for all. */
function ReferenceChoice({ group, state }: { group: GroupComparison; state: GroupState }) {
  const best = group.marks[0]?.id ?? (group.offset === 0 ? group.members[0]?.id : undefined);
  const chosen = group.is_against ? group.reference : null;
  const selected = state.named && state.selected?.id !== best ? state.selected : undefined;
  return (
    <div className="row small" role="group" aria-label="What members are compared with">
      <span className="soft">Differences from</span>
      <Choice to={state.to({ against: null })} chosen={chosen === null} label="the one before" />
      {best !== undefined && <Choice to={state.to({ against: best })} chosen={chosen?.id === best} label="the best" />}
      {chosen !== null && chosen.id !== best && chosen.id !== selected?.id && <Choice to={state.to({ against: chosen.id })} chosen label={nameOf(chosen)} />}
      {selected !== undefined && <Choice to={state.to({ against: selected.id })} chosen={chosen?.id === selected.id} label={nameOf(selected)} />}
    </div>
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
      // The order of the members.
      sort: "-reward",
      offset: group.offset,
      limit: group.members.length + group.unreadable,
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
