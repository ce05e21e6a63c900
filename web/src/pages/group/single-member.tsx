// One member at a time, for narrow screens.
import { number } from "../../format";
import { go, Link } from "../../router";
import type { GroupComparison, Member } from "../../source/schema";
import { comparedWith, type GroupState } from "./group-state";
import { MemberColumn, type ColumnFrame } from "./member-column";
import { nameOf } from "./numbers";

export function SingleMember({ frame, group, state }: { frame: ColumnFrame; group: GroupComparison; state: GroupState }) {
  const { members } = group;
  const member = state.selected;
  if (member === undefined) return null;
  const place = members.indexOf(member);
  const other = comparedWith(group, place);
  return (
    <div className="group-single">
      <div className="group-switch row">
        <NeighbourLink to={members[place - 1]} state={state} word="Better member" mark="‹" />
        <select className="field" aria-label="Member" value={member.id} onChange={(event) => go(state.to({ member: event.target.value }))}>
          {members.map((one, rank) => (
            <option key={one.id} value={one.id}>
              {group.offset + rank + 1} of {group.size}: {nameOf(one)}, {number(one.reward)}
            </option>
          ))}
        </select>
        <NeighbourLink to={members[place + 1]} state={state} word="Worse member" mark="›" />
      </div>
      <MemberColumn
        key={member.id}
        frame={frame}
        member={member}
        place={place}
        other={other}
        selected
        width={null}
        toCompare={members.every((one) => one.id !== other?.id) ? null : state.to({ compare: `${other?.id},${member.id}` })}
        toAllNumbers={state.to({ numbers: "all" })}
      />
    </div>
  );
}

function NeighbourLink({ to, state, word, mark }: { to: Member | undefined; state: GroupState; word: string; mark: string }) {
  if (to === undefined)
    return (
      <button type="button" className="button" disabled aria-label={`${word}: there is none`}>
        {mark}
      </button>
    );
  return (
    <Link className="button" to={state.to({ member: to.id })} aria-label={word}>
      {mark}
    </Link>
  );
}
