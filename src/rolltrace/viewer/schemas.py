"""The responses of the server, as JSON objects; `rollout_schemas` has those about one rollout and one group.

`docs/typescript_types.py` makes the page's types of them: names, fields and docstrings are written here only. `Float`
marks numbers that may not be finite.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from rolltrace.check.audit import Severity
from rolltrace.query.histogram import Bin
from rolltrace.query.number_stats import NumberStats
from rolltrace.query.run_state import RunState
from rolltrace.trace.json_numbers import Float

Counts = dict[str, int]


class RunListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the list."""

    key: str
    """The path below the folder; every other request names the run by it."""
    name: str
    run: str | None = None
    created_at: datetime | None = None
    written_at: datetime | None = None
    state: RunState
    live: bool = False
    """Whether its state is `running`."""
    rollouts: int | None = None
    """The number without retried and superseded rollouts; None if the run is too large to be read for a list."""
    recorded: int = 0
    planned: int | None = None
    """The planned number of episodes; None if the run states none."""
    finished: int | None = None
    """The number of finished episodes; None if the run is too large to be read for a list."""
    groups: int | None = None
    lost: int = 0
    maybe_lost: int = 0
    collides: int | None = None
    """The number of rollouts in slots that several sessions recorded at the same time."""
    errors: int | None = None
    """The number of rollouts whose status is `error`."""
    mean_reward: Float | None = None
    sparkline: tuple[Float | None, ...] = ()
    """The mean reward over iterations, at most 60 points; None for iterations without a reward."""
    envs: tuple[str, ...] | None = None
    policies: tuple[str, ...] | None = None
    bytes: int = 0
    problem: str | None = None
    """Why the run, or a part of it, cannot be read."""
    is_pending: bool = False
    """Whether its numbers are missing or old because it was not read yet."""


class RunsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/runs`: all runs below the folder, the newest first."""

    folder: str
    version: str
    runs: tuple[RunListEntry, ...]
    total: int
    pending: int = 0
    """How many runs were not read yet: the page repeats the request, which reads some of them, until it is 0."""


class RevisionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/revisions`: by run key, a text that changes whenever the files of the run do.

    It costs little: the page asks every 1.4 seconds, and repeats its requests about the runs that have changed.
    """

    revisions: dict[str, str]


class Count(msgspec.Struct, frozen=True):
    """The number of rollouts that have a value."""

    value: str
    n: int


class ErrorKind(msgspec.Struct, frozen=True):
    """Failures of one kind."""

    layer: str
    type: str
    n: int
    example: str


class LedgerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rollouts that were started, over all sessions."""

    sessions: int
    open_sessions: int
    dispatched: int
    recorded: int
    unrecordable: Counts
    dropped: Counts
    in_flight: int
    lost: int
    maybe_lost: int
    is_balanced: bool
    scores_recorded: int
    scores_dropped: Counts
    blobs_dropped: Counts
    redaction_failed: Counts
    sync_failed: Counts
    dropped_after_end: Counts


class Measure(msgspec.Struct, frozen=True):
    """A number of a rollout that can be charted.

    `reward_data.NAME` is summed over the steps, `grade.NAME` is from the rollout's grader, and `metrics.NAME` is of the
    rollout, else the mean over its steps.
    """

    name: str
    label: str
    kind: Literal["rollout", "reward_data", "grade", "metrics"]


class Column(msgspec.Struct, frozen=True):
    """A column of the table of rollouts: a column of the SQL table, or a measure."""

    name: str
    label: str
    type: Literal["text", "number", "time", "tags", "boolean", "json"]


class Iterations(msgspec.Struct, frozen=True):
    """The iterations of a run."""

    first: int
    last: int
    count: int
    """The number of distinct iterations."""


class RunResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/run?run=`: the overview of one run."""

    key: str
    name: str
    path: str
    run: str | None
    created_at: datetime | None
    config: Any
    package_version: str | None
    code_revision: str | None
    state: RunState
    live: bool
    revision: str
    planned: int | None
    """The planned number of episodes; None if the run states none."""
    finished: int
    """The number of finished episodes."""
    rollouts: int
    retried: int
    superseded: int
    collides: int
    groups: int
    groups_with_signal: int
    groups_without_signal: int
    splits: tuple[Count, ...]
    envs: tuple[Count, ...]
    policies: tuple[Count, ...]
    tags: tuple[Count, ...]
    stop_reasons: tuple[Count, ...]
    statuses: tuple[Count, ...]
    errors: tuple[ErrorKind, ...]
    rewards: NumberStats
    iterations: Iterations | None
    """None if there are no rollouts."""
    steps: int
    prompt_tokens: int
    completion_tokens: int
    mean_seconds: float | None
    started_at: datetime | None
    ended_at: datetime | None
    ledger: LedgerSummary
    problems: tuple[str, ...]
    """The first of the errors that were met in reading the run."""
    problem_count: int
    """The number of all of them."""
    measures: tuple[Measure, ...]
    columns: tuple[Column, ...]


class DamageResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/damage?run=`: what answers about the run are without; every page of the run says so."""

    problems: tuple[str, ...]
    """The first of the parts of the run that could not be read."""
    problem_count: int
    """The number of all of them."""
    coverage: float
    """Which part of the run was read by now, from 0 to 1: the newest segments are read first."""


class SeriesBin(NumberStats, frozen=True, kw_only=True):
    """The distribution of a measure over the iterations from `first` to `last`, both included."""

    first: int
    last: int
    rollouts: int
    q05: Float | None
    q25: Float | None
    median: Float | None
    q75: Float | None
    q95: Float | None


class SeriesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/series?run=&measure=&FILTERS`: a measure over iterations."""

    measure: str
    bins: tuple[SeriesBin, ...]
    """At most 200, each of the same number of iterations: usually one."""


