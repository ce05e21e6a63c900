// One member: its reward with its terms, its numbers, and its messages.
import { memo, useRef } from "react";
import { toRollout } from "../../addresses";
import { count, memberNumber, number, plural, seconds } from "../../format";
import { StopReasonBadge } from "../../parts/badge";
import { FailureBox } from "../../parts/failure";
import { Advantage, Reward } from "../../parts/reward";
import { Name } from "../../parts/text";
import { Link } from "../../router";
import type { Member, MemberName } from "../../source/schema";
import { MemberText } from "./member-text";
import { nameOf, type Row } from "./numbers";
import { type Extent, Terms } from "./terms";

/** What is the same for all columns. */
export interface ColumnFrame {
  run: string;
  terms: readonly Row[];
  extent: Extent;
  /** Whether each reward is its one term. */
  oneTerm: boolean;
  numbers: readonly Row[];
  scores: readonly Row[];
  /** How many numbers are not shown, because all members share them. */
  hidden: number;
  severalPolicies: boolean;
}

interface MemberColumnProperties {
  frame: ColumnFrame;
  member: Member;
  place: number;
  /** The member with which it is compared. */
  other: MemberName | null;
  selected: boolean;
  width: number | null;
  /** Where its last response is compared with the other's, word by word. */
  toCompare: string | null;
  toAllNumbers: string;
}

export const MemberColumn = memo(function MemberColumn({ frame, member, place, other, selected, width, toCompare, toAllNumbers }: MemberColumnProperties) {
  const column = useRef<HTMLElement>(null);
  const neighbour = other === null ? null : memberNumber(other.index);
  return (
    <article
      ref={column}
      className={selected ? "group-column group-selected" : "group-column"}
      style={width === null ? undefined : { width, flexBasis: width }}
      aria-label={`Member ${member.index ?? member.id}`}
      data-member={member.id}
      {...(selected ? { "aria-current": "true" as const } : {})}
    >
      <header>
        <div className="row spread">
          <h3>
            <Link to={toRollout(frame.run, member.id)} title="Open the rollout">
              {nameOf(member)}
            </Link>
          </h3>
          <span className="group-reward">
            <Reward value={member.reward} />
          </span>
        </div>
        <div className="row spread small">
          <StopReasonBadge reason={member.stop_reason} status={member.status} />
          <span title="Advantage: the reward less the group's mean">
            <span className="faint">adv </span>
            <Advantage value={member.advantage} />
          </span>
        </div>
        <p className="small faint group-size">
          {member.completion_tokens !== null && `${count(member.completion_tokens)} tokens · `}
          {plural(member.steps, "step")} · {seconds(member.seconds)}
          {member.attempt > 0 && ` · attempt ${member.attempt + 1}`}
        </p>
      </header>
      <div className="group-column-body">
        {frame.severalPolicies && (
          <p className="small soft">
            Policy <Name text={`${member.policy}${member.policy_version === null ? "" : ` @ ${member.policy_version}`}`} />
          </p>
        )}
        {member.error !== null && <FailureBox error={member.error} />}
        <Terms member={member} place={place} rows={frame.terms} extent={frame.extent} oneTerm={frame.oneTerm} />
        {frame.numbers.length > 0 && <RewardNumbers rows={frame.numbers} place={place} caption="Reward data" />}
        {frame.hidden > 0 && (
          <Link className="small" to={toAllNumbers}>
            {plural(frame.hidden, "number")} more, the same for all
          </Link>
        )}
        {frame.scores.length > 0 && <RewardNumbers rows={frame.scores} place={place} caption="Later scores" />}
        <div className="group-jump row wrap">
          {member.differs !== null && (
            <button type="button" className="button" onClick={() => jump(column.current)}>
              ↓ Where it differs from {neighbour}
            </button>
          )}
          {neighbour !== null && member.differs === null && <span className="badge">says the same as {neighbour}</span>}
          {toCompare !== null && member.differs !== null && (
            <Link className="button quiet" to={toCompare} title={`Compare with ${neighbour} word by word (d)`} aria-label={`Compare ${nameOf(member)} with ${neighbour} word by word`}>
              ⇄ words
            </Link>
          )}
        </div>
        <MemberText run={frame.run} member={member} neighbour={neighbour} />
      </div>
    </article>
  );
});

/** Brings the mark in a column into sight. */
export function jump(column: Element | null): void {
  const mark = column?.querySelector<HTMLElement>("[data-mark]");
  if (mark === null || mark === undefined) return;
  mark.scrollIntoView({ block: "center", inline: "nearest" });
  mark.focus({ preventScroll: true });
}

function RewardNumbers({ rows, place, caption }: { rows: readonly Row[]; place: number; caption: string }) {
  return (
    <table className="group-numbers">
      <caption>{caption}</caption>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name} className={row.differs ? "group-differs" : undefined}>
            <th scope="row">
              <Name text={row.name} most={80} />
            </th>
            <td className="number">{number(row.values[place])}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
