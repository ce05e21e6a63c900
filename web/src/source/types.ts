// The answers of the server, as JSON. Python's structs of rolltrace.viewer are the truth; names are theirs.

/** A number as JSON can carry it: what is not finite is spelt out. */
export type Num = number | "NaN" | "Infinity" | "-Infinity";
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

// ── GET /api/runs ────────────────────────────────────────────────────────────────────────────────────────────────────
export interface RunsAnswer {
  folder: string;
  version: string;
  /** The newest first. */
  runs: RunCard[];
  total: number;
}
export interface RunCard {
  /** Its path below the folder; names the run in every other question. */
  key: string;
  name: string;
  run: string | null;
  created_at: string | null;
  written_at: string | null;
  state: "closed" | "open" | "lost" | "unknown";
  /** Open, and written to a moment ago. */
  live: boolean;
  /** How many count; null where the run is too large to be read for a list. */
  rollouts: number | null;
  recorded: number;
  /** How many its configuration announces, where it does. */
  planned: number | null;
  groups: number | null;
  lost: number;
  in_doubt: number;
  /** Rollouts whose status is `error`. */
  errors: number | null;
  mean_reward: Num | null;
  /** Mean reward over iterations, at most 60 points; null where a bin has none. */
  sparkline: (Num | null)[];
  envs: string[] | null;
  policies: string[] | null;
  bytes: number;
  /** What keeps it from being read, in a sentence. */
  problem: string | null;
}

// ── GET /api/revisions ───────────────────────────────────────────────────────────────────────────────────────────────
/** Cheap: by run key what changes whenever its files do. The page asks it every second and asks anew for what changed. */
export interface RevisionsAnswer {
  revisions: Record<string, string>;
}

// ── GET /api/run?run= ────────────────────────────────────────────────────────────────────────────────────────────────
export interface RunAnswer {
  key: string;
  name: string;
  path: string;
  run: string | null;
  created_at: string | null;
  config: Json;
  package_version: string | null;
  code_revision: string | null;
  state: RunCard["state"];
  live: boolean;
  revision: string;
  planned: number | null;
  rollouts: number;
  retried: number;
  superseded: number;
  groups: number;
  groups_with_signal: number;
  groups_without_signal: number;
  splits: Count[];
  envs: Count[];
  policies: Count[];
  tags: Count[];
  stop_reasons: Count[];
  statuses: Count[];
  errors: ErrorKind[];
  rewards: Spread;
  /** First, last and number of distinct iterations; null where there are no rollouts. */
  iterations: { first: number; last: number; count: number } | null;
  steps: number;
  prompt_tokens: number;
  completion_tokens: number;
  mean_seconds: number | null;
  started_at: string | null;
  ended_at: string | null;
  ledger: LedgerSummary;
  problems: string[];
  problem_count: number;
  /** What /api/series, /api/histogram and columns can be asked for. */
  measures: Measure[];
  columns: Column[];
}
export interface Count {
  value: string;
  n: number;
}
export interface ErrorKind {
  layer: string;
  type: string;
  n: number;
  example: string;
}
/** Numbers about numbers; the statistics are over the finite ones. */
export interface Spread {
  n: number;
  missing: number;
  non_finite: number;
  mean: number | null;
  spread: number | null;
  min: number | null;
  max: number | null;
}
export interface LedgerSummary {
  sessions: number;
  open_sessions: number;
  dispatched: number;
  recorded: number;
  unrecordable: Record<string, number>;
  dropped: Record<string, number>;
  in_flight: number;
  lost: number;
  in_doubt: number;
  adds_up: boolean;
  scores_recorded: number;
  scores_dropped: Record<string, number>;
  blobs_dropped: Record<string, number>;
  texts_dropped: Record<string, number>;
  unsynced: Record<string, number>;
}
/** A number that a rollout has: `reward`, `steps`, `completion_tokens`, `prompt_tokens`, `seconds`, `advantage`,
 * `reward_data.NAME` (summed over steps), `grade.NAME` (of the rollout's grader), `metrics.NAME` (of the rollout, else the mean over steps). */
export interface Measure {
  name: string;
  label: string;
  kind: "rollout" | "reward_data" | "grade" | "metrics";
}
/** A column of the table of rollouts: one of SQL's `rollouts`, or a measure. */
export interface Column {
  name: string;
  label: string;
  type: "text" | "number" | "time" | "tags" | "boolean" | "json";
}

// ── Filters: parameters of /api/rollouts, /api/histogram, /api/facets, /api/neighbours, /api/series, /api/outcomes ──────
// In names of columns, `%`, `,` and `:` are spelt %25, %2C and %3A. filter=COLUMN:OP:VALUE (repeated; all must hold). OP: is, not, min, max (inclusive), below (exclusive), has (a tag, or text within),
//   null, notnull. COLUMN: any of `columns`. search=TEXT: in prompts and responses, ignoring case. where=SQL: an expression.
// By default only rollouts that count; retried=1 shows attempts that were tried again, too.

// ── GET /api/series?run=&measure=&FILTERS ────────────────────────────────────────────────────────────────────────────
export interface SeriesAnswer {
  measure: string;
  /** At most 200 bins of as many iterations each; usually one. */
  bins: SeriesBin[];
}
export interface SeriesBin extends Spread {
  /** Iterations, both inclusive. */
  first: number;
  last: number;
  rollouts: number;
  q05: number | null;
  q25: number | null;
  median: number | null;
  q75: number | null;
  q95: number | null;
}

