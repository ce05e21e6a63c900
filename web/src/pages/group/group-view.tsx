// The parts of a group's page, in order, and its keys.
import { useMemo } from "react";
import { toRollout } from "../../addresses";
import { StripPlot } from "../../charts/strip-plot";
import { finite, memberNumber, number, plural, signed } from "../../format";
import { FindingMarks } from "../../parts/finding-marks";
import { JsonTree } from "../../parts/json-tree";
import { MessageView } from "../../parts/message";
import { NARROW, useMedia } from "../../parts/use-media";
import { address, go, useRoute } from "../../router";
import { useShortcuts } from "../../shortcuts";
import { useMarks } from "../../source/findings";
import type { GroupComparison, GroupKey, GroupResponse } from "../../source/schema";
import { useSource } from "../../source/source";
import { EpisodesTable, isGame } from "./episodes-table";
import { GroupHead } from "./group-head";
import { GroupScores } from "./group-scores";
import { comparedWith, type GroupState, neighbouringWindow, useGroupState } from "./group-state";
import { jump } from "./member-column";
import { MembersCard } from "./members-card";
import { nameOf } from "./numbers";
import { PreferenceTable } from "./preference-table";
import { RegradeTable } from "./regrade-table";
import { RubricTable } from "./rubric-table";

export function GroupView({ run, answer }: { run: string; answer: GroupResponse }) {
  const { group } = answer;
  const route = useRoute();
  const state = useGroupState(group.members);
  const marks = useMarks(run);
  const narrow = useMedia(NARROW);
  const toGroup = (key: GroupKey): string => address(route.path, { ...key, view: route.parameters.get("view"), numbers: route.parameters.get("numbers") });
  const { live } = useSource();
  const dots = useMemo(() => {
    // Of a large group the marks show all rewards evenly; the selected member may be between them.
    const marked = new Set(group.marks.map((mark) => mark.id));
    const members = marked.size === 0 ? group.members : group.members.filter((member) => member === state.selected && !marked.has(member.id));
    return [
      ...members.map((member) => ({
        id: member.id,
        value: finite(member.reward),
        label: `${nameOf(member)}: reward ${number(member.reward)}, advantage ${signed(member.advantage)}`,
        to: state.to({ member: member.id, compare: null }),
      })),
      ...group.marks.map((mark) => ({
        id: mark.id,
        value: finite(mark.reward),
        label: `${memberNumber(mark.index)}: reward ${number(mark.reward)}`,
        to: live ? state.to({ member: mark.id, offset: String(mark.rank), compare: null }) : toRollout(run, mark.id),
      })),
    ];
  }, [run, live, group.members, group.marks, state]);
  useKeys(run, answer, state, toGroup);
  return (
    <div className="stack group-page">
      <section className="card group-summary" aria-label="The group">
        <div className="body stack">
          <GroupHead run={run} answer={answer} toMember={(id) => state.to({ member: id, compare: null })} toGroup={toGroup} />
          <FindingMarks run={run} marks={marks.ofGroup(group)} />
          <StripPlot dots={dots} mean={finite(group.mean)} std={finite(group.std)} selected={state.selected?.id} label="Rewards of the members; each leads to its member" />
        </div>
      </section>
      <SharedPrompt run={run} group={group} />
      {group.rubric !== null && <RubricTable rubric={group.rubric} members={group.members} state={state} />}
      {group.matrix !== null && <PreferenceTable matrix={group.matrix} members={group.members} state={state} />}
      {isGame(group.members) && <EpisodesTable members={group.members} state={state} />}
      <RegradeTable members={group.members} state={state} />
      <MembersCard run={run} group={group} state={state} narrow={narrow} />
      {group.scores.length > 0 && <GroupScores scores={group.scores} />}
    </div>
  );
}

function useKeys(run: string, answer: GroupResponse, state: GroupState, toGroup: (key: GroupKey) => string): void {
  const { live } = useSource();
  const keys = useMemo(() => {
    const { members } = answer.group;
    const place = state.selected === undefined ? -1 : members.indexOf(state.selected);
    const step = (by: -1 | 1) => () => {
      const window = neighbouringWindow(answer.group, by);
      const to = state.named ? place + by : 0;
      const next = members[Math.max(0, Math.min(members.length - 1, to))];
      if (members[to] === undefined && window !== null && live) go(state.to(window), { replace: true });
      else if (next !== undefined) go(state.to({ member: next.id, compare: null }), { replace: true });
    };
    const open = (): void => {
      if (state.selected !== undefined) go(toRollout(run, state.selected.id));
    };
    const compare = (): void => {
      const other = members.find((member) => member.id === comparedWith(answer.group, place)?.id);
      const next = members[place + 1];
      if (state.pair !== null) go(state.to({ compare: null }));
      else if (state.selected !== undefined && other !== undefined) go(state.to({ compare: `${other.id},${state.selected.id}` }));
      else if (state.selected !== undefined && next !== undefined) go(state.to({ compare: `${state.selected.id},${next.id}` }));
    };
    const mark = (): void => jump(document.querySelector(`[data-member="${CSS.escape(state.selected?.id ?? "")}"]`));
    return [
      { keys: "j", does: "Next member", run: step(1) },
      { keys: "k", does: "Previous member", run: step(-1) },
      { keys: "ArrowRight", does: "Next member", run: step(1) },
      { keys: "ArrowLeft", does: "Previous member", run: step(-1) },
      { keys: "Enter", does: "Open the member's rollout", run: open },
      { keys: "x", does: "Go to where the member first differs", run: mark },
      { keys: "d", does: "Compare the member with its neighbour, word by word", run: compare },
      { keys: "v", does: "Switch between columns and table", run: () => go(state.to({ view: state.view === "table" ? null : "table", compare: null })) },
      ...(answer.previous === null ? [] : [{ keys: "[", does: "Previous group", run: () => go(toGroup(answer.previous as GroupKey)) }]),
      ...(answer.next === null ? [] : [{ keys: "]", does: "Next group", run: () => go(toGroup(answer.next as GroupKey)) }]),
    ];
    // `toGroup` follows from the address, as the state does.
  }, [run, answer, state]);
  useShortcuts(keys);
}

function SharedPrompt({ run, group }: { run: string; group: GroupComparison }) {
  const data = Object.keys(group.task_data).length > 0;
  return (
    <section className="card group-shared" aria-label="The task">
      <header>
        <h2>Shared prompt</h2>
        {group.shared.length > 0 && <span className="small soft">{plural(group.shared.length + group.shared_omitted, "message")} that every member was sent</span>}
      </header>
      <div className="body stack">
        {group.shared.length === 0 && <p className="soft">The first prompts have no message in common: each member has its own below.</p>}
        {group.shared.map((excerpt, place) => (
          <MessageView key={place} run={run} message={excerpt.message} cut={excerpt.omitted} />
        ))}
        {group.shared_omitted > 0 && <p className="small soft">{plural(group.shared_omitted, "more message")} not shown here.</p>}
        {data && (
          <details className="group-data">
            <summary>Task data, with the reference answer where there is one</summary>
            <JsonTree value={group.task_data} open={2} />
          </details>
        )}
      </div>
    </section>
  );
}
