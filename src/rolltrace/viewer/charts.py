"""Charts of a run: measures over iterations and by environment, and how rollouts ended."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolltrace.query.histogram import Bin, count_in_bins, round_edges
from rolltrace.query.number_stats import NumberStats, stats_columns, stats_from_row
from rolltrace.query.run import Run
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_identifier
from rolltrace.trace.score import GroupKey
from rolltrace.viewer.columns import find_measure
from rolltrace.viewer.filters import RolloutSelection, select_rollouts
from rolltrace.viewer.schemas import (
    EnvironmentsResponse,
    EnvironmentStats,
    HistogramResponse,
    IterationHistogram,
    IterationHistogramsResponse,
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
    """The bins of a range of iterations."""

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


def query_series(run: Run, selection: RolloutSelection, measures: Sequence[str]) -> list[SeriesResponse]:
    """Measures over iterations."""
    span = _span(run, selection)
    found: list[list[SeriesBin]] = [[] for _ in measures]
    if span is not None:
        statement = f"""
            select measure, {span.bin} as bin, count(*) as rollouts, {STATS_COLUMNS}, {_QUANTILES}
            from ({_measured(selection, measures, "iteration")}) where iteration is not null group by 1, 2 order by 2
        """
        for row in run.sql(statement, timeout=selection.timeout).dicts():
            found[row.pop("measure")].append(_series_bin(row, span))
    return [SeriesResponse(measure=name, bins=tuple(bins)) for name, bins in zip(measures, found, strict=True)]


def query_outcomes(run: Run, selection: RolloutSelection) -> OutcomesResponse:
    """How rollouts ended over iterations, and how many of their groups have a learning signal."""
    span = _span(run, selection)
    if span is None:
        return OutcomesResponse(bins=())
    columns = ("stop_reason", "status", "error_layer", "error_type", *GroupKey.__struct_fields__)
    rows = select_rollouts(selection, {sql_identifier(name): name for name in columns})
    statement = f"""
        with selected as ({rows}), played as (
            select {span.bin} as bin, count(*) as rollouts, histogram(stop_reason) as stop_reasons,
                histogram(status) as statuses, histogram({_KIND}) filter (error_type is not null) as errors
            from selected where iteration is not null group by 1
        ), grouped as (
            select {span.bin} as bin, count(*) as groups, count(*) filter (has_signal) as groups_with_signal,
                count(*) filter (n >= 2 and not has_signal) as groups_without_signal
            from groups semi join selected using ({GROUP_COLUMNS})
            group by 1
        )
        select * from played left join grouped using (bin) order by bin
    """
    return OutcomesResponse(
        bins=tuple(_outcomes_bin(row, span) for row in run.sql(statement, timeout=selection.timeout).dicts())
    )


def query_histograms(
    run: Run, selection: RolloutSelection, measures: Sequence[str], bins: int
) -> list[HistogramResponse]:
    """The histograms of measures."""
    rows = f"select measure as key, 0 as part, value from ({_measured(selection, measures)})"
    statement = f"select key, {STATS_COLUMNS} from ({rows}) group by 1"
    stats = {row.pop("key"): stats_from_row(row) for row in run.sql(statement, timeout=selection.timeout).dicts()}
    found = count_in_bins(run, rows, _edges(stats, bins), timeout=selection.timeout)
    return [
        HistogramResponse(measure=name, bins=found.get((key, 0), ()), **_counts(stats.get(key)))
        for key, name in enumerate(measures)
    ]


def query_iteration_histograms(
    run: Run, selection: RolloutSelection, measures: Sequence[str], bins: int
) -> list[IterationHistogramsResponse]:
    """How measures are distributed in each bin of iterations; the edges are those of the bin's own values."""
    span = _span(run, selection)
    found: list[list[IterationHistogram]] = [[] for _ in measures]
    if span is not None:
        values = _measured(selection, measures, "iteration")
        rows = f"select measure * {MAX_BINS} + {span.bin} as key, 0 as part, value from ({values})"
        statement = f"select key, {STATS_COLUMNS} from ({rows}) where key is not null group by 1 order by 1"
        stats = {row.pop("key"): stats_from_row(row) for row in run.sql(statement, timeout=selection.timeout).dicts()}
        counted = count_in_bins(run, rows, _edges(stats, bins), timeout=selection.timeout)
        for key, numbers in stats.items():
            measure, bin_ = divmod(key, MAX_BINS)
            first, last = span.ends(bin_)
            bins_here = counted.get((key, 0), ())
            found[measure].append(IterationHistogram(first=first, last=last, bins=bins_here, **_counts(numbers)))
    return [
        IterationHistogramsResponse(measure=name, iterations=tuple(some))
        for name, some in zip(measures, found, strict=True)
    ]


