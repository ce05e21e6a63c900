"""The metrics of iterations, as numbers by name: the same numbers as in the summary, the tables and the viewer."""

import re
from collections.abc import Collection
from typing import Any

from rolltrace.query.number_stats import stats_columns
from rolltrace.query.run import Run
from rolltrace.query.run_summary import SIGNAL_COLUMNS
from rolltrace.query.run_totals import COUNTED_ROLLOUTS

IterationKey = tuple[str, int]
"""A split, and the number of an iteration."""

_MAX_NAMES = 300
"""How many names of one kind are used: keys of a map may be very many."""
_MAX_NAME_CHARS = 100
_STATISTICS = {
    "reward": ("mean", "std", "min", "max"),
    "steps": ("mean", "max"),
    "prompt_tokens": ("mean",),
    "completion_tokens": ("mean", "max"),
    "response_chars": ("mean", "max"),
    "seconds": ("mean",),
}
"""By measure of a rollout, its statistics."""
_FLAGS = ("failed", "truncated", "parse_error")
"""Measures of a rollout that are 0 or 1, and never missing."""
_MEASURES = (*_STATISTICS, *_FLAGS)

_SELECTED = """
    iteration between list_min($iterations) and list_max($iterations)
    and (split, iteration) in (select (unnest($splits), unnest($iterations)))
"""
HASHED = r"'hashed:\d+:[0-9a-f]{16}'"
"""SQL for the pattern of a text that is recorded in place of another: its length and its hash."""
CHARS = f"""coalesce(
    if(regexp_full_match(response, {HASHED}), try_cast(split_part(response, ':', 2) as bigint), null),
    length(response), 0
)"""
"""SQL for the length of a response. One that only looks like a hashed text may have any number."""


def iteration_metrics(run: Run, keys: Collection[IterationKey] | None = None) -> dict[IterationKey, dict[str, float]]:
    """The metrics of these iterations, or of all of them, by name. What is unknown is left out."""
    if keys is not None and not keys:
        return {}
    selected, parameters = "true", None
    if keys is not None:
        selected = _SELECTED
        parameters = {"splits": [split for split, _ in keys], "iterations": [iteration for _, iteration in keys]}
    groups = {(row["split"], row["iteration"]): row for row in run.sql(_group_query(selected), parameters).dicts()}
    numbers: dict[IterationKey, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in run.sql(_number_query(selected), parameters).dicts():
        numbers.setdefault((row["split"], row["iteration"]), {})[row["kind"], row["name"]] = row
    return {key: _metrics(key[0], groups[key], rows) for key, rows in numbers.items() if key in groups}


def _metrics(split: str, groups: dict[str, Any], rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, float]:
    rollouts = rows["measure", "failed"]["n"]
    found: dict[str, float | None] = {
        "rollouts": rollouts,
        "groups": groups["groups"],
        "groups_without_signal": groups["groups_without_signal"],
        "no_signal_fraction": groups["groups_without_signal"] / groups["groups"],
        "reward/missing": rows["measure", "reward"]["missing"],
    }
    for measure, statistics in _STATISTICS.items():
        found |= {f"{measure}/{name}": rows["measure", measure][name] for name in statistics}
    found |= {f"{flag}_fraction": rows["measure", flag]["mean"] for flag in _FLAGS}
    for (kind, name), row in rows.items():
        if kind in ("stop_reason", "error"):
            found[f"{kind}/{_plain_name(name)}"] = row["n"] / rollouts
        elif kind != "measure":
            found[f"{kind}/{_plain_name(name)}"] = row["mean"]
    prefix = f"rollout/{_plain_name(split)}"
    return {f"{prefix}/{name}": float(value) for name, value in found.items() if value is not None}


def _plain_name(name: str) -> str:
    """A name as part of that of a metric, without characters that some tracker does not allow."""
    return re.sub(r"[^\w.:-]", "_", name[:_MAX_NAME_CHARS]).strip(".") or "_"


def _group_query(selected: str) -> str:
    return f"select split, iteration, count(*) as groups, {SIGNAL_COLUMNS} from groups where {selected} group by all"


def _number_query(selected: str) -> str:
    """SQL for statistics of each number of the rollouts that count."""
    names, values = (", ".join(form.format(name) for name in _MEASURES) for form in ("'{}'", "{}::double"))
    return f"""
        with counted as (
            from {COUNTED_ROLLOUTS} and {selected}
        ), turns as (
            from steps where {selected}
        ), responses as (
            select rollout, sum({CHARS}) as response_chars, bool_or(termination = 'length') as cut,
                bool_or(parse_error is not null) as unreadable, bool_and(completion_tokens is null) as uncounted
            from turns group by rollout
        ), measured as (
            select * replace (
                    if(uncounted, null, prompt_tokens) as prompt_tokens,
                    if(uncounted, null, completion_tokens) as completion_tokens
                ), status <> 'ok' as failed, coalesce(cut, false) as truncated,
                coalesce(unreadable, false) as parse_error
            from counted left join responses on rollout = id
        ), parts as (
            select rollout, part.key as name, sum(part.value) as value
            from turns, unnest(map_entries(reward_data)) as _(part) group by all
        ), metrics_of_both as (
            select id, metric.key as name, metric.value as own, null as of_step
            from counted, unnest(map_entries(metrics)) as _(metric)
            union all select rollout, metric.key, null, metric.value
            from turns, unnest(map_entries(metrics)) as _(metric)
        ), own_metrics as (
            select id as rollout, name, coalesce(max(own), avg(of_step)) as value from metrics_of_both group by all
        ), numbers as (
            select split, iteration, 'measure' as kind, unnest([{names}]) as name, unnest([{values}]) as value
            from measured
            union all select split, iteration, 'stop_reason', stop_reason, 1 from counted
            union all select split, iteration, 'error', error_layer, 1 from counted where error_layer is not null
            union all select split, iteration, 'reward_data', name, value from parts join counted on id = rollout
            union all select split, iteration, 'grade', part.key, part.value
            from counted, unnest(map_entries(grade_reward_data)) as _(part)
            union all select split, iteration, 'metrics', name, value from own_metrics join counted on id = rollout
        )
        select split, iteration, kind, name, {stats_columns("value")} from numbers group by 1, 2, 3, 4
        qualify row_number() over (partition by split, iteration, kind order by n desc, name) <= {_MAX_NAMES}
    """
