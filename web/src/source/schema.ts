// The responses of the server and the records in them. Made by docs/typescript_types.py: do not edit.
// An integer that a browser would round comes as text. Only types of fields where that is usual say so.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** A number; one that is not finite comes as text. */
export type Float = number | "NaN" | "Infinity" | "-Infinity";

/** One run of the list. */
export interface RunListEntry {
  /** The path below the folder; every other request names the run by it. */
  key: string;
  name: string;
  run: string | null;
  created_at: string | null;
  written_at: string | null;
  state: RunState;
  /** Whether its state is `running`. */
  live: boolean;
  /** The number without retried and superseded rollouts; null if the run is too large to be read for a list. */
  rollouts: number | null;
  recorded: number;
  /** The planned number of episodes; null if the run states none. */
  planned: number | null;
  /** The number of finished episodes; null if the run is too large to be read for a list. */
  finished: number | null;
  groups: number | null;
  lost: number;
  maybe_lost: number;
  /** The number of rollouts in slots that several sessions recorded at the same time. */
  collides: number | null;
  /** The number of rollouts whose status is `error`. */
  errors: number | null;
  mean_reward: Float | null;
  /** The mean reward over iterations, at most 60 points; null for iterations without a reward. */
  sparkline: (Float | null)[];
  envs: string[] | null;
  policies: string[] | null;
  bytes: number;
  /** Why the run, or a part of it, cannot be read. */
  problem: string | null;
  /** Whether its numbers are missing or old because it was not read yet. */
  is_pending: boolean;
}

/** `GET /api/runs`: all runs below the folder, the newest first. */
export interface RunsResponse {
  folder: string;
  version: string;
  runs: RunListEntry[];
  total: number;
  /** How many runs were not read yet: the page repeats the request, which reads some of them, until it is 0. */
  pending: number;
}

/**
 * `GET /api/revisions`: by run key, a text that changes whenever the files of the run do. It costs little: the page
 * asks every 1.4 seconds, and repeats its requests about the runs that have changed.
 */
export interface RevisionsResponse {
  revisions: Record<string, string>;
}

/** The number of rollouts that have a value. */
export interface Count {
  value: string;
  n: number;
}

/** Failures of one kind. */
export interface ErrorKind {
  layer: string;
  type: string;
  n: number;
  example: string;
}

/** What became of the rollouts that were started, over all sessions. */
export interface LedgerSummary {
  sessions: number;
  open_sessions: number;
  dispatched: number;
  recorded: number;
  unrecordable: Record<string, number>;
  dropped: Record<string, number>;
  in_flight: number;
  lost: number;
  maybe_lost: number;
  is_balanced: boolean;
  scores_recorded: number;
  scores_dropped: Record<string, number>;
  blobs_dropped: Record<string, number>;
  redaction_failed: Record<string, number>;
  sync_failed: Record<string, number>;
  dropped_after_end: Record<string, number>;
}

/**
 * A number of a rollout that can be charted. `reward_data.NAME` is summed over the steps, `grade.NAME` is from the
 * rollout's grader, and `metrics.NAME` is of the rollout, else the mean over its steps.
 */
export interface Measure {
  name: string;
  label: string;
  kind: "grade" | "metrics" | "reward_data" | "rollout";
}

/** A column of the table of rollouts: a column of the SQL table, or a measure. */
export interface Column {
  name: string;
  label: string;
  type: "boolean" | "json" | "number" | "tags" | "text" | "time";
}

/** The iterations of a run. */
export interface Iterations {
  first: number;
  last: number;
  /** The number of distinct iterations. */
  count: number;
}

/** `GET /api/run?run=`: the overview of one run. */
export interface RunResponse {
  key: string;
  name: string;
  path: string;
  run: string | null;
  created_at: string | null;
  config: Json;
  package_version: string | null;
  code_revision: string | null;
  state: RunState;
  live: boolean;
  revision: string;
  /** The planned number of episodes; null if the run states none. */
  planned: number | null;
  /** The number of finished episodes. */
  finished: number;
  rollouts: number;
  retried: number;
  superseded: number;
  collides: number;
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
  rewards: NumberStats;
  /** null if there are no rollouts. */
  iterations: Iterations | null;
  steps: number;
  prompt_tokens: number;
  completion_tokens: number;
  mean_seconds: number | null;
  started_at: string | null;
  ended_at: string | null;
  ledger: LedgerSummary;
  /** The first of the errors that were met in reading the run. */
  problems: string[];
  /** The number of all of them. */
  problem_count: number;
  measures: Measure[];
  columns: Column[];
}

