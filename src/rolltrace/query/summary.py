"""One run's numbers: what was played, how it ended, what it was rewarded, what was lost."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.query.run import Run, open_run
from rolltrace.store.ledger import Ledger
from rolltrace.store.reader import RunReader
from rolltrace.trace.careful import json_encoder
from rolltrace.trace.numbers import wire_numbers

_MOST_PROBLEMS = 20
_MOST_ERRORS = 20


class Rewards(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of some rollouts; the statistics are over the finite ones."""

    n: int
    """How many are finite numbers."""
    missing: int
    """How many are null: failed, cancelled or not graded yet."""
    non_finite: int
    mean: float | None
    spread: float | None
    """The standard deviation, of the population."""
    min: float | None
    max: float | None


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration of one split."""

    split: str
    iteration: int
    rollouts: int
    groups: int
    groups_with_signal: int
    """Groups whose members were rewarded differently."""
    rewards: Rewards
    failed: int
    """Rollouts whose status is not ok."""
    steps: float | None
    """The mean number of steps."""


class Failures(msgspec.Struct, frozen=True):
    """Failures of one kind."""

    layer: str
    type: str
    count: int
    example: str
    """The message of one of them."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to. Where a restart repeated an iteration, only the latest session counts."""

    path: str
    run: str | None
    created_at: datetime | None
    rollouts: int
    """Every attempt counts."""
    retried: int
    """Of those, how many were tried again."""
    superseded: int
    """How many more there are that a restart repeated; no other number counts them."""
    groups: int
    groups_with_signal: int
    groups_without_signal: int
    """Groups of at least two rewards, all the same: they teach nothing. Groups of fewer are in neither number."""
    envs: dict[str, int]
    policies: dict[str, int]
    rewards: Rewards
    iterations: tuple[Iteration, ...]
    stop_reasons: dict[str, int]
    """The most frequent first; they sum up to all rollouts."""
    statuses: dict[str, int]
    errors: tuple[Failures, ...]
    steps: int
    prompt_tokens: int
    completion_tokens: int
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    """The mean time of a rollout."""
    sessions: int
    open_sessions: int
    ledger: dict[str, int]
    """The ledgers' counts, summed up."""
    problems: tuple[str, ...]
    """What could not be read: the first of it."""
    problem_count: int


_REWARDS = """
    count(*) filter (isfinite(reward)) as n, count(*) filter (reward is null) as missing,
    count(*) filter (not isfinite(reward)) as non_finite, avg(reward) filter (isfinite(reward)) as mean,
    stddev_pop(reward) filter (isfinite(reward)) as spread, min(reward) filter (isfinite(reward)) as min,
    max(reward) filter (isfinite(reward)) as max
"""
_TOTALS = f"""
    select count(*) as rollouts, count(*) filter (retried) as retried, {_REWARDS},
        coalesce(sum(steps), 0)::bigint as steps, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
        coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
        min(started_at) as started_at, max(ended_at) as ended_at, avg(seconds) as seconds
    from rollouts
"""
_ITERATIONS = f"""
    with played as (
        select split, iteration, count(*) as rollouts, {_REWARDS},
            count(*) filter (status <> 'ok') as failed, avg(steps) as steps
        from rollouts group by all
    ), grouped as (
        select split, iteration, count(*) as groups, count(*) filter (has_signal) as groups_with_signal
        from groups group by all
    )
    select * from played left join grouped using (split, iteration) order by split, iteration
"""
_GROUPS = """
    select count(*), count(*) filter (has_signal), count(*) filter (n >= 2 and not has_signal) from groups
"""
_ERRORS = f"""
    select error_layer, error_type, count(*) as count, any_value(error_message)
    from rollouts where error_type is not null group by all order by count desc, error_layer, error_type
    limit {_MOST_ERRORS}
"""


def summarize(path: str | Path) -> RunSummary:
    """The numbers of the run at `path`, through SQL, so that a large one takes no longer than its tables."""
    reader = RunReader(path)
    with open_run(path) as run:
        totals = next(run.sql(_TOTALS).dicts())
        groups, with_signal, without_signal = _row(run, _GROUPS)
        (superseded,) = _row(run, "select count(*) filter (superseded) from every_rollout")
        iterations = tuple(_iteration(row) for row in run.sql(_ITERATIONS).dicts())
        errors = tuple(Failures(*row) for row in run.sql(_ERRORS).fetchall())
        counts = {name: _counts(run, name) for name in ("env", "policy", "stop_reason", "status")}
        problems = run.problems
    ledgers = list(reader.ledgers().values())
    return RunSummary(
        path=str(path),
        run=None if reader.info is None else reader.info.id,
        created_at=None if reader.info is None else reader.info.created_at,
        retried=totals["retried"],
        superseded=superseded,
        groups=groups,
        groups_with_signal=with_signal,
        groups_without_signal=without_signal,
        envs=counts["env"],
        policies=counts["policy"],
        rewards=_rewards(totals),
        iterations=iterations,
        stop_reasons=counts["stop_reason"],
        statuses=counts["status"],
        errors=errors,
        sessions=len(ledgers),
        open_sessions=sum(not ledger.closed for ledger in ledgers),
        ledger=_sum(ledgers),
        problems=tuple(map(str, problems[:_MOST_PROBLEMS])),
        problem_count=len(problems),
        started_at=_in_utc(totals["started_at"]),
        ended_at=_in_utc(totals["ended_at"]),
        **{name: totals[name] for name in ("rollouts", "steps", "prompt_tokens", "completion_tokens", "seconds")},
    )


def encode_run_summary(summary: RunSummary) -> bytes:
    """A summary as one JSON object; a number that is not finite is spelt out."""
    fields = msgspec.structs.asdict(summary)
    fields["rewards"] = _wire_rewards(summary.rewards)
    fields["iterations"] = [
        {**msgspec.structs.asdict(one), "rewards": _wire_rewards(one.rewards)} for one in summary.iterations
    ]
    return json_encoder.encode(fields)


def _wire_rewards(rewards: Rewards) -> dict[str, Any]:
    return wire_numbers(msgspec.structs.asdict(rewards))


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _row(run: Run, question: str) -> tuple[Any, ...]:
    return run.sql(question).fetchone() or ()


def _counts(run: Run, column: str) -> dict[str, int]:
    question = f"select {column}, count(*) from rollouts group by 1 order by 2 desc, 1"
    return dict(run.sql(question).fetchall())


def _rewards(row: dict[str, Any]) -> Rewards:
    return Rewards(**{name: row[name] for name in Rewards.__struct_fields__})


def _iteration(row: dict[str, Any]) -> Iteration:
    counted = {name: row[name] or 0 for name in ("groups", "groups_with_signal")}
    fields = {name: row[name] for name in Iteration.__struct_fields__ if name != "rewards"}
    return Iteration(**{**fields, **counted}, rewards=_rewards(row))


def _sum(ledgers: Iterable[Ledger]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for ledger in ledgers:
        for name in ("dispatched", "recorded", "in_flight", "scores_recorded"):
            total[name] += getattr(ledger, name)
        for name in ("unrecordable", "dropped", "scores_dropped", "blobs_dropped", "texts_dropped"):
            total[name] += sum(getattr(ledger, name).values())
    return dict(total)
