"""The overview of a run in the viewer: totals, rewards, errors, ledger, and its measures and columns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rolltrace.query.run import Run
from rolltrace.query.run_state import planned_episodes, settle_continued
from rolltrace.query.run_summary import RolloutNumbers, query_numbers
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, RunTotals, query_totals
from rolltrace.store.ledger import LOSSES, Ledger
from rolltrace.store.read_errors import ReadError
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.viewer.columns import columns_with
from rolltrace.viewer.open_runs import OpenRun, find_measures
from rolltrace.viewer.schemas import (
    Count,
    DamageResponse,
    ErrorKind,
    Iterations,
    LedgerSummary,
    RunListEntry,
    RunResponse,
)

_MAX_VALUES = 100
_MAX_PROBLEMS = 20
_MAX_EXAMPLE_CHARS = 1_000
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


def run_overview(run: OpenRun, entry: RunListEntry) -> RunResponse:
    """The overview of a run; some fields are those of its entry in the run list."""
    revision, numbers = run.revision, run.run
    queried = run.cached("overview", lambda: _query(numbers), lambda _: 20_000)
    measures = find_measures(run)
    totals: RunTotals = queried["totals"]
    rollouts: RolloutNumbers = queried["numbers"]
    info, ledgers = numbers.info, list(numbers.ledgers().values())
    damage = find_damage(run)
    return RunResponse(
        key=run.key,
        name=entry.name,
        path=str(run.path),
        run=entry.run,
        created_at=entry.created_at,
        config=to_json_mapping(info.config, "config", []),
        package_version=info.package_version,
        code_revision=info.code_revision,
        state=entry.state,
        live=entry.live,
        revision=revision,
        planned=planned_episodes(info),
        finished=totals.finished,
        rollouts=totals.rollouts,
        retried=totals.retried,
        superseded=totals.superseded,
        collides=totals.collides,
        groups=totals.groups,
        groups_with_signal=rollouts.groups_with_signal,
        groups_without_signal=rollouts.groups_without_signal,
        envs=_counts(totals.envs),
        policies=_counts(totals.policies),
        stop_reasons=_counts(totals.stop_reasons),
        **queried["values"],
        errors=queried["errors"],
        rewards=rollouts.rewards,
        iterations=_iterations(rollouts),
        steps=rollouts.steps,
        prompt_tokens=rollouts.prompt_tokens,
        completion_tokens=rollouts.completion_tokens,
        mean_seconds=rollouts.mean_seconds,
        started_at=rollouts.started_at,
        ended_at=rollouts.ended_at,
        ledger=_ledger(ledgers, totals),
        problems=damage.problems,
        problem_count=damage.problem_count,
        measures=measures,
        columns=columns_with(measures),
    )


def find_damage(run: OpenRun) -> DamageResponse:
    """What could not be read of the run, cached."""

    def read() -> tuple[ReadError, ...]:
        run.run.refresh()
        return run.run.problems

    found = run.cached("problems", read, lambda problems: 1_000 * len(problems))
    problems = tuple(dict.fromkeys([*found, *run.run.problems]))  # a run that was opened again knows only the latter
    shown = tuple(map(str, problems[:_MAX_PROBLEMS]))
    return DamageResponse(problems=shown, problem_count=len(problems), coverage=run.run.coverage)


def _query(run: Run) -> dict[str, Any]:
    """Query everything that comes from the tables."""
    values: dict[str, tuple[Count, ...]] = dict.fromkeys(("splits", "statuses", "tags"), ())
    for kind, value, n in run.sql(_VALUES):
        if len(values[kind]) < _MAX_VALUES and value is not None:
            values[kind] += (Count(value, n),)
    return {
        "totals": query_totals(run),
        "numbers": query_numbers(run),
        "values": values,
        "errors": tuple(ErrorKind(layer, kind, n, example or "") for layer, kind, n, example in run.sql(_ERRORS)),
    }


def _iterations(numbers: RolloutNumbers) -> Iterations | None:
    if numbers.first_iteration is None or numbers.last_iteration is None:
        return None
    return Iterations(numbers.first_iteration, numbers.last_iteration, numbers.iterations)


def _counts(counts: Mapping[str, int]) -> tuple[Count, ...]:
    return tuple(Count(value, n) for value, n in list(counts.items())[:_MAX_VALUES])


def _ledger(ledgers: Sequence[Ledger], totals: RunTotals) -> LedgerSummary:
    settled = [totals.reconcile(ledger) for ledger in settle_continued(ledgers)]
    maps: dict[str, Counter[str]] = {name: Counter() for name in LOSSES}
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
