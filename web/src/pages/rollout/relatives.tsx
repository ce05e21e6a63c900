// Links to the other seats of a game, other attempts at the same slot, and other members of the group.
import type { ReactNode } from "react";
import { count, memberNumber, number } from "../../format";
import { Badge } from "../../parts/badge";
import { Name, plainText } from "../../parts/text";
import { Reward } from "../../parts/reward";
import { Link } from "../../router";
import type { RolloutResponse } from "../../source/schema";

export function Relatives({ answer, to }: { answer: RolloutResponse; to: (id: string) => string }) {
  const { rollout, seats, attempts, group } = answer;
  const { members } = group;
  if (seats.length < 2 && attempts.length < 2 && members.length < 2) return null;
  return (
    <div className="rollout-relatives">
      {seats.length > 1 && (
        <Family name="Seats">
          {seats.map((seat) => (
            <Relative key={seat.id} to={to(seat.id)} here={seat.id === rollout.id} title={`Seat ${seat.seat}, ${plainText(seat.policy, 60)}, ${plainText(seat.stop_reason, 40)}`}>
              seat {seat.seat} <b className="number mono">{number(seat.reward)}</b>
            </Relative>
          ))}
        </Family>
      )}
      {attempts.length > 1 && (
        <Family name="Attempts">
          {attempts.map((one) => (
            <Relative key={one.id} to={to(one.id)} here={one.id === rollout.id} title={`Attempt ${one.attempt}, ${one.status}${one.superseded ? ", superseded by a later session" : ""}${one.collides ? ", collides with another session" : ""}`}>
              attempt {one.attempt} <Badge tone={one.status === "ok" ? "plain" : "bad"}>
                <Name text={one.stop_reason} most={30} />
              </Badge>
              {one.superseded && <Badge tone="warn">superseded</Badge>}
              {one.collides && <Badge tone="bad">collides</Badge>}
            </Relative>
          ))}
        </Family>
      )}
      {members.length > 1 && (
        <Family name="In the group">
          {members.map((member) => (
            <Relative key={member.id} to={to(member.id)} here={member.id === rollout.id} title={`${memberNumber(member.index)}: reward ${number(member.reward)}, ${plainText(member.stop_reason, 40)}`}>
              {member.status === "ok" ? <Reward value={member.reward} digits={2} /> : <span className="mono bad">{member.status}</span>}
            </Relative>
          ))}
          {members.length < group.size && <span className="small faint">{count(group.size)} in all</span>}
        </Family>
      )}
    </div>
  );
}

function Family({ name, children }: { name: string; children: ReactNode }) {
  return (
    <nav className="rollout-family" aria-label={name}>
      <span className="tiny faint">{name}</span>
      {children}
    </nav>
  );
}

function Relative({ to, here, title, children }: { to: string; here: boolean; title: string; children: ReactNode }) {
  return (
    <Link className="rollout-relative" to={to} title={title} aria-label={title} {...(here ? { "aria-current": "page" as const } : {})}>
      {children}
    </Link>
  );
}