/** `GET /api/damage?run=`: what answers about the run are without; every page of the run says so. */
export interface DamageResponse {
  /** The first of the parts of the run that could not be read. */
  problems: string[];
  /** The number of all of them. */
  problem_count: number;
  /** Which part of the run was read by now, from 0 to 1: the newest segments are read first. */
  coverage: number;
}

/** The distribution of a measure over the iterations from `first` to `last`, both included. */
export interface SeriesBin extends NumberStats {
  first: number;
  last: number;
  rollouts: number;
  q05: Float | null;
  q25: Float | null;
  median: Float | null;
  q75: Float | null;
  q95: Float | null;
}

/** `GET /api/series?run=&measure=&FILTERS`: a measure over iterations. */
export interface SeriesResponse {
  measure: string;
  /** At most 200, each of the same number of iterations: usually one. */
  bins: SeriesBin[];
}

/** How the rollouts of the iterations from `first` to `last`, both included, ended. */
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

/** `GET /api/outcomes?run=&FILTERS`: how rollouts ended, over iterations. */
export interface OutcomesResponse {
  bins: OutcomesBin[];
}

/** `GET /api/histogram?run=&measure=&bins=&FILTERS`: the distribution of a measure. */
export interface HistogramResponse {
  measure: string;
  bins: Bin[];
  n: number;
  missing: number;
  non_finite: number;
}

/** The histogram of a measure over the iterations from `first` to `last`, both included. */
export interface IterationHistogram {
  first: number;
  last: number;
  bins: Bin[];
  n: number;
  missing: number;
  non_finite: number;
}

/** `GET /api/iteration_histograms?run=&measure=&bins=&FILTERS`: the distribution of a measure in each iteration. */
export interface IterationHistogramsResponse {
  measure: string;
  iterations: IterationHistogram[];
}

/** The distribution of a measure in one environment. */
export interface EnvironmentStats extends NumberStats {
  env: string;
  rollouts: number;
  median: Float | null;
  bins: Bin[];
  stop_reasons: Record<string, number>;
}

/** `GET /api/environments?run=&measure=&bins=&FILTERS`: a measure by environment; all have the same bins. */
export interface EnvironmentsResponse {
  measure: string;
  environments: EnvironmentStats[];
}

/** `GET /api/rollouts?run=&FILTERS&sort=-reward,iteration&offset=&limit=&columns=a,b`: rows of the table. */
export interface RolloutsResponse {
  total: number;
  offset: number;
  rows: RolloutRow[];
}

/**
 * `GET /api/search?run=&search=&since=`: searches further, for half a second, the newest rollouts first. Without
 * `since` it begins. Other requests with the same `search` and `since` are about what was found by then.
 */
export interface SearchResponse {
  /** The smallest id that was searched, for the next request; empty if everything was searched. */
  since: string;
  /** How many rollouts were searched. */
  searched: number;
  /** How many there are. */
  total: number;
  /** How many of those that were searched contain the text. */
  hits: number;
}

/**
 * `GET /api/facets?run=&FILTERS&columns=env,stop_reason`: the number of rollouts with each value of some columns.
 * Filters on a column do not apply to its own values.
 */
export interface FacetsResponse {
  /** By column, at most 100 values, the most frequent first. */
  facets: Record<string, Count[]>;
}

/** `GET /api/neighbours?run=&id=&FILTERS&sort=`: the rows before and after a rollout in the table. */
export interface NeighboursResponse {
  /** From 0; null if the table does not have the rollout. */
  position: number | null;
  total: number;
  previous: string | null;
  next: string | null;
}

/** A column of the result of a query. */
export interface SqlColumn {
  name: string;
  type: string;
}

