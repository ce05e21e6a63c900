// The record of a rollout, as docs/format.md has it, and what records are made of.

/** A number as JSON can carry it: what is not finite is spelt out. */
export type Num = number | "NaN" | "Infinity" | "-Infinity";
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface GroupKey {
  split: string;
  iteration: number;
  env: string;
  group: string;
}
export interface FailureRecord {
  layer: string;
  type: string;
  message: string;
  traceback?: string;
}
export interface ToolCallRecord {
  name: string;
  arguments?: string;
  id?: string | null;
  error?: string | null;
  other?: Json;
}
export interface PartRecord {
  type: string;
  offset?: number;
  text?: string | null;
  url?: string | null;
  blob?: string | null;
  media_type?: string | null;
  other?: Json;
}
export interface MessageRecord {
  role: string;
  content: string;
  parts?: PartRecord[];
  tool_calls?: ToolCallRecord[];
  tool_call_id?: string | null;
  name?: string | null;
  reasoning?: string | null;
  other?: Json;
}
export type Range = [number, number];
export interface TokensRecord {
  prompt: number[];
  response: number[];
  logprobs?: Num[] | null;
  shared_prefix?: number;
  /** How many characters of the step's text (raw, else the response's content) each response token gave. */
  char_lengths?: number[] | null;
}
export interface UsageRecord {
  prompt_tokens: number;
  completion_tokens: number;
}
export interface StepRecord {
  step: number;
  prompt: Range[];
  response: number | MessageRecord;
  tools: number | null;
  sampling: number | null;
  reward: Num;
  env_reward: Num | null;
  reward_data: Record<string, Num | boolean>;
  env_state: { [key: string]: Json };
  extra: { [key: string]: Json };
  metrics: Record<string, Num | boolean>;
  logs: { [key: string]: Json };
  termination: string | null;
  parse_error: string | null;
  raw: string | null;
  policy_version: number | string | null;
  usage: UsageRecord | null;
  seconds: Num | null;
  tokens: TokensRecord | null;
  /** Why the environment did not finish the turn; missing where it did. */
  env_failure?: EnvFailure | null;
  /** The weights of the numbers of `reward_data`; missing if nobody said. */
  reward_weights?: Record<string, Num | boolean>;
}
export type EnvFailure = "raised" | "timed_out" | "cancelled" | "aborted";
export interface CallRecord {
  role: string;
  policy: string;
  prompt: MessageRecord[];
  reply: MessageRecord | null;
  step: number | null;
  policy_version: number | string | null;
  raw: string | null;
  error: FailureRecord | null;
  usage: UsageRecord | null;
  seconds: Num | null;
  continues_call?: number | null;
  about?: string | null;
  termination?: string | null;
  /** Where the stored text quotes other messages; the server puts the text back, so the page never needs it. */
  quotes?: Json[];
}
export interface ScoreRecord {
  v: number;
  id: string;
  run: string;
  session: string;
  rollout: string | null;
  group: GroupKey | null;
  name: string;
  value: Num | null;
  data: { [key: string]: Json };
  producer: string;
  created_at: string;
  error: FailureRecord | null;
  calls: CallRecord[];
}
export interface RolloutRecord {
  v: number;
  id: string;
  run: string;
  split: string;
  iteration: number;
  env: string;
  env_args: { [key: string]: Json };
  seed: number | null;
  task: string;
  task_data: { [key: string]: Json };
  group: string;
  index: number | null;
  attempt: number;
  episode: number | null;
  seat: number | null;
  policy: string;
  policy_version: number | string | null;
  tags: string[];
  session: string;
  started_at: string;
  ended_at: string;
  status: "ok" | "error" | "cancelled";
  stop_reason: string;
  stopped_by: "env" | "runner";
  error: FailureRecord | null;
  /** As it stands now, late scores included. */
  reward: Num | null;
  /** On the rollout's line. */
  line_reward: Num | null;
  group_grade: { reward: Num; reward_data: Record<string, Num | boolean>; extra: { [key: string]: Json } } | null;
  reward_so_far: Num;
  unclamped_reward: Num | null;
  grade: { reward: Num; reward_data: Record<string, Num | boolean>; extra: { [key: string]: Json } } | null;
  messages: MessageRecord[];
  tools: { name: string; description: string; parameters: Json }[][];
  sampling: { [key: string]: Json }[];
  steps: StepRecord[];
  final: Range[];
  pending_prompt: Range[] | null;
  pending_raw: string | null;
  calls: CallRecord[];
  metrics: Record<string, Num | boolean>;
  notes: { path: string; message: string }[];
  /** Missing where everything was played. */
  ended_before_first_turn?: { reward: Num; reward_data: Record<string, Num | boolean>; env_state: Json; extra: Json; metrics: Record<string, Num | boolean>; logs: Json } | null;
}
