"""The statistics in a report: the server's answers to the questions that its page can ask."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rolltrace.viewer import charts
from rolltrace.viewer.api import DEFAULT_BINS
from rolltrace.viewer.filters import RolloutSelection, parse_filter
from rolltrace.viewer.json_response import encode_response
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.rollout_table import MAX_FACETS, count_values
from rolltrace.viewer.schemas import RunResponse

_MAX_MEASURES = 50
"""How many measures have charts."""
_MAX_CHARTS = 500
"""The limit for measures × selections, which are splits, environments and pairs of both: about five seconds."""
_MAX_POINTS = 10_000
"""The approximate limit for the points of all charts, measures × iterations × selections: about a megabyte."""
_CHART_BINS, _TABLE_BINS = 24, 64
"""The most bins of a histogram on the run's page, and above the table of rollouts."""
_ANSWERED = "steps:min:1"
"""The page's filter for the lengths of responses: a rollout that failed before the first one has no length."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer of the server, and the question as the page asks it, without the run."""

    question: str
    parameters: dict[str, Any]
    answer: msgspec.Raw


def stored_answers(run: OpenRun, overview: RunResponse) -> Iterator[StoredAnswer]:
    """The answers for the run's page, by split, environment and measure, and for the table of rollouts."""
    measures = [measure.name for measure in overview.measures][:_MAX_MEASURES]
    length = "completion_tokens" if overview.completion_tokens else "steps"
    iterations = min(charts.MAX_BINS, overview.iterations.count if overview.iterations else 1)
    most = max(1, min(_MAX_CHARTS, _MAX_POINTS // iterations) // len(measures))
    for filters in _offered_filters(overview)[:most]:
        yield from _run_page(run, filters, measures, length)
    for answer in charts.query_histograms(run.run, RolloutSelection(), measures, _TABLE_BINS):
        yield _stored("histogram", answer, measure=answer.measure, bins=_TABLE_BINS)
    columns = [column.name for column in overview.columns if column.type in ("text", "tags")]
    for first in range(0, len(columns), MAX_FACETS):
        facets = count_values(run.run, RolloutSelection(), columns[first : first + MAX_FACETS]).facets
        for name, counts in facets.items():
            yield _stored("facets", counts, columns=name)


def _offered_filters(overview: RunResponse) -> list[list[str]]:
    """The filters for each split and environment that the page offers, the widest first."""
    splits: list[str | None] = [count.value for count in overview.splits]
    # Of several splits the page shows one at first: the training, if there is one.
    splits.sort(key=lambda split: split != "train")
    splits = [*splits, None] if len(splits) > 1 else [None]
    envs = [None, *(count.value for count in overview.envs)] if len(overview.envs) > 1 else [None]
    pairs = [(("split", split), ("env", env)) for env in envs for split in splits]
    return [[f"{name}:is:{value}" for name, value in pair if value is not None] for pair in pairs]


def _run_page(run: OpenRun, filters: list[str], measures: Sequence[str], length: str) -> Iterator[StoredAnswer]:
    selection, answered = (
        RolloutSelection(tuple(map(parse_filter, texts))) for texts in (filters, [*filters, _ANSWERED])
    )
    outcomes = charts.query_outcomes(run.run, selection)
    yield _stored("outcomes", outcomes, filter=filters)
    [lengths] = charts.query_series(run.run, answered, [length])
    yield _stored("series", lengths, measure=length, filter=[*filters, _ANSWERED])
    for series in charts.query_series(run.run, selection, measures):
        yield _stored("series", series, measure=series.measure, filter=filters)
    for found in charts.query_histograms(run.run, selection, measures, _CHART_BINS):
        yield _stored("histogram", found, measure=found.measure, bins=_CHART_BINS, filter=filters)
    if len(outcomes.bins) == 1:  # the page shows a single iteration by environment
        for one in charts.query_environments(run.run, selection, measures, DEFAULT_BINS):
            yield _stored("environments", one, measure=one.measure, filter=filters)
    else:
        for each in charts.query_iteration_histograms(run.run, selection, measures, _CHART_BINS):
            parameters = {"measure": each.measure, "bins": _CHART_BINS, "filter": filters}
            yield _stored("iteration_histograms", each, **parameters)


def _stored(question: str, answer: object, **parameters: object) -> StoredAnswer:
    return StoredAnswer(question, parameters, msgspec.Raw(encode_response(answer)))