/** `POST /api/sql {run, sql, limit}`: the result of a query. */
export interface SqlResponse {
  columns: SqlColumn[];
  rows: Json[][];
  /** Whether the query has more rows than the limit. */
  more: boolean;
  seconds: number;
}

/** One finding of an audit. */
export interface AuditFinding {
  message: string;
  /** Those that it is about, or the first of them. */
  rollouts: string[];
  /** What it is about: SPLIT/ENV/ITERATION/GROUP/INDEX, or the beginning of one. */
  address: string | null;
  subject: string;
  data: Json;
}

/** An audit that found something, or that failed. */
export interface AuditResult {
  name: string;
  family: string;
  severity: Severity;
  why: string;
  /** What to do about its findings. */
  fix: string;
  count: number;
  error: string | null;
  findings: AuditFinding[];
}

/** `GET /api/findings?run=` and `POST /api/check {run}`: the result of a check of the run. */
export interface FindingsResponse {
  /** `absent`: not requested yet; a large run is checked only after `POST /api/check`. */
  state: "absent" | "failed" | "ready" | "running";
  /** Whether the run has changed since the check. */
  stale: boolean;
  /** How many audits ran. */
  audits: number;
  found: AuditResult[];
  message: string | null;
}

/** The type and message of an error. */
export interface ErrorDetail {
  type: string;
  message: string;
}

/** The body of every response whose HTTP status is an error. */
export interface ErrorResponse {
  error: ErrorDetail;
}

/** A rollout of the same group or episode. */
export interface GroupSibling {
  id: string;
  index: number | null;
  seat: number | null;
  episode: number | null;
  policy: string;
  status: string;
  stop_reason: string;
  steps: number;
  reward: Float | null;
}

/** The group that a rollout belongs to. */
export interface RolloutGroup {
  size: number;
  /** The number of rewards. */
  n: number;
  mean: Float | null;
  std: Float | null;
  has_signal: boolean;
  /** At most 40: the nearest to the rollout, itself included, in the order of their indexes. */
  members: GroupSibling[];
}

/** An attempt at the same index of a group. */
export interface Attempt {
  id: string;
  attempt: number;
  session: string;
  status: string;
  stop_reason: string;
  superseded: boolean;
  collides: boolean;
}

/** A text of which a response has only the beginning. */
export interface CutText {
  /** Where it is in the record: names of fields, keys and indexes. */
  path: (string | number)[];
  /** How many code points it has; 0 for token ids, which are left out. */
  length: number;
  /** How many of them are in the response. */
  shown: number;
}

/** `GET /api/text?run=&id=&path=&offset=`: a piece of a text of a rollout; `path` is a JSON array. */
export interface TextResponse {
  text: string;
  /** The offset of the next piece, in code points; null if this is the last. */
  next: number | null;
}

/**
 * `GET /api/rollout?run=&id=&first=`: one rollout with its scores, its group and its other attempts. Of very many
 * messages it has the first and the last or, with `first`, those from this index on.
 */
export interface RolloutResponse {
  rollout: RolloutWithScores;
  /** The ranges of messages that `rollout` has, without their ends; of at most 2,000 messages it has all. */
  loaded: [number, number][];
  /** Texts of which `rollout` has only the beginning, because its record is very long; the first 20,000 of them. */
  cut: CutText[];
  /** The total as it stands now, late scores included. */
  reward: Float | null;
  advantage: Float | null;
  /** The terms whose sum is the reward; without a reward, the terms that are known so far. */
  terms: RewardTerm[];
  /** Late scores of this rollout, the oldest first; if there are very many, only the newest. */
  scores: Score[];
  /** The id of the score that gives the reward; null if the rollout itself gives it. */
  reward_score: string | null;
  /** Old against new, for each grader that `rolltrace regrade` ran, the latest last. */
  regrades: Regrade[];
  group: RolloutGroup;
  /** The seats of the same episode, at most 100; empty if it is not a game. */
  seats: GroupSibling[];
  /** The attempts and sessions at the same index, at most 100; only its own if members have no indexes. */
  attempts: Attempt[];
}

