// The meanings and colours of the known stop reasons. Environments may use others.
import type { StopReason } from "./source/schema";

/** `ended`: a normal end. `limit`: truncated by a limit. */
type Meaning = "ended" | "limit" | "unreadable" | "failed" | "cancelled";

interface Known {
  meaning: Meaning;
  /** A class; without one, a chart gives it a colour that is free. */
  colour?: string;
}

const REASONS: Record<StopReason, Known> = {
  completed: { meaning: "ended", colour: "calm" },
  tool_stopped: { meaning: "ended", colour: "calm-2" },
  max_turns: { meaning: "limit", colour: "series-3" },
  max_tool_calls: { meaning: "limit" },
  max_tokens: { meaning: "limit", colour: "series-2" },
  max_total_tokens: { meaning: "limit" },
  max_sampled_tokens: { meaning: "limit" },
  parse_error: { meaning: "unreadable", colour: "series-4" },
  context_overflow: { meaning: "limit", colour: "series-6" },
  timeout: { meaning: "limit", colour: "series-7" },
  error: { meaning: "failed", colour: "series-8" },
  cancelled: { meaning: "cancelled", colour: "series-5" },
  episode_aborted: { meaning: "cancelled", colour: "series-5" },
};

const known = (reason: string): Known | undefined => (Object.hasOwn(REASONS, reason) ? REASONS[reason as StopReason] : undefined);

export const hasEnded = (reason: string): boolean => known(reason)?.meaning === "ended";
export const isLimit = (reason: string): boolean => known(reason)?.meaning === "limit";
export const colourOf = (reason: string): string | undefined => known(reason)?.colour;
