"""The summary of a run: totals, rewards, iterations, errors and losses."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.query.number_stats import NumberStats, stats_columns, stats_from_row
from rolltrace.query.run import Run
from rolltrace.query.run_state import RunState, planned_episodes, run_state, settle_continued
from rolltrace.query.run_tables import OnCoverage
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, query_totals
from rolltrace.store.ledger import Ledger
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import RunFiles

_MAX_PROBLEMS = 20
_MAX_ERRORS = 20


class IterationStats(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of one split."""

    split: str
    iteration: int
    rollouts: int
    groups: int
    groups_with_signal: int
    groups_without_signal: int
    rewards: NumberStats
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
    """The numbers of a run. `RunTotals` says which rollouts count."""

    path: str
    run: str
    """The id of the run."""
    coverage: float
    """Which part of the run the numbers are about, from 0 to 1: all of it, unless they were to be partial."""
    created_at: datetime
    state: RunState
    planned: int | None
    """How many rollouts (in games: episodes) the run is to have, if that is known."""
    finished: int
    """How many of those are there and were not cancelled."""
    rollouts: int
    """How many count."""
    retried: int
    """Retried attempts; only `errors` counts them."""
    superseded: int
    """Rollouts that a later session played again; no other number counts them."""
    collides: int
    """Rollouts of an index that several sessions recorded at the same time; all of them count."""
    groups: int
    groups_with_signal: int
    """Groups of at least two rewards, not all the same."""
    groups_without_signal: int
    """Groups of at least two rewards, all equal: they have no learning signal. Smaller groups are in neither number."""
    envs: dict[str, int]
    policies: dict[str, int]
    rewards: NumberStats
    iterations: tuple[IterationStats, ...]
    stop_reasons: dict[str, int]
    """The most frequent first; they sum up to all rollouts."""
    statuses: dict[str, int]
    errors: tuple[FailureCount, ...]
    """The most frequent errors of all attempts, including retried ones."""
    attempts: int
    """The number of all attempts: rollouts and retried."""
    steps: int
    """The sum over all rollouts; likewise the tokens."""
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime | None
    ended_at: datetime | None
    mean_seconds: float | None
    """The mean time of a rollout."""
    sessions: int
    open_sessions: int
    lost: int
    """How many rollouts were started and are missing, by the ledgers and the files."""
    maybe_lost: int
    """How many rollouts open sessions have in flight: they are being played, or were lost when a writer died."""
    ledger: dict[str, int]
    """The sums of the ledgers' counts."""
    problems: tuple[str, ...]
    """The first read errors."""
    problem_count: int


_REWARDS = stats_columns("reward")
_NUMBERS = f"""
    select {_REWARDS},
        coalesce(sum(steps), 0)::bigint as steps, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
        coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
        min(started_at) as started_at, max(ended_at) as ended_at, avg(seconds) as mean_seconds,
        min(iteration) as first_iteration, max(iteration) as last_iteration, count(distinct iteration) as iterations
    from {COUNTED_ROLLOUTS}
"""
SIGNAL_COLUMNS = """
    count(*) filter (has_signal) as groups_with_signal,
    count(*) filter (n >= 2 and not has_signal) as groups_without_signal
"""
"""SQL for the number of groups with and without a learning signal, over the table `groups`."""
_ITERATIONS = f"""
    with played as (
        select split, iteration, count(*) as rollouts, {_REWARDS},
            count(*) filter (status <> 'ok') as failed, avg(steps) as mean_steps
        from {COUNTED_ROLLOUTS} group by all
    ), grouped as (
        select split, iteration, count(*) as groups, {SIGNAL_COLUMNS} from groups group by all
    )
    select * from played left join grouped using (split, iteration) order by split, iteration
"""
_ERRORS = f"""
    select error_layer, error_type, count(*) as count, any_value(error_message)
    from rollouts where error_type is not null group by all order by count desc, error_layer, error_type
    limit {_MAX_ERRORS}
"""


class RolloutNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Sums and statistics over the rollouts that count, and over all groups."""

    rewards: NumberStats
    steps: int
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime | None
    ended_at: datetime | None
    mean_seconds: float | None
    first_iteration: int | None
    last_iteration: int | None
    iterations: int
    """How many different iterations there are."""
    groups_with_signal: int
    groups_without_signal: int


def query_numbers(run: Run) -> RolloutNumbers:
    """The numbers of a run, for the summary and for the viewer."""
    row = next(run.sql(_NUMBERS).dicts()) | next(run.sql(f"select {SIGNAL_COLUMNS} from groups").dicts())
    fields = {name: row[name] for name in RolloutNumbers.__struct_fields__ if name in row}
    times = {name: _in_utc(row[name]) for name in ("started_at", "ended_at")}
    return RolloutNumbers(**{**fields, **times}, rewards=stats_from_row(row))


def summarize(
    path: str | Path | RunFiles, *, partial: bool = False, on_progress: OnCoverage | None = None
) -> RunSummary:
    """Summarize the run at `path`, with SQL; with `partial`, what can be read of it at once."""
    with Run([RunReader(path)], partial=partial, on_progress=on_progress) as run:
        run.hold()
        totals = query_totals(run)
        numbers = query_numbers(run)
        iterations = tuple(_iteration(row) for row in run.sql(_ITERATIONS).dicts())
        errors = tuple(FailureCount(*row) for row in run.sql(_ERRORS).fetchall())
        statuses = run.sql(f"select status, count(*) from {COUNTED_ROLLOUTS} group by 1 order by 2 desc, 1").fetchall()
        ledgers = list(run.ledgers().values())
        settled = [totals.reconcile(ledger) for ledger in settle_continued(ledgers)]
        info, problems, coverage = run.info, run.problems, run.coverage
    planned = planned_episodes(info)
    return RunSummary(
        path=str(run.path),
        coverage=coverage,
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
        groups_with_signal=numbers.groups_with_signal,
        groups_without_signal=numbers.groups_without_signal,
        envs=dict(totals.envs),
        policies=dict(totals.policies),
        rewards=numbers.rewards,
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
        started_at=numbers.started_at,
        ended_at=numbers.ended_at,
        steps=numbers.steps,
        prompt_tokens=numbers.prompt_tokens,
        completion_tokens=numbers.completion_tokens,
        mean_seconds=numbers.mean_seconds,
    )


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _iteration(row: dict[str, Any]) -> IterationStats:
    counted = {name: row[name] or 0 for name in ("groups", "groups_with_signal", "groups_without_signal")}
    fields = {name: row[name] for name in IterationStats.__struct_fields__ if name != "rewards"}
    return IterationStats(**{**fields, **counted}, rewards=stats_from_row(row))


def _sum(ledgers: Iterable[Ledger]) -> dict[str, int]:
    """The sum of each count of the ledgers, over all reasons."""
    total: Counter[str] = Counter()
    for ledger in ledgers:
        for name, value in msgspec.structs.asdict(ledger).items():
            if isinstance(value, dict):
                total[name] += sum(value.values())
            elif type(value) is int and name != "v":
                total[name] += value
    return dict(total)