/**
 * `GET /api/group?run=&split=&iteration=&env=&group=&offset=&limit=&against=`: members of a group side by side. `limit`
 * is at most 256. `against` is the id of a member to compare all others with; without it each is compared with the one
 * before it.
 */
export interface GroupResponse {
  group: GroupComparison;
  previous: GroupKey | null;
  next: GroupKey | null;
}

/** Why a rollout ended; an environment may name others of its own. */
export type StopReason =
  | "completed"
  | "tool_stopped"
  | "max_turns"
  | "max_tool_calls"
  | "max_tokens"
  | "max_total_tokens"
  | "max_sampled_tokens"
  | "parse_error"
  | "context_overflow"
  | "timeout"
  | "error"
  | "cancelled"
  | "episode_aborted";

/** The state of a run, over all its sessions. */
export type RunState = "running" | "complete" | "interrupted" | "died" | "unknown";

/** Statistics of some numbers; mean, std, min and max are over the finite ones. */
export interface NumberStats {
  /** How many are finite. */
  n: number;
  /** How many are null: the rollout failed, was cancelled or is not graded yet. */
  missing: number;
  non_finite: number;
  mean: Float | null;
  /** The standard deviation, of the population. */
  std: Float | null;
  min: Float | null;
  max: Float | null;
}

/** How many values there are from `low` up to, not including, `high`; in the last bin `high` counts too. */
export interface Bin {
  low: number;
  high: number;
  n: number;
}

/** A row of the table of rollouts: its id, and by name the columns that were requested. */
export interface RolloutRow {
  id: string;
  [key: string]: Json;
}

/** How bad a finding is. By default only an `ERROR` makes a check fail. */
export type Severity = "error" | "warning" | "info";

/** A rollout as `encode_with_scores` writes it, apart from `scores`: with the reward as it stands now. */
export interface RolloutWithScores extends Rollout {
  /** The total on the rollout's line; null while a group grade is pending, or if status is not ok. */
  line_reward: Float | null;
  /** The total as it stands now, late scores included. */
  reward: Float | null;
  /** What the group's grader said; null if the reward is the line's, null, or a plain score without a grade. */
  group_grade: Grade | null;
}

/** One of the terms whose sum is a reward. */
export interface RewardTerm {
  /**
   * `steps`, `grade` or `group grade`; `env` if it ended before the first turn; `limit`, a penalty without a step;
   * `clamp`, what a limit removed; `score`, a later score of the total; `unexplained`, the rest.
   */
  name: string;
  value: Float;
}

/** One line of `scores/`, a late fact: name, value, data, producer and time. It names one rollout, or one group. */
export interface Score {
  /** The version of the format. */
  v: number;
  /** Unique everywhere. */
  id: string;
  run: string;
  session: string;
  /** The id of the rollout it is about. */
  rollout: string | null;
  /** The group it is about. */
  group: GroupKey | null;
  /** `reward` is the rollout's total, and the latest one counts. */
  name: string;
  /** null if it could not be computed; `error` then says why. */
  value: Float | null;
  data: Record<string, Json>;
  /** The program or grader that computed it. */
  producer: string;
  created_at: string;
  error: Failure | null;
  /** Model calls that were made to compute it. */
  calls?: Call[];
}

/** What a rollout was worth before it was graded again, and after. */
export interface Regrade {
  /** The name of the score: `regrade/GRADER@VERSION`. */
  name: string;
  /** The reward that it had then. */
  old: Float | null;
  /** null if the grader failed. */
  new: Float | null;
  /** Whether the new value is the reward now. */
  is_reward: boolean;
}