// ── GET /api/outcomes?run=&FILTERS ───────────────────────────────────────────────────────────────────────────────────
export interface OutcomesAnswer {
  bins: OutcomesBin[];
}
export interface OutcomesBin {
  first: number;
  last: number;
  rollouts: number;
  stop_reasons: Record<string, number>;
  statuses: Record<string, number>;
  /** By `LAYER: TYPE`. */
  errors: Record<string, number>;
  groups: number;
  groups_with_signal: number;
  groups_without_signal: number;
}

// ── GET /api/histogram?run=&measure=&bins=&FILTERS ───────────────────────────────────────────────────────────────────
export interface HistogramAnswer {
  measure: string;
  /** Of equal width, from low (inclusive) to high (exclusive; the last inclusive). One bin where all values are the same. */
  bins: { low: number; high: number; n: number }[];
  n: number;
  missing: number;
  non_finite: number;
}

// ── GET /api/environments?run=&measure=&FILTERS ──────────────────────────────────────────────────────────────────────
/** For a run of one iteration: a distribution per environment, over shared bins. */
export interface EnvironmentsAnswer {
  measure: string;
  environments: EnvironmentCard[];
}
export interface EnvironmentCard extends Spread {
  env: string;
  rollouts: number;
  median: number | null;
  bins: HistogramAnswer["bins"];
  stop_reasons: Record<string, number>;
}

// ── GET /api/rollouts?run=&FILTERS&sort=-reward,iteration&offset=&limit=&columns=a,b ─────────────────────────────────
export interface RolloutsAnswer {
  total: number;
  offset: number;
  rows: RolloutRow[];
}
/** `id` always, and the columns that were asked for. */
export type RolloutRow = { id: string } & Record<string, Json>;

// ── GET /api/facets?run=&FILTERS&columns=env,stop_reason ─────────────────────────────────────────────────────────────
/** How many rollouts have each value of some columns, under all filters but those on that column. At most 100 values each. */
export interface FacetsAnswer {
  facets: Record<string, Count[]>;
}

// ── GET /api/neighbours?run=&id=&FILTERS&sort= ───────────────────────────────────────────────────────────────────────
/** Where a rollout stands in a listing; position from 0, null where it is not in it. */
export interface NeighboursAnswer {
  position: number | null;
  total: number;
  previous: string | null;
  next: string | null;
}

// ── POST /api/sql {run, sql, limit} ──────────────────────────────────────────────────────────────────────────────────
export interface SqlAnswer {
  columns: { name: string; type: string }[];
  rows: Json[][];
  /** Whether there are more rows than were asked for. */
  more: boolean;
  seconds: number;
}

// ── GET /api/findings?run= ; POST /api/check {run} ───────────────────────────────────────────────────────────────────
export interface FindingsAnswer {
  /** `absent`: not asked for yet (large runs wait for POST /api/check). */
  state: "absent" | "running" | "ready" | "failed";
  /** Whether the run has changed since. */
  stale: boolean;
  audits: number;
  found: AuditResult[];
  message: string | null;
}
export interface AuditResult {
  name: string;
  severity: "error" | "warning" | "info";
  about: string;
  count: number;
  error: string | null;
  findings: { message: string; rollout: string | null; data: Json }[];
}

// ── GET /api/group?run=&split=&iteration=&env=&group= ────────────────────────────────────────────────────────────────
export interface GroupKey {
  split: string;
  iteration: number;
  env: string;
  group: string;
}
export interface GroupAnswer {
  group: Comparison;
  previous: GroupKey | null;
  next: GroupKey | null;
}
export interface Comparison extends GroupKey {
  task: string;
  task_data: { [key: string]: Json };
  size: number;
  n: number;
  mean: Num | null;
  spread: Num | null;
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
  at: string;
  error: FailureRecord | null;
}
export interface Member {
  id: string;
  index: number;
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
  terms: { name: string; value: Num }[];
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

// ── GET /api/rollout?run=&id= ────────────────────────────────────────────────────────────────────────────────────────
export interface RolloutAnswer {
  rollout: RolloutRecord;
  /** As it stands now, late scores included. */
  reward: Num | null;
  advantage: Num | null;
  /** Late facts about this rollout, oldest first. */
  scores: ScoreRecord[];
  group: { size: number; n: number; mean: Num | null; spread: Num | null; has_signal: boolean; members: GroupPlace[] };
  /** The other seats of the same episode, this one included; empty where it is no game. */
  seats: GroupPlace[];
  /** Other attempts and sessions of the same place, this one included. */
  attempts: { id: string; attempt: number; session: string; status: string; stop_reason: string; superseded: boolean }[];
}
export interface GroupPlace {
  id: string;
  index: number;
  seat: number | null;
  episode: number | null;
  policy: string;
  status: string;
  stop_reason: string;
  steps: number;
  reward: Num | null;
}

// The record, as docs/format.md has it.
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
  at?: number;
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
  kept?: number;
  /** How many characters of the step's text (raw, else the response's content) each response token gave. */
  widths?: number[] | null;
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
}
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
  continues?: number | null;
  about?: string | null;
  termination?: string | null;
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
  at: string;
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
  index: number;
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
  reward: Num | null;
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
  unplayed?: { reward: Num; reward_data: Record<string, Num | boolean>; env_state: Json; extra: Json; metrics: Record<string, Num | boolean>; logs: Json } | null;
}

// ── Errors: HTTP 4xx/5xx ─────────────────────────────────────────────────────────────────────────────────────────────
export interface ErrorAnswer {
  error: { type: string; message: string };
}
