// The head of a group's page: what it is, its rewards, and whether it has a learning signal.
import { filtersOf, toRollouts } from "../../addresses";
import { count, number, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { Fact } from "../../parts/fact";
import { Name, plainText, VisibleText } from "../../parts/text";
import { Link } from "../../router";
import type { GroupComparison, GroupKey, GroupResponse, Member } from "../../source/schema";
import { nameOf } from "./numbers";

interface GroupHeadProperties {
  run: string;
  answer: GroupResponse;
  toMember: (id: string) => string;
  toGroup: (key: GroupKey) => string;
}

export function GroupHead({ run, answer, toMember, toGroup }: GroupHeadProperties) {
  const { group } = answer;
  const failed = group.members.filter((member) => member.error !== null || member.status !== "ok");
  const here = filtersOf(group);
  return (
    <>
      <header className="group-head">
        <div className="group-title">
          <h1>
            <Name text={group.group} most={200} />{" "}
            <SignalBadge group={group} />
          </h1>
          <p className="soft small">
            Group of <Name text={group.split} /> · iteration {group.iteration} · env <Name text={group.env} />
            {group.task !== group.group && (
              <>
                {" "}
                · task <Name text={group.task} />
              </>
            )}{" "}
            · <Link to={toRollouts(run, { filter: here })}>as a listing</Link>
          </p>
        </div>
        <nav className="row" aria-label="Other groups">
          <NeighbourLink to={answer.previous} toGroup={toGroup} word="Previous" mark="←" keys="[" />
          <NeighbourLink to={answer.next} toGroup={toGroup} word="Next" mark="→" keys="]" />
        </nav>
      </header>
      <Signal group={group} />
      <Collision group={group} />
      <dl className="group-facts">
        <Fact name="Members">{count(group.size)}</Fact>
        <Fact name="With a reward">
          <span className={group.n < group.size ? "warn" : undefined}>{count(group.n)}</span>
        </Fact>
        <Fact name="Mean reward">{number(group.mean)}</Fact>
        <Fact name="Std" title="Standard deviation">
          {number(group.std)}
        </Fact>
        {failed.length > 0 && (
          <Fact name="Failed">
            <FailedMembers members={failed} toMember={toMember} />
          </Fact>
        )}
        {group.retried > 0 && (
          <Fact name="Tried again">
            <Link to={toRollouts(run, { filter: here, retried: 1 })}>{plural(group.retried, "attempt")}</Link>
          </Fact>
        )}
      </dl>
      {group.unreadable > 0 && <p className="small bad">{plural(group.unreadable, "member")} cannot be read: the file is damaged there.</p>}
    </>
  );
}

function Signal({ group }: { group: GroupComparison }) {
  if (group.no_signal === null) return null;
  return (
    <div className="group-no-signal" role="note">
      <strong>No signal</strong>
      <span className="long-text">
        <VisibleText text={group.no_signal} />
      </span>
    </div>
  );
}

function Collision({ group }: { group: GroupComparison }) {
  if (group.collides === 0) return null;
  return (
    <div className="group-no-signal" role="note">
      <strong>Collision</strong>
      <span>
        {plural(group.collides, "member")} {group.collides === 1 ? "has" : "have"} a place that another session recorded at the same time. All of them count, so this is several groups in one.
      </span>
    </div>
  );
}

function SignalBadge({ group }: { group: GroupComparison }) {
  return group.no_signal === null ? (
    <Badge tone="good" title="Rewards differ: members have advantages">
      carries a signal
    </Badge>
  ) : (
    <Badge tone="warn">no signal</Badge>
  );
}

function FailedMembers({ members, toMember }: { members: readonly Member[]; toMember: (id: string) => string }) {
  const shown = members.slice(0, 4);
  return (
    <ul className="group-failed">
      {shown.map((member) => (
        <li key={member.id}>
          <Link to={toMember(member.id)}>{nameOf(member)}</Link>{" "}
          <span className="bad small">
            <Name text={member.error === null ? member.status : `${member.error.layer}: ${member.error.type}`} most={100} />
          </span>
        </li>
      ))}
      {members.length > shown.length && <li className="small soft">and {members.length - shown.length} more</li>}
    </ul>
  );
}

function NeighbourLink({ to, toGroup, word, mark, keys }: { to: GroupKey | null; toGroup: (key: GroupKey) => string; word: string; mark: string; keys: string }) {
  if (to === null)
    return (
      <button type="button" className="button" disabled aria-label={`${word} group: there is none`}>
        {mark}
      </button>
    );
  return (
    <Link className="button" to={toGroup(to)} aria-label={`${word} group`} title={`${word} group: ${plainText(`${to.env} ${to.group}`)}, iteration ${to.iteration} (${keys})`}>
      {mark}
    </Link>
  );
}