/** A group and its members: for each index, the last attempt that is not superseded. */
export interface GroupComparison {
  split: string;
  iteration: number;
  env: string;
  group: string;
  task: string;
  /** The task data of the first member. */
  task_data: Record<string, Json>;
  /** How many members the group has; the next numbers are those of the table `groups`. */
  size: number;
  n: number;
  mean: Float | null;
  std: Float | null;
  has_signal: boolean;
  /** Why every advantage is zero or missing; null if the group has a learning signal. */
  no_signal: string | null;
  /** The messages with which every first prompt begins. */
  shared: TruncatedMessage[];
  /** How many further messages of the shared prompt were left out. */
  shared_omitted: number;
  /** The best reward first, rewards that are NaN or null last, then by index. */
  members: Member[];
  /** The rank of the first of them, from 0. */
  offset: number;
  /** How many members come before and after these. */
  omitted: number;
  /** How many members between them are left out because their lines are damaged. */
  unreadable: number;
  /** Whether all members are compared with `reference`, and not each with the one before it. */
  is_against: boolean;
  /** The member that was chosen to compare all with; otherwise the one before the first of these, if there is one. */
  reference: MemberName | null;
  /** If `members` are not all: rewards of the group, evenly spaced by rank. */
  marks: RewardMark[];
  matrix: PreferenceMatrix | null;
  rubric: RubricGrid | null;
  /** About the group as a whole, the earliest first. */
  scores: GroupScore[];
  /** How many attempts were retried. */
  retried: number;
  /** How many members are in slots that several sessions recorded at the same time. */
  collides: number;
}

/** Which group of a run. */
export interface GroupKey {
  split: string;
  iteration: number;
  env: string;
  group: string;
}

/**
 * One line of a run: all steps of one env by one policy. A rollout that was read through an opened run also knows its
 * late `scores`; they are not part of the line.
 */
export interface Rollout extends Header {
  ended_at: string;
  /** Whether it has a reward that means something. */
  status: Status;
  /** A `StopReason`, or what the environment named. */
  stop_reason: string;
  stopped_by: StoppedBy;
  /** Why it failed, if it did. */
  error: Failure | null;
  /** `reward` on the line: the total known at the end; null while a group grade is pending, or if status is not ok. */
  reward: Float | null;
  /** The sum of the step rewards, or that of an env which had no turn to give, and the grade, whatever the status. */
  reward_so_far: Float;
  /** The total before a limit clamped it. */
  unclamped_reward: Float | null;
  /** The grade of the rollout's own grader. */
  grade: Grade | null;
  /** Each message occurrence, in the order in which the conversation held it. */
  messages: Message[];
  /** The distinct sets of tools that were offered. */
  tools: ToolSpec[][];
  /** The distinct settings that were sampled with. */
  sampling: Sampling[];
  steps: Step[];
  /** The conversation as it stood at the end. */
  final: [number, number][];
  /** The last prompt, if no step resulted from it. */
  pending_prompt: [number, number][] | null;
  /** The raw answer to that prompt, if there was one. */
  pending_raw: string | null;
  /** Model calls that are not the policy's turns. */
  calls: Call[];
  /** About the rollout as a whole. */
  metrics: Record<string, boolean | Float>;
  /** About the record itself. */
  notes: Note[];
  /** What the env returned if it was over before the policy's first turn. */
  ended_before_first_turn?: EndedBeforeFirstTurn;
}

/** The grade that a grader gives a rollout. */
export interface Grade {
  reward: Float;
  /** The numbers behind the reward. */
  reward_data: Record<string, boolean | Float>;
  /** Values that are not numbers: reference answers, matchups, criteria. */
  extra: Record<string, Json>;
  /** By the names of `reward_data`, the weight of each number in the reward; empty if not stated. */
  reward_weights?: Record<string, boolean | Float>;
}

/** What went wrong, and in which layer. */
export interface Failure {
  /** Which part of the system it came from. */
  layer: Layer;
  /** The name of the exception. */
  type: string;
  message: string;
  traceback: string;
}

/** A model call that is not a turn of the policy: of a grader, an answerer or an opponent. */
export interface Call {
  /** `grader`, `answerer`, `opponent`. */
  role: string;
  /** The name of the policy that answered. */
  policy: string;
  /** The messages that were sent; if the call continues another, only the new ones. */
  prompt: Message[];
  reply: Message | null;
  /** The step during which it was made; null if the rollout was over. */
  step: number | null;
  policy_version: number | string | null;
  raw: string | null;
  error: Failure | null;
  usage: Usage | null;
  seconds: Float | null;
  /** The call whose whole conversation, its reply included, comes before this prompt; its text is not repeated. */
  continues_call?: number;
  /** The subject of the call: a criterion, a seat, or the ids of two rollouts that are compared. */
  about?: string;
  /** How the reply ended. */
  termination?: Termination;
  /** Text that is stored elsewhere in the run, to be put back into `prompt` and `reply`. A decoded call has none. */
  quotes?: Quote[];
}

