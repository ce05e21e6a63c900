"""Numbers over iterations and how they are distributed, each answered by one or two statements."""

from typing import Any, NamedTuple

from rolltrace.query.histogram import bin_number, bins_between, query_histogram, round_edges
from rolltrace.query.number_stats import stats_columns
from rolltrace.query.run import Run
from rolltrace.viewer.columns import find_measure
from rolltrace.viewer.filters import RolloutSelection, select_rollouts
from rolltrace.viewer.schemas import (
    EnvironmentsResponse,
    EnvironmentStats,
    HistogramResponse,
    OutcomesBin,
    OutcomesResponse,
    SeriesBin,
    SeriesResponse,
)

MAX_BINS = 200
_MAX_ENVIRONMENTS = 100
_MAX_KINDS = 50

STATS_COLUMNS = stats_columns("value")
"""The fields of `NumberStats`, over a column `value`."""
_QUANTILES = "quantile_cont(value, [0.05, 0.25, 0.5, 0.75, 0.95]) filter (isfinite(value)) as quantiles"
_KIND = "error_layer || ': ' || error_type"


class IterationBins(NamedTuple):
    """How iterations are put into bins."""

    first: int
    last: int
    width: int

    @property
    def bin(self) -> str:
        """The number of an iteration's bin, in SQL; iterations may be as far apart as integers are."""
        return f"((iteration::hugeint - ({self.first})) // {self.width})::bigint"

    def ends(self, number: int) -> tuple[int, int]:
        """The first and the last iteration of a bin."""
        first = self.first + number * self.width
        return first, min(first + self.width - 1, self.last)


def query_series(run: Run, selection: RolloutSelection, measure: str, timeout: float | None = None) -> SeriesResponse:
    """A measure over iterations."""
    find_measure(measure)
    span = _span(run, selection, timeout)
    if span is None:
        return SeriesResponse(measure=measure, bins=())
    question = f"""
        select {span.bin} as bin, count(*) as rollouts, {STATS_COLUMNS}, {_QUANTILES}
        from ({_valued(selection, measure, "iteration")}) where iteration is not null group by 1 order by 1
    """
    return SeriesResponse(
        measure=measure, bins=tuple(_series_bin(row, span) for row in run.sql(question, timeout=timeout).dicts())
    )


def query_outcomes(run: Run, selection: RolloutSelection, timeout: float | None = None) -> OutcomesResponse:
    """How rollouts ended over iterations, and which share of their groups carries a signal."""
    span = _span(run, selection, timeout)
    if span is None:
        return OutcomesResponse(bins=())
    columns = {
        name: name for name in ("iteration", "stop_reason", "status", "error_layer", "error_type", "split", "env")
    }
    rows = select_rollouts(selection, {**columns, "grouped": "group"})
    question = f"""
        with chosen as ({rows}), played as (
            select {span.bin} as bin, count(*) as rollouts, histogram(stop_reason) as stop_reasons,
                histogram(status) as statuses, histogram({_KIND}) filter (error_type is not null) as errors
            from chosen where iteration is not null group by 1
        ), judged as (
            select {span.bin} as bin, count(*) as groups, count(*) filter (has_signal) as groups_with_signal,
                count(*) filter (n >= 2 and not has_signal) as groups_without_signal
            from groups semi join chosen on groups.split = chosen.split and groups.iteration = chosen.iteration
                and groups.env = chosen.env and groups."group" = chosen.grouped
            group by 1
        )
        select * from played left join judged using (bin) order by bin
    """
    return OutcomesResponse(bins=tuple(_outcomes_bin(row, span) for row in run.sql(question, timeout=timeout).dicts()))


def query_measure_histogram(
    run: Run, selection: RolloutSelection, measure: str, bins: int, timeout: float | None = None
) -> HistogramResponse:
    """How a measure is distributed."""
    find_measure(measure)
    rows = f"({_valued(selection, measure)})"
    found = query_histogram(run, "value", table=rows, most=bins, timeout=timeout)
    return HistogramResponse(
        measure=measure, bins=found.bins, n=found.n, missing=found.missing, non_finite=found.non_finite
    )


def query_environments(
    run: Run, selection: RolloutSelection, measure: str, bins: int, timeout: float | None = None
) -> EnvironmentsResponse:
    """A measure by environment, over bins that all share."""
    find_measure(measure)
    rows = _valued(selection, measure, "env", "stop_reason")
    question = f"""
        select env, count(*) as rollouts, {STATS_COLUMNS}, median(value) filter (isfinite(value)) as median,
            histogram(stop_reason) as stop_reasons
        from ({rows}) group by env order by rollouts desc, env limit {_MAX_ENVIRONMENTS}
    """
    found = list(run.sql(question, timeout=timeout).dicts())
    lows = [row["min"] for row in found if row["n"]]
    edges = round_edges(min(lows), max(row["max"] for row in found if row["n"]), bins) if lows else []
    counting = f"select env, {bin_number(edges)} as bin, count(*) from ({rows}) where isfinite(value) group by all"
    counts = {(env, number): n for env, number, n in run.sql(counting, timeout=timeout)}
    return EnvironmentsResponse(measure=measure, environments=tuple(_environment(row, edges, counts) for row in found))


def _valued(selection: RolloutSelection, measure: str, *columns: str) -> str:
    """The rollouts of a selection with a measure as `value`, a double."""
    rows = select_rollouts(selection, {"measured": measure, **{name: name for name in columns}})
    return f"select * exclude (measured), measured::double as value from ({rows})"


def _span(run: Run, selection: RolloutSelection, timeout: float | None) -> IterationBins | None:
    rows = select_rollouts(selection, {"iteration": "iteration"})
    [(first, last)] = run.sql(f"select min(iteration), max(iteration) from ({rows})", timeout=timeout).fetchall()
    return None if first is None else IterationBins(first, last, -(-(last - first + 1) // MAX_BINS))


def _series_bin(row: dict[str, Any], span: IterationBins) -> SeriesBin:
    first, last = span.ends(row.pop("bin"))
    q05, q25, median, q75, q95 = row.pop("quantiles") or [None] * 5
    return SeriesBin(first=first, last=last, q05=q05, q25=q25, median=median, q75=q75, q95=q95, **row)


def _outcomes_bin(row: dict[str, Any], span: IterationBins) -> OutcomesBin:
    first, last = span.ends(row.pop("bin"))
    for name in ("stop_reasons", "statuses", "errors"):
        row[name] = most_frequent(row[name] or {})
    for name in ("groups", "groups_with_signal", "groups_without_signal"):
        row[name] = row[name] or 0
    return OutcomesBin(first=first, last=last, **row)


def _environment(row: dict[str, Any], edges: list[float], counts: dict[tuple[str, int], int]) -> EnvironmentStats:
    bins = bins_between(edges, [counts.get((row["env"], number), 0) for number in range(max(1, len(edges) - 1))])
    return EnvironmentStats(**{**row, "stop_reasons": most_frequent(row["stop_reasons"] or {})}, bins=bins)


def most_frequent(counts: dict[str, int]) -> dict[str, int]:
    """The most frequent of some values, most frequent first: what a model may name can be very many."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MAX_KINDS])
