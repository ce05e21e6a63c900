// A group whose members are compared, as rolltrace.query.group_comparison has it.
import type { FailureRecord, GroupKey, Json, MessageRecord, Num } from "./records";

export interface Comparison extends GroupKey {
  task: string;
  task_data: { [key: string]: Json };
  size: number;
  n: number;
  mean: Num | null;
  std: Num | null;
  has_signal: boolean;
  /** Why no member has an advantage, in a sentence; null where some do. */
  no_signal: string | null;
  shared: Excerpt[];
  /** How many messages of the shared prompt come after those. */
  shared_omitted: number;
  /** The best reward first. */
  members: Member[];
  /** How many members come after those. */
  omitted: number;
  matrix: PreferenceMatrix | null;
  rubric: RubricGrid | null;
  scores: GroupScore[];
  retried: number;
  /** How many members are of places that several sessions recorded at once. */
  collides: number;
}
export interface Excerpt {
  message: MessageRecord;
  /** How many characters of its texts were left out. */
  omitted: number;
  /** The step whose answer it is; null for what the policy did not say. */
  step: number | null;
}
export interface GroupScore {
  id: string;
  name: string;
  value: Num | null;
  producer: string;
  created_at: string;
  error: FailureRecord | null;
}
export interface Member {
  id: string;
  index: number | null;
  episode: number | null;
  seat: number | null;
  attempt: number;
  policy: string;
  policy_version: number | string | null;
  status: string;
  stop_reason: string;
  error: FailureRecord | null;
  reward: Num | null;
  advantage: Num | null;
  /** What the reward is the sum of. */
  terms: Term[];
  reward_data: Record<string, Num>;
  /** Other late scores, the latest of each name. */
  scores: Record<string, Num | null>;
  /** The conversation after the shared prompt. */
  messages: Excerpt[];
  /** How many messages come after those. */
  omitted: number;
  steps: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  seconds: Num;
  differs: Difference | null;
}
export interface Term {
  name: string;
  value: Num;
}
/** Where a member's text first differs from that of the member before it. */
export interface Difference {
  /** The place in `messages`; past the end where the other goes on. */
  message: number;
  /** In code points, before anything was cut. */
  character: number;
  of: string;
  field: "role" | "reasoning" | "content" | "tool_calls" | "parts";
  /** Which of the tool calls (its arguments), or of the parts. */
  number: number | null;
}
export interface PreferenceMatrix {
  /** The best reward first; null for one that is no member. */
  ids: (string | null)[];
  indexes: (number | null)[];
  /** How far the row, shown first, was preferred to the column, shown second: from −1 to 1; null where they were not compared. */
  cells: (Num | null)[][];
  numbers: Record<string, Num>;
}
export interface RubricGrid {
  criteria: { name: string; weight: Num | null; text: string | null }[];
  ids: string[];
  /** A row for each criterion, in it a cell for each member. */
  cells: { value: Num | null; words: string | null }[][];
}