/** A message whose long texts are truncated. */
export interface TruncatedMessage {
  message: Message;
  /** How many characters were left out. */
  omitted: number;
  /** The step whose response it is; null for other messages. */
  step: number | null;
}

/** One rollout of a group. */
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
  /** Why it failed, or why its group's grade is missing. */
  error: Failure | null;
  reward: Float | null;
  /** The reward minus the mean of the group. */
  advantage: Float | null;
  /** The terms whose sum is the reward; without a reward, the terms that are known so far. */
  terms: RewardTerm[];
  /** The numbers behind the reward: summed over the steps, and from the graders. */
  reward_data: Record<string, Float>;
  /** Other late scores, the latest of each name. */
  scores: Record<string, Float | null>;
  /** Those of them that `rolltrace regrade` wrote, with the reward before. */
  regrades: Regrade[];
  /** The conversation after the shared prompt, in order. */
  messages: TruncatedMessage[];
  /** How many further messages were left out. */
  omitted: number;
  steps: number;
  prompt_tokens: number | null;
  /** The sum over the steps with known usage; null if no step has any. */
  completion_tokens: number | null;
  seconds: number;
  /**
   * Where it first differs from the member that it is compared with; null if there is no such member, or no difference.
   */
  differs: Difference | null;
}

/** What a member is called. */
export interface MemberName {
  id: string;
  index: number | null;
  episode: number | null;
  seat: number | null;
}

/** The reward of one of many members. */
export interface RewardMark {
  id: string;
  index: number | null;
  reward: Float | null;
  /** How many members have a better reward, or an equal one and a smaller index. */
  rank: number;
}

/** The result of a tournament; rows and columns are in the order of `ids`. */
export interface PreferenceMatrix {
  /** The members that took part, in the order of the comparison; others are null, and last. */
  ids: (string | null)[];
  /** Their indexes in the group. */
  indexes: (number | null)[];
  /**
   * How far the member of the row, shown first, was preferred to that of the column, shown second: from −1 to 1. null
   * if the two were not compared in this order, or the grader gave no preference.
   */
  cells: (Float | null)[][];
  /** Numbers of the grader about the whole tournament, such as how often both orders agree. */
  numbers: Record<string, Float>;
}

/** Results by criterion and member. */
export interface RubricGrid {
  criteria: RubricCriterion[];
  /** The members, in the order of the comparison. */
  ids: string[];
  /** A row for each criterion, in it a cell for each member. */
  cells: RubricCell[][];
}

/** A late score about the group. */
export interface GroupScore {
  id: string;
  name: string;
  value: Float | null;
  producer: string;
  created_at: string;
  /** Without its traceback. */
  error: Failure | null;
}

/** What is known of a rollout when it starts; each field is a field of `Rollout`. */
export interface Header {
  /** The version of the format. */
  v: number;
  /** Unique everywhere. */
  id: string;
  /** The run's id. */
  run: string;
  /** `train`, or the name of an evaluation. */
  split: string;
  iteration: number;
  /** The environment's name. */
  env: string;
  /** The arguments of the environment; secrets are `[redacted]`. */
  env_args: Record<string, Json>;
  /** The seed of the episode's random numbers. */
  seed: number | string | null;
  task: string;
  /** The data of the task, with the reference answer; no policy sees it. */
  task_data: Record<string, Json>;
  /** The rollouts of one env group builder; unique within an iteration. */
  group: string;
  /** Its number in the group: episode × seats + seat, the same for all attempts; null if members have no numbers. */
  index: number | null;
  /** How many attempts at the same episode failed before. */
  attempt: number;
  /** In a game, the number of the play in the group. */
  episode: number | null;
  /** In a game, the player. */
  seat: number | null;
  policy: string;
  /** The version that the first prompt was for; each step has the one that answered. */
  policy_version: number | string | null;
  tags: string[];
  /** The session that recorded it: one opening of the run for writing. */
  session: string;
  started_at: string;
  /** The lowest reward that the environment gives, if its builder declares it; a limit may charge more. */
  reward_min?: Float;
  /** The highest reward that the environment gives, if its builder declares it. */
  reward_max?: Float;
}

