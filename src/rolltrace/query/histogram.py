"""Histograms: counts of numbers in bins with round edges."""

import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.sql_check import Parameters

MAX_BINS = 20
_ROUND = (1.0, 2.0, 2.5, 5.0)
"""The widths of bins, times a power of ten."""


class Bin(msgspec.Struct, frozen=True):
    """How many values there are from `low` up to, not including, `high`; in the last bin `high` counts too."""

    low: float
    high: float
    n: int


class Histogram(msgspec.Struct, frozen=True):
    """Adjacent bins. If all numbers are equal there is one bin of width 0; without numbers there are no bins."""

    bins: tuple[Bin, ...]
    n: int
    """How many numbers are in the bins, which is how many are finite."""
    missing: int
    """How many are null."""
    non_finite: int
    min: float | None = None
    max: float | None = None


def histogram(values: Iterable[float | None], max_bins: int = MAX_BINS) -> Histogram:
    """The histogram of some values, in at most `max_bins` bins."""
    everything = list(values)
    numbers = [value for value in everything if value is not None]
    finite = [float(value) for value in numbers if math.isfinite(value)]
    missing, non_finite = len(everything) - len(numbers), len(numbers) - len(finite)
    if not finite:
        return Histogram((), 0, missing, non_finite)
    low, high = min(finite), max(finite)
    edges = round_edges(low, high, max_bins)
    counts = Counter(_bin(value, edges) for value in finite)
    return Histogram(_bins_between(edges, counts), len(finite), missing, non_finite, low, high)


def query_histogram(
    run: Run,
    of: str = "reward",
    where: str | None = None,
    parameters: Parameters = None,
    *,
    table: str = COUNTED_ROLLOUTS,
    max_bins: int = MAX_BINS,
    timeout: float | None = None,
) -> Histogram:
    """The histogram of an SQL expression over rows of a run; values that are not numbers count as missing.

    `table` is the FROM clause, by default the rollouts that count. `parameters` are those of `of` and `where`.
    """
    rows = f"select try_cast((\n{of}\n) as double) as value from (select * from {table})"
    rows += "" if where is None else f" where (\n{where}\n)"
    statement = f"""
        select count(*) filter (isfinite(value)), count(*) filter (value is null),
            count(*) filter (not isfinite(value)),
            min(value) filter (isfinite(value)), max(value) filter (isfinite(value))
        from ({rows})
    """
    n, missing, non_finite, low, high = run.sql(statement, parameters, timeout).fetchone() or (0, 0, 0, None, None)
    if not n:
        return Histogram((), 0, missing, non_finite)
    edges = {0: round_edges(low, high, max_bins)}
    keyed = f"select 0 as key, 0 as part, value from ({rows})"
    bins = count_in_bins(run, keyed, edges, parameters, timeout)[0, 0]
    return Histogram(bins, n, missing, non_finite, low, high)


def count_in_bins(
    run: Run,
    rows: str,
    edges: Mapping[int, Sequence[float]],
    parameters: Parameters = None,
    timeout: float | None = None,
) -> dict[tuple[int, Any], tuple[Bin, ...]]:
    """Count the finite values of each `key` and `part` in the bins between the edges of the key.

    `rows` is a SELECT of `key`, `part` and `value`; with more than one key it has no parameters.
    """
    if not edges:
        return {}
    if len(edges) == 1:
        [(key, only)] = edges.items()
        number, joined = _bin_number(only), f"({rows}) where key = {key} and"
    else:
        parameters = {"keys": list(edges), "inner_edges": [list(some[1:-1]) for some in edges.values()]}
        table = "select unnest($keys) as key, unnest($inner_edges::double[][]) as inner_edges"
        number = "len(list_filter(inner_edges, lambda edge: value >= edge))"
        joined = f"({rows}) join ({table}) using (key) where"
    counting = f"select key, part, {number} as bin, count(*) from {joined} isfinite(value) group by all"
    counts: dict[tuple[int, Any], dict[int, int]] = {}
    for key, part, bin_, n in run.sql(counting, parameters, timeout):
        counts.setdefault((key, part), {})[bin_] = n
    return {(key, part): _bins_between(edges[key], by_bin) for (key, part), by_bin in counts.items()}


def _bin_number(edges: Sequence[float]) -> str:
    """SQL for the bin number of a column `value`."""
    # Comparing with each edge is the fastest way in DuckDB, and rounds as Python does.
    return " + ".join(f"(value >= '{edge!r}'::double)::bigint" for edge in edges[1:-1]) or "0"


def round_edges(low: float, high: float, max_bins: int = MAX_BINS) -> list[float]:
    """The edges of at most `max_bins` bins from `low` to `high`; one edge if these are equal."""
    if max_bins < 1:
        raise InputError(f"Expected at least one bin, got {max_bins}.")
    if low == high:
        return [low]
    width = high / max_bins - low / max_bins  # `high - low` could overflow
    if width > 0:
        exponent = math.floor(math.log10(width)) - 1
        for power in range(exponent, exponent + 4):
            for factor in _ROUND:
                edges = _edges(low, high, factor, power, max_bins)
                if edges is not None:
                    return edges
    return [low, high]


def _edges(low: float, high: float, factor: float, power: int, max_bins: int) -> list[float] | None:
    """Multiples of one width around all values; None if there are too many, or floats are not precise enough."""
    if not sys.float_info.min_10_exp <= power < sys.float_info.max_10_exp:
        return None
    width = factor * 10.0**power
    first, last = math.floor(low / width), math.ceil(high / width)
    if last - first > max_bins:
        return None
    edges = [_multiple(number, width, power) for number in range(first, last + 1)]
    fits = edges[0] <= low and high <= edges[-1] and all(a < b for a, b in pairwise(edges))
    return edges if fits else None


def _multiple(number: int, width: float, power: int) -> float:
    """A multiple of the width, rounded to its digits: 0.3 and not 0.30000000000000004."""
    largest = sys.float_info.max
    return min(largest, max(-largest, round(number * width, 1 - power)))


def _bin(value: float, edges: Sequence[float]) -> int:
    return 0 if len(edges) < 3 else bisect_right(edges, value, 1, len(edges) - 1) - 1


def _bins_between(edges: Sequence[float], counts: Mapping[int, int]) -> tuple[Bin, ...]:
    """The bins between edges, given the counts by number; a single edge makes one bin of width 0."""
    highs = edges[1:] or edges
    return tuple(
        Bin(low, high, counts.get(number, 0)) for number, (low, high) in enumerate(zip(edges, highs, strict=False))
    )
