// A member's messages after the shared prompt: those equal to the neighbour's are folded or faint, the first difference is marked.
import { useState } from "react";
import { toRollout } from "../../addresses";
import { count, plural } from "../../format";
import { Link } from "../../router";
import type { Member } from "../../source/schema";
import { DifferenceMark } from "./differing-text";
import { GroupMessage } from "./group-message";

/** How many messages are shown at once. */
const AT_ONCE = 12;
/** So many same messages are softened; more are folded into a line. */
const SOFTENED = 1;

interface MemberTextProperties {
  run: string;
  member: Member;
  /** The name of the member that it is compared with; null for the first. */
  neighbour: string | null;
}

export function MemberText({ run, member, neighbour }: MemberTextProperties) {
  const [open, setOpen] = useState(false);
  const [shown, setShown] = useState(AT_ONCE);
  const { messages, differs, omitted } = member;
  const isSame = neighbour !== null && differs === null;
  const same = isSame ? messages.length : differs === null ? 0 : Math.min(differs.message, messages.length);
  const folded = !open && same > SOFTENED ? same : 0;
  const visible = messages.slice(folded, folded + shown);
  const rest = messages.length - folded - visible.length;
  const beyond = differs !== null && differs.message >= messages.length;
  if (messages.length === 0 && omitted === 0 && !beyond) return <p className="soft small">It has no messages.</p>;
  return (
    <div className="group-text">
      {folded > 0 && (
        <button type="button" className="group-same" onClick={() => setOpen(true)}>
          … {plural(folded, "message")} the same as {neighbour}
        </button>
      )}
      {visible.map((excerpt, place) => (
        <GroupMessage
          key={folded + place}
          run={run}
          excerpt={excerpt}
          soft={folded + place < same}
          difference={differs !== null && differs.message === folded + place ? differs : null}
          neighbour={neighbour ?? ""}
        />
      ))}
      {rest > 0 && (
        <button type="button" className="button" onClick={() => setShown(shown + 3 * AT_ONCE)}>
          Show {Math.min(rest, 3 * AT_ONCE)} more of {plural(rest, "message")}
        </button>
      )}
      {beyond && omitted === 0 && rest === 0 && <DifferenceMark neighbour={neighbour ?? ""} words={`ends here; ${neighbour} goes on`} />}
      {beyond && omitted > 0 && <DifferenceMark neighbour={neighbour ?? ""} words={`differs from ${neighbour} in message ${differs.message + 1}, which is left out here`} />}
      {omitted > 0 && rest === 0 && (
        <p className="small soft">
          {count(omitted)} more {omitted === 1 ? "message" : "messages"} in the <Link to={toRollout(run, member.id)}>rollout</Link>.
        </p>
      )}
    </div>
  );
}