/** Whether a rollout has a reward that means something. */
export type Status = "ok" | "error" | "cancelled";

/** Who ended a rollout. */
export type StoppedBy = "env" | "runner";

/** One message of a conversation. */
export interface Message {
  /** `system`, `user`, `assistant`, `tool`, or another that a policy understands. */
  role: string;
  /** Its text: what a reader sees of it; never null. */
  content: string;
  /** What is not text, in order. */
  parts?: Part[];
  /** What the policy asked for. */
  tool_calls?: ToolCall[];
  /** In a tool's answer, the call it answers. */
  tool_call_id?: string;
  /** Who speaks, where the role does not say it; in a tool's answer, the tool. */
  name?: string;
  /** What the policy thought before it spoke, where that is known apart from the content. */
  reasoning?: string;
  /** Its other fields, as they came. */
  other?: Record<string, Json>;
}

/** A tool that a policy may call. */
export interface ToolSpec {
  name: string;
  description: string;
  /** The arguments, as a JSON schema of an object. */
  parameters: Record<string, Json>;
}

/** How a policy is asked to sample; null leaves it to the policy. */
export interface Sampling {
  temperature?: Float;
  top_p?: Float;
  top_k?: number;
  min_p?: Float;
  max_tokens?: number;
  stop?: string[];
  /** Settings that only some policies know. */
  other?: Record<string, Json>;
}

/** One policy turn. */
export interface Step {
  /** Its number, from 0. */
  step: number;
  /** Ranges of the rollout's `messages`. */
  prompt: [number, number][];
  /** The index of the message if the following prompt or `final` holds it, else the message itself. */
  response: number | Message;
  /** Index into the rollout's `tools`. */
  tools: number | null;
  /** Index into the rollout's `sampling`. */
  sampling: number | null;
  reward: Float;
  /**
   * The reward from the env; null if the env was not called, or did not finish the turn. A limit may replace it in
   * `reward`.
   */
  env_reward: Float | null;
  /** The numbers behind the reward. */
  reward_data: Record<string, boolean | Float>;
  /** The state of the environment after the turn. */
  env_state: Record<string, Json>;
  /** Values that are not numbers, such as the reference answer. */
  extra: Record<string, Json>;
  /** Other numbers. */
  metrics: Record<string, boolean | Float>;
  /** Information for debugging. */
  logs: Record<string, Json>;
  /** How the completion ended. */
  termination: Termination | null;
  /** Why part or all of the answer could not be read. */
  parse_error: string | null;
  /** The policy's answer before it was parsed, if it differs from the response's content. */
  raw: string | null;
  /** The version that answered. */
  policy_version: number | string | null;
  usage: Usage | null;
  /** How long the policy took to answer. */
  seconds: Float | null;
  /** Token ids and log-probabilities, if they are recorded. */
  tokens: Tokens | null;
  /** Why the env did not finish this turn; null if it did, or was not called. */
  env_failure?: EnvFailure;
  /** By the names of `reward_data`, the weight of each number in the reward; empty if not stated. */
  reward_weights?: Record<string, boolean | Float>;
}

/** Something about the record itself that a reader should know. */
export interface Note {
  /** Where in the record, such as `steps[3].env_state.board`; empty for the whole. */
  path: string;
  /** What happened to it. */
  message: string;
}

/** What an env returned if it was over before the policy's first turn, so that the rollout has no step. */
export interface EndedBeforeFirstTurn {
  reward: Float;
  /** The numbers behind the reward. */
  reward_data: Record<string, boolean | Float>;
  env_state: Record<string, Json>;
  extra: Record<string, Json>;
  metrics: Record<string, boolean | Float>;
  logs: Record<string, Json>;
}

