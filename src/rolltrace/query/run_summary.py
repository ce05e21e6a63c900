"""One run's numbers: what was played, how it ended, what it was rewarded, what was lost."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.query.run import Run
from rolltrace.query.run_state import RunState, planned_episodes, run_state, settle_continued
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, query_totals
from rolltrace.store.ledger import Ledger
from rolltrace.store.reader import RunReader

_MAX_PROBLEMS = 20
_MAX_ERRORS = 20


class RewardStats(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of some rollouts; the statistics are over the finite ones."""

    n: int
    """How many are finite numbers."""
    missing: int
    """How many are null: failed, cancelled or not graded yet."""
    non_finite: int
    mean: float | None
    std: float | None
    """The standard deviation, of the population."""
    min: float | None
    max: float | None


class IterationStats(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of one split."""

    split: str
    iteration: int
    rollouts: int
    groups: int
    groups_with_signal: int
    groups_without_signal: int
    rewards: RewardStats
    failed: int
    """Rollouts whose status is not ok."""
    mean_steps: float | None
    """The mean number of steps of a rollout."""


class FailureCount(msgspec.Struct, frozen=True):
    """Failures of one kind."""

    layer: str
    type: str
    count: int
    example: str
    """The message of one of them."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run. `totals.Totals` says which rollouts count."""

    path: str
    run: str
    """The id of the run."""
    created_at: datetime
    state: RunState
    planned: int | None
    """How many rollouts (of games: episodes) the run is to have, where that is known."""
    finished: int
    """How many of those are there and were not cancelled."""
    rollouts: int
    """How many count."""
    retried: int
    """Attempts that were tried again; only `errors` counts them."""
    superseded: int
    """Rollouts that a restart repeated; no other number counts them."""
    collides: int
    """Rollouts of a place in a group that several sessions recorded at the same time; all of them count."""
    groups: int
    groups_with_signal: int
    """Groups of at least two rewards, not all the same."""
    groups_without_signal: int
    """Groups of at least two rewards, all the same: they teach nothing. Groups of fewer are in neither number."""
    envs: dict[str, int]
    policies: dict[str, int]
    rewards: RewardStats
    iterations: tuple[IterationStats, ...]
    stop_reasons: dict[str, int]
    """The most frequent first; they sum up to all rollouts."""
    statuses: dict[str, int]
    errors: tuple[FailureCount, ...]
    """The most frequent, of every attempt, also of those that were tried again."""
    attempts: int
    """How many that is: rollouts and retried."""
    steps: int
    """How many there are, over all rollouts; so the tokens."""
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime | None
    ended_at: datetime | None
    mean_seconds: float | None
    """The mean time of a rollout."""
    sessions: int
    open_sessions: int
    lost: int
    """How many rollouts were begun and are not there, as the ledgers tell and the files do not refute."""
    maybe_lost: int
    """How many sessions that are not closed had in flight: being played, or lost with a writer that died."""
    ledger: dict[str, int]
    """The ledgers' counts as they tell them, summed up."""
    problems: tuple[str, ...]
    """What could not be read: the first of it."""
    problem_count: int


def stats_columns(name: str) -> str:
    """How the numbers of a column are spread, in SQL: the fields of `Rewards`."""
    return f"""
        count(*) filter (isfinite({name})) as n, count(*) filter ({name} is null) as missing,
        count(*) filter (not isfinite({name})) as non_finite, avg({name}) filter (isfinite({name})) as mean,
        stddev_pop({name}) filter (isfinite({name})) as std, min({name}) filter (isfinite({name})) as min,
        max({name}) filter (isfinite({name})) as max
    """


_REWARDS = stats_columns("reward")
_NUMBERS = f"""
    select {_REWARDS},
        coalesce(sum(steps), 0)::bigint as steps, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
        coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
        min(started_at) as started_at, max(ended_at) as ended_at, avg(seconds) as mean_seconds
    from {COUNTED_ROLLOUTS}
"""
_SIGNALS = """
    count(*) filter (has_signal) as groups_with_signal,
    count(*) filter (n >= 2 and not has_signal) as groups_without_signal
"""
_ITERATIONS = f"""
    with played as (
        select split, iteration, count(*) as rollouts, {_REWARDS},
            count(*) filter (status <> 'ok') as failed, avg(steps) as mean_steps
        from {COUNTED_ROLLOUTS} group by all
    ), grouped as (
        select split, iteration, count(*) as groups, {_SIGNALS} from groups group by all
    )
    select * from played left join grouped using (split, iteration) order by split, iteration
"""
_ERRORS = f"""
    select error_layer, error_type, count(*) as count, any_value(error_message)
    from rollouts where error_type is not null group by all order by count desc, error_layer, error_type
    limit {_MAX_ERRORS}
"""


def summarize(path: str | Path) -> RunSummary:
    """The numbers of the run at `path`, through SQL, so that a large one takes no longer than its tables."""
    with Run([RunReader(path)]) as run:
        totals = query_totals(run)
        numbers = next(run.sql(_NUMBERS).dicts())
        with_signal, without_signal = run.sql(f"select {_SIGNALS} from groups").fetchone() or (0, 0)
        iterations = tuple(_iteration(row) for row in run.sql(_ITERATIONS).dicts())
        errors = tuple(FailureCount(*row) for row in run.sql(_ERRORS).fetchall())
        statuses = run.sql(f"select status, count(*) from {COUNTED_ROLLOUTS} group by 1 order by 2 desc, 1").fetchall()
        ledgers = list(run.ledgers().values())
        settled = [totals.reconcile(ledger) for ledger in settle_continued(ledgers)]
        info, problems = run.info, run.problems
    planned = planned_episodes(info)
    return RunSummary(
        path=str(path),
        run=info.id,
        created_at=info.created_at,
        state=run_state(ledgers, planned, totals.finished),
        planned=planned,
        finished=totals.finished,
        rollouts=totals.rollouts,
        retried=totals.retried,
        superseded=totals.superseded,
        collides=totals.collides,
        attempts=totals.rollouts + totals.retried,
        groups=totals.groups,
        groups_with_signal=with_signal,
        groups_without_signal=without_signal,
        envs=dict(totals.envs),
        policies=dict(totals.policies),
        rewards=_rewards(numbers),
        iterations=iterations,
        stop_reasons=dict(totals.stop_reasons),
        statuses=dict(statuses),
        errors=errors,
        sessions=len(ledgers),
        open_sessions=sum(not ledger.closed for ledger in ledgers),
        lost=sum(ledger.lost for ledger in settled),
        maybe_lost=sum(ledger.maybe_lost for ledger in settled),
        ledger=_sum(ledgers),
        problems=tuple(map(str, problems[:_MAX_PROBLEMS])),
        problem_count=len(problems),
        started_at=_in_utc(numbers["started_at"]),
        ended_at=_in_utc(numbers["ended_at"]),
        **{name: numbers[name] for name in ("steps", "prompt_tokens", "completion_tokens", "mean_seconds")},
    )


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _rewards(row: dict[str, Any]) -> RewardStats:
    return RewardStats(**{name: row[name] for name in RewardStats.__struct_fields__})


def _iteration(row: dict[str, Any]) -> IterationStats:
    counted = {name: row[name] or 0 for name in ("groups", "groups_with_signal", "groups_without_signal")}
    fields = {name: row[name] for name in IterationStats.__struct_fields__ if name != "rewards"}
    return IterationStats(**{**fields, **counted}, rewards=_rewards(row))


def _sum(ledgers: Iterable[Ledger]) -> dict[str, int]:
    """Every count of the ledgers, those by reason over all reasons."""
    total: Counter[str] = Counter()
    for ledger in ledgers:
        for name, value in msgspec.structs.asdict(ledger).items():
            if isinstance(value, dict):
                total[name] += sum(value.values())
            elif type(value) is int and name != "v":
                total[name] += value
    return dict(total)
