"""What can be asked over HTTP: the parameters of each question, and who answers it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey
from rolltrace.viewer import charts
from rolltrace.viewer import rollout_detail as records
from rolltrace.viewer import rollout_table as listing
from rolltrace.viewer.filters import RESPONSES_IN_MESSAGES, RolloutSelection, parse_selection, read_names
from rolltrace.viewer.findings import BackgroundChecks
from rolltrace.viewer.json_response import encode_response
from rolltrace.viewer.open_runs import OpenRun, OpenRuns
from rolltrace.viewer.run_list import RunList
from rolltrace.viewer.run_overview import run_overview
from rolltrace.viewer.schemas import RevisionsResponse
from rolltrace.viewer.user_sql import SQL_TIMEOUT_SECONDS, run_user_sql

DEFAULT_BINS = 20
_MAX_BINS = 100
_DEFAULT_COLUMNS = "iteration,env,group,index,reward,stop_reason,status"


class RequestParameters:
    """The parameters of a request."""

    def __init__(self, parameters: Sequence[tuple[str, str]]) -> None:
        self._parameters = parameters

    def all(self, name: str) -> list[str]:
        """Every value of that name."""
        return [value for given, value in self._parameters if given == name]

    def text(self, name: str, default: str | None = None) -> str:
        """The value of that name."""
        values = self.all(name)
        if len(values) > 1:
            raise InputError(f"Expected one value for {name}, got {len(values)}.")
        if values:
            return values[0]
        if default is None:
            raise InputError(f"Expected a value for {name}, got none.")
        return default

    def number(self, name: str, default: int | None = None, least: int = -(2**63), most: int = 2**63 - 1) -> int:
        """The integer of that name."""
        text = self.text(name, None if default is None else str(default))
        try:
            number = int(text) if len(text) <= 20 else most + 1
        except ValueError:
            raise InputError(f"Expected an integer for {name}, got {text[:100]!r}.") from None
        if not least <= number <= most:
            raise InputError(f"Expected {name} from {least} to {most}, got {text[:100]}.")
        return number

    def flag(self, name: str) -> bool:
        """Whether the value of that name says yes."""
        return self.text(name, "0").lower() in ("1", "true", "yes")

    @property
    def selection(self) -> RolloutSelection:
        """Which rollouts are meant."""
        return parse_selection(
            self.all("filter"), self.text("search", ""), self.text("where", ""), self.flag("retried")
        )

    @property
    def is_written(self) -> bool:
        """Whether a person wrote some SQL of it."""
        return any(name == "where" and value.strip() for name, value in self._parameters)


Answer = bytes
BinnedQuery = Callable[[Run, RolloutSelection, Sequence[str], int, float | None], Sequence[msgspec.Struct]]
"""A query for charts of some measures, with the most bins that each may have."""


class Api:
    """Answers questions about the runs of a library."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._cards = RunList(library)
        self._findings = BackgroundChecks(library)
        self.handlers: Mapping[str, Callable[[RequestParameters], Answer]] = {
            "runs": self._runs, "revisions": self._revisions, "run": self._run, "series": self._series,
            "outcomes": self._outcomes, "histogram": partial(self._binned, charts.query_histograms),
            "iteration_histograms": partial(self._binned, charts.query_iteration_histograms),
            "environments": partial(self._binned, charts.query_environments),
            "rollouts": self._rollouts, "facets": self._facets, "neighbours": self._neighbours,
            "findings": self._find, "group": self._group, "rollout": self._rollout,
        }  # fmt: skip
        """By name, what a GET asks."""

    def handle(self, question: str, asked: RequestParameters) -> Answer:
        """The answer to a question of any kind, SQL included."""
        return self.sql(asked) if question == "sql" else self.handlers[question](asked)

    def sql(self, asked: RequestParameters) -> Answer:
        """The rows of a statement that somebody wrote; only a process of its own may run it."""
        with self._library.open(asked.text("run")) as opened:
            return encode_response(run_user_sql(opened.text_run, asked.text("sql"), asked.number("limit", 1_000)))

    def check(self, run: str) -> Answer:
        """Begin a check of a run."""
        with self._library.open(run):
            return encode_response(self._findings.start(run))

    def close(self) -> None:
        """End what is being done in the background."""
        self._findings.close()

    def blob(self, asked: RequestParameters) -> bytes:
        """Bytes that a message carries."""
        with self._library.open(asked.text("run")) as opened:
            return opened.run.blob(asked.text("name"))

    def _runs(self, asked: RequestParameters) -> Answer:
        return encode_response(self._cards.list())

    def _revisions(self, asked: RequestParameters) -> Answer:
        standings = self._library.folder.stamps()
        return encode_response(RevisionsResponse(revisions={key: one.revision for key, one in standings.items()}))

    def _run(self, asked: RequestParameters) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            return encode_response(run_overview(opened, self._cards.one(opened.key)))

    def _series(self, asked: RequestParameters) -> Answer:
        measure = asked.text("measure", "reward")
        return self._cached_chart(
            asked, ("series", measure), lambda *given: charts.query_series(given[0], given[1], [measure], given[2])[0]
        )

    def _outcomes(self, asked: RequestParameters) -> Answer:
        return self._cached_chart(asked, ("outcomes",), charts.query_outcomes)

    def _binned(self, query: BinnedQuery, asked: RequestParameters) -> Answer:
        measure, bins = asked.text("measure", "reward"), asked.number("bins", DEFAULT_BINS, 1, _MAX_BINS)
        return self._cached_chart(
            asked,
            (query.__name__, measure, bins),
            lambda run, selection, timeout: query(run, selection, [measure], bins, timeout)[0],
        )

    def _rollouts(self, asked: RequestParameters) -> Answer:
        columns = read_names(asked.text("columns", _DEFAULT_COLUMNS))
        offset, limit = asked.number("offset", 0, 0), asked.number("limit", 100, 0, listing.MAX_ROWS)
        sort = listing.parse_sort(asked.text("sort", ""))
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            return encode_response(listing.list_rollouts(opened, run, selection, sort, columns, offset, limit))

    def _facets(self, asked: RequestParameters) -> Answer:
        columns = tuple(dict.fromkeys(read_names(asked.text("columns", ""))))
        return self._cached_chart(
            asked, ("facets", columns), lambda *given: listing.count_values(given[0], given[1], columns, given[2])
        )

    def _neighbours(self, asked: RequestParameters) -> Answer:
        sort = listing.parse_sort(asked.text("sort", ""))
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            return encode_response(listing.find_neighbours(opened, run, selection, sort, asked.text("id")))

    def _find(self, asked: RequestParameters) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            rollouts = self._cards.one(opened.key).rollouts
            return encode_response(self._findings.answer(opened.key, rollouts))

    def _group(self, asked: RequestParameters) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            key = GroupKey(asked.text("split"), asked.number("iteration"), asked.text("env"), asked.text("group"))
            return encode_response(records.group_response(opened, key))

    def _rollout(self, asked: RequestParameters) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            return encode_response(records.rollout_response(opened, asked.text("id")))

    def _cached_chart(
        self,
        asked: RequestParameters,
        question: tuple[Any, ...],
        ask: Callable[[Run, RolloutSelection, float | None], msgspec.Struct],
    ) -> Answer:
        """An answer about a selection, found once for each state of the run."""
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            timeout = SQL_TIMEOUT_SECONDS if selection.has_user_sql else None
            return opened.cached((*question, selection), lambda: encode_response(ask(run, selection, timeout)), len)


def _checked(opened: OpenRun, selection: RolloutSelection) -> tuple[RolloutSelection, Run]:
    """The selection, whose expression is no more than one, and the run to ask about it."""
    if selection.where:
        opened.text_run.rollouts(where=selection.where, limit=0)
    if selection.search:
        all_said = opened.cached(
            "all said", lambda: opened.text_run.sql(RESPONSES_IN_MESSAGES).fetchall() == [(True,)], lambda _: 1
        )
        selection = msgspec.structs.replace(selection, responses_in_messages=all_said)
    return selection, opened.text_run if selection.where or selection.search else opened.run