/** Which part of the system a failure came from. */
export type Layer = "policy" | "env" | "grader" | "tool" | "limit" | "hook" | "runner" | "caller";

/** Tokens that one completion took. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
}

/** How a completion ended. */
export type Termination = "stop_sequence" | "eos" | "tool_calls" | "length" | "malformed";

/**
 * Text of a call that the run holds elsewhere: it is stored there, and put back when the call is read. The text is that
 * of message `message_index` or of `step`; with a `char_range`, a part of it. If `offset` is null, the whole messages
 * of `message_range` are quoted.
 */
export interface Quote {
  /** The message of the stored prompt that the text is cut from, or that whole messages come before; null: `reply`. */
  prompt_index?: number;
  /** Where the text belongs: the number of characters of that message's stored content before it. */
  offset?: number;
  /** The rollout that is quoted; null: that of the same line. */
  rollout?: string;
  /** An earlier call of the same line that is quoted in place of a rollout; its messages are those of its prompt. */
  call_index?: number;
  /** The message that is quoted. */
  message_index?: number;
  /** The step whose response is quoted, where the rollout's `messages` do not hold it. */
  step?: number;
  /** The tool call of that message whose arguments are quoted. */
  tool_call_index?: number;
  /** Whether that message's reasoning is quoted and not its content. */
  reasoning?: boolean;
  /** The characters that are quoted; null: all. */
  char_range?: [number, number];
  /** The whole messages that are quoted. */
  message_range?: [number, number];
}

/** Where a member's text first differs from another's. */
export interface Difference {
  /** The index in the member's `messages`, counting omitted ones; the end of the list if only the other goes on. */
  message: number;
  /** The offset in the text that differs, in code points of the whole text; 0 if the text is hashed. */
  character: number;
  /** The id of the member that it was compared with. */
  of: string;
  /** Which text of the message differs; for `tool_calls`, the arguments. */
  field: "content" | "parts" | "reasoning" | "role" | "tool_calls";
  /** The index of the tool call or part. */
  number: number | null;
}

/** One criterion of a rubric. */
export interface RubricCriterion {
  name: string;
  weight: Float | null;
  text: string | null;
}

/** The result for one criterion and one rollout. */
export interface RubricCell {
  value: Float | null;
  /** The last reply of the grader about it. */
  words: string | null;
}

/** A part of a message that is not plain text, or a mark where a new text part begins. */
export interface Part {
  /** `image`, `audio`, `video`, `file`, `thinking`, `refusal`, `text` (a mark), or the name a provider gave it. */
  type: string;
  /** Where it stands: the number of characters of the message's `content` before it. */
  offset?: number;
  /** Text of its own, such as a thought between two pieces of text. */
  text?: string;
  /** The address of something that is not carried, kept as an address. */
  url?: string;
  /** The bytes it carries. */
  blob?: string;
  /** Such as `image/png`. */
  media_type?: string;
  /** Its other fields, as they came. */
  other?: Record<string, Json>;
}

/** One call of a tool that the policy asked for. */
export interface ToolCall {
  /** The tool's name as the policy wrote it; empty where it could not be read. */
  name: string;
  /** The arguments exactly as the policy wrote them: JSON if it was careful. */
  arguments?: string;
  /** What the tool's answer refers to. */
  id?: string;
  /** Why the call could not be parsed; `arguments` then holds its raw text. */
  error?: string;
  /** Its other fields, as they came. */
  other?: Record<string, Json>;
}

/** The tokens of one step, where they were asked for. */
export interface Tokens {
  /** Ids of the whole prompt when they are handed in; in a record, those after the shared prefix. */
  prompt: number[];
  response: number[];
  /** Log-probability of each response token under the policy that sampled it. */
  logprobs: Float[] | null;
  /** How many ids the prompt shares with the start of the previous step's prompt and response together. */
  shared_prefix?: number;
  /**
   * How many characters of the step's text (`raw`, else the response's content) each response token stands for. Special
   * tokens have 0. If several tokens make up one character, the last of them has it.
   */
  char_lengths?: number[];
}

/** Why an env did not finish a turn of the policy. */
export type EnvFailure = "raised" | "timed_out" | "cancelled" | "aborted";
