// Small marks: how a run or a rollout stands.
import type { RunCard } from "../source/answers";
import { hasEnded } from "../stop-reasons";
import { Visible } from "./said";

type Tone = "plain" | "good" | "warn" | "bad" | "accent";

export function Badge({ tone = "plain", children, title }: { tone?: Tone; children: React.ReactNode; title?: string }) {
  return (
    <span className={`badge ${tone}`} title={title}>
      {children}
    </span>
  );
}

export function RunState({ state, live }: { state: RunCard["state"]; live: boolean }) {
  if (live)
    return (
      <Badge tone="good" title="It is being written now">
        <span className="live-dot" /> live
      </Badge>
    );
  if (state === "closed") return <Badge title="Every session was closed, and nothing was lost">complete</Badge>;
  if (state === "open") return <Badge tone="warn" title="A session was never closed: its writer died, or waits">not closed</Badge>;
  if (state === "lost") return <Badge tone="bad" title="Something that was begun is not in the run">lost some</Badge>;
  return <Badge title="There is no ledger">no ledger</Badge>;
}

export function StopReason({ reason, status }: { reason: string; status: string }) {
  const tone: Tone = status === "error" ? "bad" : status === "cancelled" ? "warn" : hasEnded(reason) ? "plain" : "warn";
  return (
    <Badge tone={tone}>
      <bdi>
        <Visible text={reason} />
      </bdi>
    </Badge>
  );
}
