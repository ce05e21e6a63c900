// Badges for the state of a run or rollout.
import type { RunState } from "../source/schema";
import { count } from "../format";
import { hasEnded } from "../stop-reasons";
import { VisibleText } from "./text";

type Tone = "plain" | "good" | "warn" | "bad" | "accent";

export function Badge({ tone = "plain", children, title }: { tone?: Tone; children: React.ReactNode; title?: string }) {
  return (
    <span className={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

const STATES: Record<RunState, { tone: Tone; title: string }> = {
  running: { tone: "good", title: "A session is open, and wrote its ledger in the last 30 seconds" },
  complete: { tone: "plain", title: "Every session was closed, and what was planned is there" },
  interrupted: { tone: "warn", title: "Every session was closed, and some of what was planned is not there" },
  died: { tone: "bad", title: "A session was not closed and has stopped writing, and no later session took over" },
  unknown: { tone: "plain", title: "There is no ledger" },
};

export function RunStateBadge({ state, live }: { state: RunState; live: boolean }) {
  const { tone, title } = STATES[state];
  return (
    <Badge tone={tone} title={title}>
      {live && <span className="live-dot" />} {state === "unknown" ? "no ledger" : state}
    </Badge>
  );
}

/** How many rollouts are of places that several sessions recorded at once; nothing where none are. */
export function Collides({ n }: { n: number | null }) {
  if (n === null || n === 0) return null;
  return (
    <Badge tone="bad" title="Sessions that overlap in time recorded the same places of groups; all of these rollouts count">
      {count(n)} collide
    </Badge>
  );
}

export function StopReasonBadge({ reason, status }: { reason: string; status: string }) {
  const tone: Tone = status === "error" ? "bad" : status === "cancelled" ? "warn" : hasEnded(reason) ? "plain" : "warn";
  return (
    <Badge tone={tone}>
      <bdi>
        <VisibleText text={reason} />
      </bdi>
    </Badge>
  );
}
