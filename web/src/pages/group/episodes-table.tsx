// The members of a game: which play, and which seat.
import { memberNumber } from "../../format";
import { StopReasonBadge } from "../../parts/badge";
import { Name } from "../../parts/text";
import { Reward } from "../../parts/reward";
import { Link } from "../../router";
import type { Member } from "../../source/schema";
import type { GroupState } from "./group-state";

/** Whether the members are seats of games. */
export const isGame = (members: readonly Member[]): boolean => new Set(members.map((member) => member.seat)).size > 1;

export function EpisodesTable({ members, state }: { members: readonly Member[]; state: GroupState }) {
  const seats = [...new Set(members.map((member) => member.seat ?? -1))].sort((one, other) => one - other);
  const episodes = [...new Set(members.map((member) => member.episode ?? -1))].sort((one, other) => one - other);
  const at = new Map(members.map((member) => [`${member.episode ?? -1}/${member.seat ?? -1}`, member]));
  return (
    <section className="card" aria-label="Plays and seats">
      <header>
        <h2>Plays</h2>
        <span className="small soft">the members by play and seat</span>
      </header>
      <div className="group-scroll" role="region" aria-label="Members by play and seat" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Play</th>
              {seats.map((seat) => (
                <th key={seat} scope="col">
                  {seat < 0 ? "No seat" : `Seat ${seat}`}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {episodes.map((episode) => (
              <tr key={episode}>
                <th scope="row" className="number">
                  {episode < 0 ? "–" : episode}
                </th>
                {seats.map((seat) => (
                  <td key={seat}>
                    <Seat member={at.get(`${episode}/${seat}`)} state={state} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Seat({ member, state }: { member: Member | undefined; state: GroupState }) {
  if (member === undefined) return <span className="faint">–</span>;
  return (
    <span className="row wrap" {...(member === state.selected ? { "aria-current": "true" as const } : {})}>
      <Link to={state.to({ member: member.id })}>{memberNumber(member.index)}</Link>
      <Reward value={member.reward} />
      <StopReasonBadge reason={member.stop_reason} status={member.status} />
      <span className="small soft">
        <Name text={member.policy} most={40} />
      </span>
    </span>
  );
}
