// What a group is, how its rewards stand, and whether it teaches anything.
import { filter, toRollouts } from "../../addresses";
import { count, number, plural } from "../../format";
import { Badge } from "../../parts/badge";
import { plain } from "../../parts/plain";
import { Visible } from "../../parts/said";
import { Link } from "../../router";
import type { Comparison, GroupAnswer, GroupKey, Member } from "../../source/types";
import { nameOf } from "./numbers";

interface GroupHeadProperties {
  run: string;
  answer: GroupAnswer;
  toMember: (id: string) => string;
  toGroup: (key: GroupKey) => string;
}

export function GroupHead({ run, answer, toMember, toGroup }: GroupHeadProperties) {
  const { group } = answer;
  const failed = group.members.filter((member) => member.error !== null || member.status !== "ok");
  const here = [filter("split", "is", group.split), filter("iteration", "is", group.iteration), filter("env", "is", group.env), filter("group", "is", group.group)];
  return (
    <>
      <header className="group-head">
        <div className="group-title">
          <h1>
            <bdi>
              <Visible text={group.group.slice(0, 200)} />
            </bdi>{" "}
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
          <Step to={answer.previous} toGroup={toGroup} word="Previous" mark="←" keys="[" />
          <Step to={answer.next} toGroup={toGroup} word="Next" mark="→" keys="]" />
        </nav>
      </header>
      <Signal group={group} />
      <dl className="group-facts">
        <Fact name="Members" value={count(group.size)} />
        <Fact name="With a reward" value={count(group.n)} tone={group.n < group.size ? "warn" : ""} />
        <Fact name="Mean reward" value={number(group.mean)} />
        <Fact name="Spread" value={number(group.spread)} title="Standard deviation" />
        {failed.length > 0 && (
          <div>
            <dt>Failed</dt>
            <dd>
              <FailedMembers members={failed} toMember={toMember} />
            </dd>
          </div>
        )}
        {group.retried > 0 && (
          <div>
            <dt>Tried again</dt>
            <dd>
              <Link to={toRollouts(run, { filter: here, retried: 1 })}>{plural(group.retried, "attempt")}</Link>
            </dd>
          </div>
        )}
      </dl>
      {group.omitted > 0 && (
        <p className="small warn">
          Shown are the {count(group.members.length)} members with the best rewards; {count(group.omitted)} more are in the <Link to={toRollouts(run, { filter: here })}>listing</Link>.
        </p>
      )}
    </>
  );
}

function Name({ text }: { text: string }) {
  return (
    <bdi>
      <Visible text={text.slice(0, 120)} />
    </bdi>
  );
}

function Signal({ group }: { group: Comparison }) {
  if (group.no_signal === null) return null;
  return (
    <div className="group-no-signal" role="note">
      <strong>No signal</strong>
      <span className="said">
        <Visible text={group.no_signal} />
      </span>
    </div>
  );
}

function SignalBadge({ group }: { group: Comparison }) {
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
            <bdi>
              <Visible text={member.error === null ? member.status : `${member.error.layer}: ${member.error.type.slice(0, 80)}`} />
            </bdi>
          </span>
        </li>
      ))}
      {members.length > shown.length && <li className="small soft">and {members.length - shown.length} more</li>}
    </ul>
  );
}

function Fact({ name, value, tone = "", title }: { name: string; value: string; tone?: string; title?: string }) {
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd className={`number ${tone}`}>{value}</dd>
    </div>
  );
}

function Step({ to, toGroup, word, mark, keys }: { to: GroupKey | null; toGroup: (key: GroupKey) => string; word: string; mark: string; keys: string }) {
  if (to === null)
    return (
      <button type="button" className="button" disabled aria-label={`${word} group: there is none`}>
        {mark}
      </button>
    );
  return (
    <Link className="button" to={toGroup(to)} aria-label={`${word} group`} title={`${word} group: ${plain(`${to.env} ${to.group}`)}, iteration ${to.iteration} (${keys})`}>
      {mark}
    </Link>
  );
}
