"""What one run comes to: its counts, rewards, errors and ledger, and what else can be asked of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rolltrace.query.run import Run
from rolltrace.query.run_state import planned_episodes, settle_continued
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, RunTotals, query_totals
from rolltrace.store.ledger import Ledger
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.viewer.charts import STATS_COLUMNS
from rolltrace.viewer.columns import columns_with
from rolltrace.viewer.open_runs import OpenRun, find_measures
from rolltrace.viewer.schemas import (
    Count,
    ErrorKind,
    Iterations,
    LedgerSummary,
    NumberStats,
    RunListEntry,
    RunResponse,
)

_MAX_VALUES = 100
_MAX_PROBLEMS = 20
_MAX_EXAMPLE_CHARS = 1_000
_NUMBERS = f"""
    select {STATS_COLUMNS}, coalesce(sum(steps), 0)::bigint as steps,
        coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
        coalesce(sum(completion_tokens), 0)::bigint as completion_tokens, avg(seconds) as mean_seconds,
        min(started_at) as started_at, max(ended_at) as ended_at,
        min(iteration) as first, max(iteration) as last, count(distinct iteration) as count
    from (select *, reward as value from {COUNTED_ROLLOUTS})
"""
_SIGNALS = """
    select count(*) filter (has_signal), count(*) filter (n >= 2 and not has_signal) from groups
"""
_VALUES = f"""
    select * from (
        select 'splits' as kind, split as value, count(*) as n from {COUNTED_ROLLOUTS} group by 2
        union all select 'statuses', status, count(*) from {COUNTED_ROLLOUTS} group by 2
        union all select 'tags', tag, count(*) from (select unnest(tags) as tag from {COUNTED_ROLLOUTS}) group by 2
    ) order by kind, n desc, value
"""
_ERRORS = f"""
    select coalesce(error_layer, ''), error_type, count(*) as n, left(any_value(error_message), {_MAX_EXAMPLE_CHARS})
    from {COUNTED_ROLLOUTS} and error_type is not null group by 1, 2 order by n desc, 1, 2 limit {_MAX_VALUES}
"""
_MAPS = ("unrecordable", "dropped", "scores_dropped", "blobs_dropped", "redaction_failed", "sync_failed")


def run_overview(run: OpenRun, card: RunListEntry) -> RunResponse:
    """The numbers of a run; some of them stand on its card already."""
    revision, numbers = run.stamp.revision, run.run
    told = run.cached("overview", lambda: _ask(numbers), lambda _: 20_000)
    measures = find_measures(run)
    totals: RunTotals = told["totals"]
    row, values = told["numbers"], told["values"]
    info, ledgers = numbers.info, list(numbers.ledgers().values())
    problems = tuple(dict.fromkeys([*told["problems"], *numbers.problems]))
    return RunResponse(
        key=run.key,
        name=card.name,
        path=str(run.path),
        run=card.run,
        created_at=card.created_at,
        config=to_json_mapping(info.config, "config", []),
        package_version=info.package_version,
        code_revision=info.code_revision,
        state=card.state,
        live=card.live,
        revision=revision,
        planned=planned_episodes(info),
        finished=totals.finished,
        rollouts=totals.rollouts,
        retried=totals.retried,
        superseded=totals.superseded,
        collides=totals.collides,
        groups=totals.groups,
        groups_with_signal=told["signals"][0],
        groups_without_signal=told["signals"][1],
        envs=_counts(totals.envs),
        policies=_counts(totals.policies),
        stop_reasons=_counts(totals.stop_reasons),
        **values,
        errors=told["errors"],
        rewards=NumberStats(**{name: row[name] for name in NumberStats.__struct_fields__}),
        iterations=None if row["first"] is None else Iterations(row["first"], row["last"], row["count"]),
        **{name: row[name] for name in ("steps", "prompt_tokens", "completion_tokens", "mean_seconds")},
        started_at=_in_utc(row["started_at"]),
        ended_at=_in_utc(row["ended_at"]),
        ledger=_ledger(ledgers, totals),
        problems=tuple(map(str, problems[:_MAX_PROBLEMS])),
        problem_count=len(problems),
        measures=measures,
        columns=columns_with(measures),
    )


def _ask(run: Run) -> dict[str, Any]:
    """What the tables say."""
    values: dict[str, tuple[Count, ...]] = dict.fromkeys(("splits", "statuses", "tags"), ())
    for kind, value, n in run.sql(_VALUES):
        if len(values[kind]) < _MAX_VALUES and value is not None:
            values[kind] += (Count(value, n),)
    return {
        "totals": query_totals(run),
        "numbers": next(run.sql(_NUMBERS).dicts()),
        "signals": run.sql(_SIGNALS).fetchone() or (0, 0),
        "values": values,
        "errors": tuple(ErrorKind(layer, kind, n, example or "") for layer, kind, n, example in run.sql(_ERRORS)),
        "problems": run.problems,  # last: what is asked before finds them
    }


def _counts(counts: Mapping[str, int]) -> tuple[Count, ...]:
    return tuple(Count(value, n) for value, n in list(counts.items())[:_MAX_VALUES])


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _ledger(ledgers: Sequence[Ledger], totals: RunTotals) -> LedgerSummary:
    settled = [totals.reconcile(ledger) for ledger in settle_continued(ledgers)]
    maps: dict[str, Counter[str]] = {name: Counter() for name in _MAPS}
    for ledger in ledgers:
        for name, counter in maps.items():
            counter.update(getattr(ledger, name))
    return LedgerSummary(
        sessions=len(ledgers),
        open_sessions=sum(not ledger.closed for ledger in ledgers),
        dispatched=sum(ledger.dispatched for ledger in ledgers),
        recorded=sum(ledger.recorded for ledger in ledgers),
        in_flight=sum(ledger.in_flight for ledger in settled),
        lost=sum(ledger.lost for ledger in settled),
        maybe_lost=sum(ledger.maybe_lost for ledger in settled),
        is_balanced=all(ledger.is_balanced for ledger in ledgers),
        scores_recorded=sum(ledger.scores_recorded for ledger in ledgers),
        **{name: dict(counter) for name, counter in maps.items()},
    )
