// The last responses of two members, word by word.
import { useMemo } from "react";
import { toRollout } from "../../addresses";
import { count, number } from "../../format";
import { Answered, Loading } from "../../parts/states";
import { Reward } from "../../parts/reward";
import { LongText, VisibleText } from "../../parts/text";
import { go, Link } from "../../router";
import { useAnswer } from "../../source/use-answer";
import type { Member, Message, RolloutResponse } from "../../source/schema";
import type { GroupState } from "./group-state";
import { nameOf } from "./numbers";
import { type Stretch, wordDifferences } from "./word-differences";

interface PairComparisonProperties {
  run: string;
  members: readonly Member[];
  pair: [Member, Member];
  state: GroupState;
}

export function PairComparison({ run, members, pair: [first, second], state }: PairComparisonProperties) {
  const choose = (one: string, other: string): void => go(state.to({ compare: `${one},${other}` }), { replace: true });
  return (
    <div className="group-pair">
      <div className="row wrap group-pair-choice">
        <Chooser label="First member" members={members} chosen={first} other={second} choose={(id) => choose(id, second.id)} />
        <button type="button" className="button quiet" onClick={() => choose(second.id, first.id)} aria-label="Swap the two members">
          ⇄
        </button>
        <Chooser label="Second member" members={members} chosen={second} other={first} choose={(id) => choose(first.id, id)} />
        <Link className="button" to={state.to({ compare: null })}>
          Close
        </Link>
      </div>
      <LastResponse run={run} member={first}>
        {(one) => (
          <LastResponse run={run} member={second}>
            {(other) => <Both run={run} members={[first, second]} messages={[one, other]} />}
          </LastResponse>
        )}
      </LastResponse>
    </div>
  );
}

interface ChooserProperties {
  label: string;
  members: readonly Member[];
  chosen: Member;
  other: Member;
  choose: (id: string) => void;
}

function Chooser({ label, members, chosen, other, choose }: ChooserProperties) {
  return (
    <select className="field" aria-label={label} value={chosen.id} onChange={(event) => choose(event.target.value)}>
      {members
        .filter((member) => member !== other)
        .map((member) => (
          <option key={member.id} value={member.id}>
            {nameOf(member)}, reward {number(member.reward)}
          </option>
        ))}
    </select>
  );
}

/** The last response of a member: from the comparison if it has all of it, else from the record. */
function LastResponse({ run, member, children }: { run: string; member: Member; children: (message: Message | null) => React.ReactNode }) {
  const near = member.messages.findLast((excerpt) => excerpt.step !== null);
  const isWhole = member.omitted === 0 && (near === undefined || near.omitted === 0);
  const record = useAnswer<RolloutResponse>("rollout", { run, id: member.id }, { enabled: !isWhole, keep: false });
  if (isWhole) return <>{children(near?.message ?? null)}</>;
  return (
    <Answered of={record} loading={<Loading />}>
      {({ rollout }) => {
        const response = rollout.steps.at(-1)?.response;
        return children(typeof response === "number" ? (rollout.messages[response] ?? null) : (response ?? null));
      }}
    </Answered>
  );
}

function Both({ run, members, messages }: { run: string; members: [Member, Member]; messages: [Message | null, Message | null] }) {
  if (messages.every((message) => message === null)) return <p className="soft">Neither has a response.</p>;
  return (
    <div className="stack">
      <div className="group-panes">
        {members.map((member) => (
          <h3 key={member.id}>
            <Link to={toRollout(run, member.id)}>{nameOf(member)}</Link> <Reward value={member.reward} />
          </h3>
        ))}
      </div>
      <Section name="Reasoning" texts={[messages[0]?.reasoning ?? "", messages[1]?.reasoning ?? ""]} />
      <Section name="Text" texts={[messages[0]?.content ?? "", messages[1]?.content ?? ""]} />
      <Section name="Tool calls" texts={[callsOf(messages[0]), callsOf(messages[1])]} />
    </div>
  );
}

const callsOf = (message: Message | null): string => (message?.tool_calls ?? []).map((call) => `${call.name} ${call.arguments ?? "{}"}`).join("\n");

/** The longest texts that are compared; longer ones are shown as they are. */
const LONGEST = 200_000;

function Section({ name, texts: [first, second] }: { name: string; texts: [string, string] }) {
  const stretches = useMemo(() => (first.length + second.length > LONGEST ? null : wordDifferences(first, second)), [first, second]);
  if (first === "" && second === "") return null;
  return (
    <section aria-label={name}>
      <h4 className="small soft">
        {name}
        {stretches !== null && <span className="faint"> · {differenceText(stretches)}</span>}
      </h4>
      {stretches === null && (
        <p className="small warn">
          {first.length + second.length > LONGEST
            ? `Together they have ${count(first.length + second.length)} characters, more than can be compared word by word: they stand here as they are.`
            : "They have too little in common to be compared word by word: they stand here as they are."}
        </p>
      )}
      <div className="group-panes">
        <Pane stretches={stretches} own="first" text={first} />
        <Pane stretches={stretches} own="second" text={second} />
      </div>
    </section>
  );
}

function Pane({ stretches, own, text }: { stretches: Stretch[] | null; own: "first" | "second"; text: string }) {
  if (text === "") return <div className="group-pane faint">none</div>;
  if (stretches === null)
    return (
      <div className="group-pane">
        <LongText text={text} />
      </div>
    );
  return (
    <div className="group-pane long-text" dir="auto">
      {stretches.map((stretch, place) =>
        stretch.kind === "same" ? (
          <span key={place} className="group-soft">
            <VisibleText text={stretch.text} />
          </span>
        ) : stretch.kind === own ? (
          <mark key={place} className={`group-${own}`}>
            <VisibleText text={stretch.text} />
          </mark>
        ) : null,
      )}
    </div>
  );
}

function differenceText(stretches: readonly Stretch[]): string {
  const size = (kind: Stretch["kind"]): number => stretches.reduce((sum, stretch) => sum + (stretch.kind === kind ? stretch.text.length : 0), 0);
  const same = size("same");
  const all = same + Math.max(size("first"), size("second"));
  if (all === same) return "the same, word for word";
  return `${Math.round((100 * same) / Math.max(1, all))} % in common`;
}
