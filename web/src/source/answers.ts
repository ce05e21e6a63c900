// The answers of the server, as JSON. Python's structs of rolltrace.viewer are the truth; names are theirs.
import type { Comparison, Term } from "./comparison";
import type { GroupKey, Json, Num, RolloutRecord, ScoreRecord } from "./records";

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
  state: "running" | "complete" | "interrupted" | "died" | "unknown";
  /** Whether its state is `running`. */
  live: boolean;
  /** How many count; null where the run is too large to be read for a list. */
  rollouts: number | null;
  recorded: number;
  /** How many episodes it is to have, where that was stated. */
  planned: number | null;
  /** How many episodes are finished; null where the run is too large to be read for a list. */
  finished: number | null;
  groups: number | null;
  lost: number;
  maybe_lost: number;
  /** Rollouts of places that several sessions recorded at once. */
  collides: number | null;
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
  /** How many episodes it is to have, where that was stated. */
  planned: number | null;
  /** How many episodes are finished. */
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
/** Numbers about numbers; the statistics are over the finite ones, and overflow where those are huge. */
export interface Spread {
  n: number;
  missing: number;
  non_finite: number;
  mean: Num | null;
  std: Num | null;
  min: Num | null;
  max: Num | null;
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
  maybe_lost: number;
  is_balanced: boolean;
  scores_recorded: number;
  scores_dropped: Record<string, number>;
  blobs_dropped: Record<string, number>;
  redaction_failed: Record<string, number>;
  sync_failed: Record<string, number>;
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
  q05: Num | null;
  q25: Num | null;
  median: Num | null;
  q75: Num | null;
  q95: Num | null;
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
  median: Num | null;
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
export interface GroupAnswer {
  group: Comparison;
  previous: GroupKey | null;
  next: GroupKey | null;
}

// ── GET /api/rollout?run=&id= ────────────────────────────────────────────────────────────────────────────────────────
export interface RolloutAnswer {
  rollout: RolloutRecord;
  /** As it stands now, late scores included. */
  reward: Num | null;
  advantage: Num | null;
  /** What the reward is the sum of; where there is none, what is known of it so far. */
  terms: Term[];
  /** Late facts about this rollout, oldest first: the newest of them where there are very many. */
  scores: ScoreRecord[];
  /** The id of the one among them that the reward comes from. */
  reward_score: string | null;
  group: { size: number; n: number; mean: Num | null; std: Num | null; has_signal: boolean; members: GroupPlace[] };
  /** The other seats of the same episode, this one included; empty where it is no game. */
  seats: GroupPlace[];
  /** Other attempts and sessions of the same place, this one included. */
  attempts: { id: string; attempt: number; session: string; status: string; stop_reason: string; superseded: boolean; collides: boolean }[];
}
export interface GroupPlace {
  id: string;
  index: number | null;
  seat: number | null;
  episode: number | null;
  policy: string;
  status: string;
  stop_reason: string;
  steps: number;
  reward: Num | null;
}

// ── Errors: HTTP 4xx/5xx ─────────────────────────────────────────────────────────────────────────────────────────────
export interface ErrorAnswer {
  error: { type: string; message: string };
}
