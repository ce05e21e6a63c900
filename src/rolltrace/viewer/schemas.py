"""The answers of the server; `web/src/source/answers.ts` names the same fields, and a test says so."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from rolltrace.query.histogram import Bin
from rolltrace.query.number_stats import NumberStats
from rolltrace.query.reward_breakdown import RewardTerm
from rolltrace.trace.score import GroupKey

Numbers = dict[str, int]


class RunListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the list."""

    key: str
    """Its path below the folder; names the run in every other question."""
    name: str
    run: str | None
    created_at: datetime | None
    written_at: datetime | None
    state: str
    live: bool
    """Whether its state is `running`."""
    rollouts: int | None
    """How many count; None where the run is too large to be read for a list."""
    recorded: int
    planned: int | None
    """How many episodes it is to have, where that was stated."""
    finished: int | None
    """How many episodes are finished; None where the run is too large to be read for a list."""
    groups: int | None
    lost: int
    maybe_lost: int
    collides: int | None
    """Rollouts of places that several sessions recorded at once."""
    errors: int | None
    """Rollouts whose status is `error`."""
    mean_reward: float | None
    sparkline: tuple[float | None, ...]
    """Mean reward over iterations."""
    envs: tuple[str, ...] | None
    policies: tuple[str, ...] | None
    bytes: int
    problem: str | None
    """What keeps it from being read, in a sentence."""


class RunsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """All runs below the folder, the newest first."""

    folder: str
    version: str
    runs: tuple[RunListEntry, ...]
    total: int


class RevisionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """By run, what changes whenever its files do."""

    revisions: dict[str, str]


class Count(msgspec.Struct, frozen=True):
    """How many rollouts have a value."""

    value: str
    n: int


class ErrorKind(msgspec.Struct, frozen=True):
    """Failures of one kind."""

    layer: str
    type: str
    n: int
    example: str


class LedgerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of everything that was begun, over all sessions."""

    sessions: int
    open_sessions: int
    dispatched: int
    recorded: int
    unrecordable: Numbers
    dropped: Numbers
    in_flight: int
    lost: int
    maybe_lost: int
    is_balanced: bool
    scores_recorded: int
    scores_dropped: Numbers
    blobs_dropped: Numbers
    redaction_failed: Numbers
    sync_failed: Numbers


class Measure(msgspec.Struct, frozen=True):
    """A number that a rollout has."""

    name: str
    label: str
    kind: Literal["rollout", "reward_data", "grade", "metrics"]


class Column(msgspec.Struct, frozen=True):
    """A column of the table of rollouts: one of SQL's, or a measure."""

    name: str
    label: str
    type: Literal["text", "number", "time", "tags", "boolean", "json"]


class Iterations(msgspec.Struct, frozen=True):
    """Which iterations there are."""

    first: int
    last: int
    count: int


class RunResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What one run comes to."""

    key: str
    name: str
    path: str
    run: str | None
    created_at: datetime | None
    config: Any
    package_version: str | None
    code_revision: str | None
    state: str
    live: bool
    revision: str
    planned: int | None
    """How many episodes it is to have, where that was stated."""
    finished: int
    """How many episodes are finished."""
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
    steps: int
    prompt_tokens: int
    completion_tokens: int
    mean_seconds: float | None
    started_at: datetime | None
    ended_at: datetime | None
    ledger: LedgerSummary
    problems: tuple[str, ...]
    problem_count: int
    measures: tuple[Measure, ...]
    columns: tuple[Column, ...]


class SeriesBin(NumberStats, frozen=True, kw_only=True):
    """Some iterations, both ends included, and how a measure lies in them."""

    first: int
    last: int
    rollouts: int
    q05: float | None
    q25: float | None
    median: float | None
    q75: float | None
    q95: float | None


class SeriesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A measure over iterations."""

    measure: str
    bins: tuple[SeriesBin, ...]


class OutcomesBin(msgspec.Struct, frozen=True, kw_only=True):
    """Some iterations, and how their rollouts ended."""

    first: int
    last: int
    rollouts: int
    stop_reasons: Numbers
    statuses: Numbers
    errors: Numbers
    """By `LAYER: TYPE`."""
    groups: int
    groups_with_signal: int
    groups_without_signal: int


class OutcomesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts ended over iterations."""

    bins: tuple[OutcomesBin, ...]


class HistogramResponse(msgspec.Struct, frozen=True, kw_only=True):
    """How a measure is distributed."""

    measure: str
    bins: tuple[Bin, ...]
    n: int
    missing: int
    non_finite: int


class EnvironmentStats(NumberStats, frozen=True, kw_only=True):
    """How a measure is distributed in one environment."""

    env: str
    rollouts: int
    median: float | None
    bins: tuple[Bin, ...]
    stop_reasons: Numbers


class EnvironmentsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A measure by environment, over shared bins."""

    measure: str
    environments: tuple[EnvironmentStats, ...]


class RolloutsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of a listing."""

    total: int
    offset: int
    rows: tuple[dict[str, Any], ...]


class FacetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """How many rollouts have each value of some columns."""

    facets: dict[str, tuple[Count, ...]]


class NeighboursResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout stands in a listing."""

    position: int | None
    total: int
    previous: str | None
    next: str | None


class SqlColumn(msgspec.Struct, frozen=True):
    """A column of a statement's result."""

    name: str
    type: str


class SqlResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement gave."""

    columns: tuple[SqlColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
    """Whether there are more rows than were asked for."""
    seconds: float


class AuditFinding(msgspec.Struct, frozen=True):
    """One thing that an audit found."""

    message: str
    rollout: str | None
    data: Any


class AuditResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one audit came to."""

    name: str
    severity: str
    about: str
    count: int
    error: str | None
    findings: tuple[AuditFinding, ...]


class FindingsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of the run came to."""

    state: Literal["absent", "running", "ready", "failed"]
    stale: bool
    """Whether the run has changed since."""
    audits: int
    found: tuple[AuditResult, ...]
    message: str | None


class GroupSibling(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout of the same group or episode."""

    id: str
    index: int | None
    seat: int | None
    episode: int | None
    policy: str
    status: str
    stop_reason: str
    steps: int
    reward: float | None


class RolloutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The group that a rollout is of."""

    size: int
    n: int
    mean: float | None
    std: float | None
    has_signal: bool
    members: tuple[GroupSibling, ...]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One play of a place in a group."""

    id: str
    attempt: int
    session: str
    status: str
    stop_reason: str
    superseded: bool
    collides: bool


class RolloutResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout, whole."""

    rollout: msgspec.Raw
    reward: float | None
    """As it stands now, late scores included."""
    advantage: float | None
    terms: tuple[RewardTerm, ...]
    """What the reward is the sum of; where there is none, what is known of it so far."""
    scores: tuple[msgspec.Raw, ...]
    """Late facts about this rollout, oldest first: the newest of them where there are very many."""
    reward_score: str | None
    """The id of the one among them that the reward comes from; None where it comes from the rollout itself."""
    group: RolloutGroup
    seats: tuple[GroupSibling, ...]
    """The other seats of the same episode, this one included; empty where it is no game."""
    attempts: tuple[Attempt, ...]
    """Other attempts and sessions of the same place, this one included."""


class GroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A group, its members side by side."""

    group: msgspec.Raw
    """As `query.comparison` encodes it."""
    previous: GroupKey | None
    next: GroupKey | None
