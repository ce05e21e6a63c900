"""Statistics of the numbers in a column: rewards, or any other measure."""

from collections.abc import Mapping
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float


class NumberStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of some numbers; mean, std, min and max are over the finite ones."""

    n: int
    """How many are finite."""
    missing: int
    """How many are null: the rollout failed, was cancelled or is not graded yet."""
    non_finite: int
    mean: Float | None
    std: Float | None
    """The standard deviation, of the population."""
    min: Float | None
    max: Float | None


def stats_columns(name: str) -> str:
    """SQL for the fields of `NumberStats` over a column."""
    return f"""
        count(*) filter (isfinite({name})) as n, count(*) filter ({name} is null) as missing,
        count(*) filter (not isfinite({name})) as non_finite, avg({name}) filter (isfinite({name})) as mean,
        stddev_pop({name}) filter (isfinite({name})) as std, min({name}) filter (isfinite({name})) as min,
        max({name}) filter (isfinite({name})) as max
    """


def stats_from_row(row: Mapping[str, Any]) -> NumberStats:
    """The statistics in a row that has the columns of `stats_columns`."""
    return NumberStats(**{name: row[name] for name in NumberStats.__struct_fields__})
