"""The columns of the rollout table: those of the SQL table, and the measures of rollouts."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.table_schema import (
    GROUP_COLUMNS,
    NUMBER_MAP,
    ROLLOUT_COLUMNS,
    STORED_COLUMNS,
    sql_identifier,
    sql_literal,
)
from rolltrace.viewer.schemas import Column, Measure

MAX_NAMES = 300
"""How many names of one kind are listed: keys of a map may be very many."""

_KINDS = {
    "VARCHAR": "text", "BIGINT": "number", "DOUBLE": "number", "TIMESTAMP": "time", "VARCHAR[]": "tags",
    "BOOLEAN": "boolean", "JSON": "json", NUMBER_MAP: "json",
}  # fmt: skip
_TYPES = {
    **STORED_COLUMNS["rollouts"],
    "seconds": "DOUBLE",
    "reward": "DOUBLE",
    "retried": "BOOLEAN",
    "collides": "BOOLEAN",
}
_PLAIN_MEASURES = ("reward", "advantage", "steps", "completion_tokens", "prompt_tokens", "seconds")
_ADVANTAGE = "advantage"
_SIGNAL = "group_signal"
_STEPS, _GRADE, _METRICS = "reward_data.", "grade.", "metrics."
_OF_MAPS = {
    _STEPS: "r.step_reward_data[NAME]", _GRADE: "r.grade_reward_data[NAME]",
    _METRICS: "coalesce(r.metrics[NAME], r.step_metrics[NAME])",
}  # fmt: skip
_LABELS = {_STEPS: "reward", _GRADE: "grade", _METRICS: "metric"}


class JoinedValue(NamedTuple):
    """A value that is computed from other rows than the rollout's own."""

    source: Callable[[Sequence[str], str], str]
    """Called with the values and with SQL for the ids that are needed, or an empty text for all; returns a SELECT of
    `id` and the values."""
    value: str
    """The SQL expression of the value in that SELECT."""


class ColumnExpression(NamedTuple):
    """The SQL of a column: an expression over `r`, the rollouts, or a joined value."""

    expression: str
    kind: str
    joined: JoinedValue | None = None


def column_expression(name: str) -> ColumnExpression:
    """The SQL of the column with this name."""
    if name in ROLLOUT_COLUMNS:
        return ColumnExpression(f"r.{sql_identifier(name)}", _KINDS[_TYPES[name]])
    if name == _ADVANTAGE:
        return ColumnExpression("", "number", JoinedValue(_over_groups, "reward - mean"))
    if name == _SIGNAL:
        return ColumnExpression("", "text", JoinedValue(_over_groups, "signal"))
    for prefix, expression in _OF_MAPS.items():
        if name.startswith(prefix):
            return ColumnExpression(expression.replace("NAME", sql_literal(name.removeprefix(prefix))), "number")
    known = ", ".join((*ROLLOUT_COLUMNS, _ADVANTAGE, _SIGNAL, f"{_STEPS}NAME", f"{_GRADE}NAME", f"{_METRICS}NAME"))
    raise InputError(f"Expected a column of the table of rollouts, got {name!r}. The columns are {known}.")


def find_measure(name: str) -> ColumnExpression:
    """The SQL of the measure with this name."""
    term = column_expression(name)
    if term.kind != "number":
        raise InputError(f"Expected a column of numbers as measure, got {name!r}, which is {term.kind}.")
    return term


# The same mean as in the table `groups`, which takes much longer to make because of its lists of members.
_MEAN = "case when bool_and(isfinite(reward)) then avg(reward) filter (isfinite(reward)) else 'NaN'::double end"
_DIFFERS = "case when count(reward) < 2 then 'too few' when max(reward) > min(reward) then 'yes' else 'no' end"


def _over_groups(values: Sequence[str], ids: str) -> str:
    """SQL for values of each counted rollout that are computed from its group."""
    some = f"where id in ({ids})" if ids else ""
    needed = f"semi join (from rollouts {some}) using ({GROUP_COLUMNS})" if ids else ""
    return f"""
        select id, {", ".join(values)} from (from rollouts {some}) join (
            select {GROUP_COLUMNS}, {_MEAN} as mean, {_DIFFERS} as signal
            from rollouts {needed} where not retried group by all
        ) using ({GROUP_COLUMNS}) where not retried
    """


def query_measures(run: Run) -> tuple[Measure, ...]:
    """Every measure that a rollout of the run has."""
    measures = [Measure(name, _spaced(name), "rollout") for name in _PLAIN_MEASURES]
    measures += [_measure(_STEPS, name) for name in _keys(run, "step_reward_data")]
    measures += [_measure(_GRADE, name) for name in _keys(run, "grade_reward_data")]
    measures += [_measure(_METRICS, name) for name in _keys(run, "metrics", "step_metrics")]
    return tuple(measures)


def columns_with(measures: Iterable[Measure]) -> tuple[Column, ...]:
    """Every column of the table of rollouts, given the measures."""
    own = [Column(name, _spaced(name), _KINDS[_TYPES[name]]) for name in ROLLOUT_COLUMNS]  # type: ignore[arg-type]
    others = [Column(one.name, one.label, "number") for one in measures if one.name not in ROLLOUT_COLUMNS]
    return (*own, Column(_SIGNAL, _spaced(_SIGNAL), "text"), *others)


def _measure(prefix: str, name: str) -> Measure:
    kind = prefix.removesuffix(".")
    return Measure(f"{prefix}{name}", f"{_LABELS[prefix]} · {name}", kind)  # type: ignore[arg-type]


def _keys(run: Run, *columns: str) -> list[str]:
    """The names that maps of rollouts hold, in order."""
    selects = " union ".join(f"select unnest(map_keys({column})) as name from rollouts" for column in columns)
    return [name for (name,) in run.sql(f"select distinct name from ({selects}) order by 1 limit {MAX_NAMES}")]


def _spaced(name: str) -> str:
    return name.replace("_", " ")