def query_environments(
    run: Run, selection: RolloutSelection, measures: Sequence[str], bins: int
) -> list[EnvironmentsResponse]:
    """Measures by environment, over bins that all environments share."""
    values = _measured(selection, measures, "env", "stop_reason")
    statement = f"""
        select measure, env, count(*) as rollouts, {STATS_COLUMNS}, median(value) filter (isfinite(value)) as median,
            histogram(stop_reason) as stop_reasons
        from ({values}) group by 1, 2
        qualify row_number() over (partition by measure order by rollouts desc, env) <= {_MAX_ENVIRONMENTS}
        order by rollouts desc, env
    """
    rows: list[list[dict[str, Any]]] = [[] for _ in measures]
    for row in run.sql(statement, timeout=selection.timeout).dicts():
        rows[row.pop("measure")].append(row)
    edges = {key: _shared_edges(some, bins) for key, some in enumerate(rows) if any(row["n"] for row in some)}
    keyed = f"select measure as key, env as part, value from ({values})"
    counted = count_in_bins(run, keyed, edges, timeout=selection.timeout)
    return [
        EnvironmentsResponse(
            measure=name,
            environments=tuple(_environment(row, counted.get((key, row["env"]), ())) for row in rows[key]),
        )
        for key, name in enumerate(measures)
    ]


def _measured(selection: RolloutSelection, measures: Sequence[str], *columns: str) -> str:
    """SQL for the rollouts of a selection, once for each measure: its number as `measure`, and its `value`."""
    for name in measures:
        find_measure(name)
    aliases = {f"m{number}": name for number, name in enumerate(measures)}
    rows = select_rollouts(selection, {**aliases, **{name: name for name in columns}})
    values = [f"{alias}::double" for alias in aliases]
    expanded = f"unnest(range({len(values)})) as measure, unnest([{', '.join(values)}]) as value"
    one = f"0 as measure, {values[0]} as value"  # for the server, without the cost of lists
    return f"select {', '.join((one if len(values) == 1 else expanded, *columns))} from ({rows})"


def _span(run: Run, selection: RolloutSelection) -> IterationBins | None:
    rows = select_rollouts(selection, {"iteration": "iteration"})
    [(first, last)] = run.sql(
        f"select min(iteration), max(iteration) from ({rows})", timeout=selection.timeout
    ).fetchall()
    return None if first is None else IterationBins(first, last, -(-(last - first + 1) // MAX_BINS))


def _series_bin(row: dict[str, Any], span: IterationBins) -> SeriesBin:
    first, last = span.ends(row.pop("bin"))
    q05, q25, median, q75, q95 = row.pop("quantiles") or [None] * 5
    return SeriesBin(first=first, last=last, q05=q05, q25=q25, median=median, q75=q75, q95=q95, **row)


def _edges(stats: Mapping[int, NumberStats], bins: int) -> dict[int, list[float]]:
    """By key, the edges of bins around its finite values."""
    ends = {key: (one.min, one.max) for key, one in stats.items()}
    return {
        key: round_edges(low, high, bins) for key, (low, high) in ends.items() if low is not None and high is not None
    }


def _shared_edges(rows: Sequence[Mapping[str, Any]], bins: int) -> list[float]:
    """The edges of bins around the values of all rows; at least one row has a value."""
    some = [row for row in rows if row["n"]]
    return round_edges(min(row["min"] for row in some), max(row["max"] for row in some), bins)


def _counts(stats: NumberStats | None) -> dict[str, int]:
    """How many values there are, of which kind."""
    return {name: getattr(stats, name, 0) for name in ("n", "missing", "non_finite")}


def _outcomes_bin(row: dict[str, Any], span: IterationBins) -> OutcomesBin:
    first, last = span.ends(row.pop("bin"))
    for name in ("stop_reasons", "statuses", "errors"):
        row[name] = most_frequent(row[name] or {})
    for name in ("groups", "groups_with_signal", "groups_without_signal"):
        row[name] = row[name] or 0
    return OutcomesBin(first=first, last=last, **row)


def _environment(row: Mapping[str, Any], bins: tuple[Bin, ...]) -> EnvironmentStats:
    return EnvironmentStats(**{**row, "stop_reasons": most_frequent(row["stop_reasons"] or {})}, bins=bins)


def most_frequent(counts: dict[str, int]) -> dict[str, int]:
    """The most frequent of some values, most frequent first: what a model may name can be very many."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MAX_KINDS])