class OutcomesBin(msgspec.Struct, frozen=True, kw_only=True):
    """How the rollouts of the iterations from `first` to `last`, both included, ended."""

    first: int
    last: int
    rollouts: int
    stop_reasons: Counts
    statuses: Counts
    errors: Counts
    """By `LAYER: TYPE`."""
    groups: int
    groups_with_signal: int
    groups_without_signal: int


class OutcomesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/outcomes?run=&FILTERS`: how rollouts ended, over iterations."""

    bins: tuple[OutcomesBin, ...]


class HistogramResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/histogram?run=&measure=&bins=&FILTERS`: the distribution of a measure."""

    measure: str
    bins: tuple[Bin, ...]
    n: int
    missing: int
    non_finite: int


class IterationHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """The histogram of a measure over the iterations from `first` to `last`, both included."""

    first: int
    last: int
    bins: tuple[Bin, ...]
    n: int
    missing: int
    non_finite: int


class IterationHistogramsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/iteration_histograms?run=&measure=&bins=&FILTERS`: the distribution of a measure in each iteration."""

    measure: str
    iterations: tuple[IterationHistogram, ...]


class EnvironmentStats(NumberStats, frozen=True, kw_only=True):
    """The distribution of a measure in one environment."""

    env: str
    rollouts: int
    median: Float | None
    bins: tuple[Bin, ...]
    stop_reasons: Counts


class EnvironmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/environments?run=&measure=&bins=&FILTERS`: a measure by environment; all have the same bins."""

    measure: str
    environments: tuple[EnvironmentStats, ...]


class RolloutRow(TypedDict):
    """A row of the table of rollouts: its id, and by name the columns that were requested."""

    id: str


class RolloutsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/rollouts?run=&FILTERS&sort=-reward,iteration&offset=&limit=&columns=a,b`: rows of the table."""

    total: int
    offset: int
    rows: tuple[Annotated[dict[str, Any], msgspec.Meta(extra={"json_of": RolloutRow})], ...]


class SearchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/search?run=&search=&since=`: searches further, for half a second, the newest rollouts first.

    Without `since` it begins. Other requests with the same `search` and `since` are about what was found by then.
    """

    since: str
    """The smallest id that was searched, for the next request; empty if everything was searched."""
    searched: int
    """How many rollouts were searched."""
    total: int
    """How many there are."""
    hits: int
    """How many of those that were searched contain the text."""


class FacetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/facets?run=&FILTERS&columns=env,stop_reason`: the number of rollouts with each value of some columns.

    Filters on a column do not apply to its own values.
    """

    facets: dict[str, tuple[Count, ...]]
    """By column, at most 100 values, the most frequent first."""


class NeighboursResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/neighbours?run=&id=&FILTERS&sort=`: the rows before and after a rollout in the table."""

    position: int | None
    """From 0; None if the table does not have the rollout."""
    total: int
    previous: str | None
    next: str | None


class SqlColumn(msgspec.Struct, frozen=True):
    """A column of the result of a query."""

    name: str
    type: str


class SqlResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /api/sql {run, sql, limit}`: the result of a query."""

    columns: tuple[SqlColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
    """Whether the query has more rows than the limit."""
    seconds: float


class AuditFinding(msgspec.Struct, frozen=True):
    """One finding of an audit."""

    message: str
    rollouts: tuple[str, ...]
    """Those that it is about, or the first of them."""
    address: str | None
    """What it is about: SPLIT/ENV/ITERATION/GROUP/INDEX, or the beginning of one."""
    subject: str
    data: Any


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """An audit that found something, or that failed."""

    name: str
    family: str
    severity: Severity
    why: str
    fix: str
    """What to do about its findings."""
    count: int
    error: str | None
    findings: tuple[AuditFinding, ...]


class FindingsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/findings?run=` and `POST /api/check {run}`: the result of a check of the run."""

    state: Literal["absent", "running", "ready", "failed"]
    """`absent`: not requested yet; a large run is checked only after `POST /api/check`."""
    stale: bool
    """Whether the run has changed since the check."""
    audits: int
    """How many audits ran."""
    found: tuple[AuditResult, ...]
    message: str | None


class ErrorDetail(msgspec.Struct, frozen=True):
    """The type and message of an error."""

    type: str
    message: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every response whose HTTP status is an error."""

    error: ErrorDetail
