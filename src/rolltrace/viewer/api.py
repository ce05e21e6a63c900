"""The HTTP API of the viewer: the parameters of each request, and the function that answers it.

`schemas` and `rollout_schemas` list the requests and responses. FILTERS there are parameters that select rollouts:

    filter=COLUMN:OPERATION:VALUE  may be repeated, and all must hold. Operations: is, not, min and max (inclusive),
                                   below (exclusive), has (a tag, or a text that is contained), null, notnull.
                                   In the column's name, `%`, `,` and `:` are percent-encoded.
    search=TEXT                    is contained in a prompt or a response, in upper or lower case
    since=ID                       searches only rollouts with this or a higher id, as far as /api/search has come
    where=SQL                      an expression over the columns of `rollouts`
    retried=1                      includes retried attempts, which are left out otherwise
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.group_comparison import MAX_MEMBERS
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey
from rolltrace.viewer import charts
from rolltrace.viewer import rollout_detail as records
from rolltrace.viewer import rollout_table as listing
from rolltrace.viewer.filters import RolloutSelection, parse_selection, read_names
from rolltrace.viewer.findings import BackgroundChecks
from rolltrace.viewer.json_response import encode_response
from rolltrace.viewer.open_runs import OpenRun, OpenRuns
from rolltrace.viewer.run_list import RunList
from rolltrace.viewer.run_overview import find_damage, run_overview
from rolltrace.viewer.schemas import RevisionsResponse
from rolltrace.viewer.text_search import TextSearches, responses_in_messages
from rolltrace.viewer.user_sql import run_user_sql

DEFAULT_BINS = 20
_MAX_BINS = 100
MAX_HITS = 20_000
"""If a search has more, it is done again in the statement that needs them."""
_DEFAULT_COLUMNS = "iteration,env,group,index,reward,stop_reason,status"


class RequestParameters:
    """The parameters of a request."""

    def __init__(self, parameters: Sequence[tuple[str, str]]) -> None:
        self._parameters = parameters

    def all(self, name: str) -> list[str]:
        """Every value of that name."""
        return [value for key, value in self._parameters if key == name]

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
        """Whether the value of that name is 1, true or yes."""
        return self.text(name, "0").lower() in ("1", "true", "yes")

    @property
    def selection(self) -> RolloutSelection:
        """Which rollouts the parameters select."""
        return parse_selection(
            self.all("filter"),
            self.text("search", ""),
            self.text("where", ""),
            self.flag("retried"),
            self.text("since") if self.all("since") else None,
        )

    @property
    def has_user_sql(self) -> bool:
        """Whether they contain SQL that a user wrote."""
        return any(name == "where" and value.strip() for name, value in self._parameters)


BinnedQuery = Callable[[Run, RolloutSelection, Sequence[str], int], Sequence[msgspec.Struct]]
"""A query for charts of some measures, with the most bins that each may have."""


class Api:
    """Answers requests about the runs below a folder; every response is JSON."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._run_list = RunList(library)
        self._findings = BackgroundChecks(library)
        self._searches = TextSearches()
        self.handlers: Mapping[str, Callable[[RequestParameters], bytes]] = {
            "runs": self._runs, "revisions": self._revisions, "run": self._run, "damage": self._damage,
            "series": self._series, "outcomes": self._outcomes,
            "histogram": partial(self._binned, charts.query_histograms),
            "iteration_histograms": partial(self._binned, charts.query_iteration_histograms),
            "environments": partial(self._binned, charts.query_environments),
            "rollouts": self._rollouts, "search": self._search, "facets": self._facets, "neighbours": self._neighbours,
            "findings": self._find, "group": self._group, "rollout": self._rollout, "text": self._text,
        }  # fmt: skip
        """The handlers of GET requests, by name."""

    def handle(self, question: str, parameters: RequestParameters) -> bytes:
        """The response to any request, `sql` included."""
        return self.sql(parameters) if question == "sql" else self.handlers[question](parameters)

    def sql(self, parameters: RequestParameters) -> bytes:
        """The rows of a query that a user wrote. Call it in a worker process only."""
        with self._library.open(parameters.text("run")) as opened:
            return encode_response(run_user_sql(opened.run, parameters.text("sql"), parameters.number("limit", 1_000)))

    def check(self, run: str) -> bytes:
        """Start a check of a run."""
        with self._library.open(run):
            return encode_response(self._findings.start(run))

    def close(self) -> None:
        """Stop the checks that run in the background."""
        self._findings.close()

    def blob(self, parameters: RequestParameters) -> bytes:
        """The bytes of a blob of a message."""
        with self._library.open(parameters.text("run")) as opened:
            return opened.run.blob(parameters.text("name"))

    def _runs(self, parameters: RequestParameters) -> bytes:
        return encode_response(self._run_list.list())

    def _revisions(self, parameters: RequestParameters) -> bytes:
        return encode_response(RevisionsResponse(revisions=self._library.revisions()))

    def _run(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            return encode_response(run_overview(opened, self._run_list.one(opened.key)))

    def _damage(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            return encode_response(find_damage(opened))

    def _series(self, parameters: RequestParameters) -> bytes:
        measure = parameters.text("measure", "reward")
        return self._cached_chart(
            parameters,
            ("series", measure),
            lambda run, selection: charts.query_series(run, selection, [measure])[0],
        )

    def _outcomes(self, parameters: RequestParameters) -> bytes:
        return self._cached_chart(parameters, ("outcomes",), charts.query_outcomes)

    def _binned(self, query: BinnedQuery, parameters: RequestParameters) -> bytes:
        measure, bins = parameters.text("measure", "reward"), parameters.number("bins", DEFAULT_BINS, 1, _MAX_BINS)
        return self._cached_chart(
            parameters,
            (query.__name__, measure, bins),
            lambda run, selection: query(run, selection, [measure], bins)[0],
        )

    def _rollouts(self, parameters: RequestParameters) -> bytes:
        columns = read_names(parameters.text("columns", _DEFAULT_COLUMNS))
        offset, limit = parameters.number("offset", 0, 0), parameters.number("limit", 100, 0, listing.MAX_ROWS)
        sort = listing.parse_sort(parameters.text("sort", ""))
        with self._library.open(parameters.text("run")) as opened:
            selection, run = self._checked(opened, parameters.selection)
            return encode_response(listing.list_rollouts(opened, run, selection, sort, columns, offset, limit))

    def _facets(self, parameters: RequestParameters) -> bytes:
        columns = tuple(dict.fromkeys(read_names(parameters.text("columns", ""))))
        return self._cached_chart(
            parameters,
            ("facets", columns),
            lambda run, selection: listing.count_values(run, selection, columns),
        )

    def _neighbours(self, parameters: RequestParameters) -> bytes:
        sort = listing.parse_sort(parameters.text("sort", ""))
        with self._library.open(parameters.text("run")) as opened:
            selection, run = self._checked(opened, parameters.selection)
            return encode_response(listing.find_neighbours(opened, run, selection, sort, parameters.text("id")))

    def _find(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            rollouts = self._run_list.one(opened.key).rollouts
            return encode_response(self._findings.answer(opened.key, rollouts))

    def _group(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            key = GroupKey(
                parameters.text("split"),
                parameters.number("iteration"),
                parameters.text("env"),
                parameters.text("group"),
            )
            response = records.group_response(
                opened,
                key,
                most=parameters.number("limit", MAX_MEMBERS, 1, MAX_MEMBERS),
                offset=parameters.number("offset", 0, 0),
                against=parameters.text("against", "") or None,
            )
            return encode_response(response)

    def _rollout(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            first = parameters.number("first", 0, 0) if parameters.all("first") else None
            return encode_response(records.rollout_response(opened, parameters.text("id"), first))

    def _text(self, parameters: RequestParameters) -> bytes:
        with self._library.open(parameters.text("run")) as opened:
            offset = parameters.number("offset", 0, 0)
            response = records.text_response(opened, parameters.text("id"), parameters.text("path"), offset)
            return encode_response(response)

    def _cached_chart(
        self,
        parameters: RequestParameters,
        name: tuple[Any, ...],
        query: Callable[[Run, RolloutSelection], msgspec.Struct],
    ) -> bytes:
        """The response about a selection, cached until the run changes."""
        with self._library.open(parameters.text("run")) as opened:
            selection, run = self._checked(opened, parameters.selection)
            return opened.cached((*name, selection), lambda: encode_response(query(run, selection)), len)

    def _search(self, parameters: RequestParameters) -> bytes:
        selection = parameters.selection
        with self._library.open(parameters.text("run")) as opened:
            return encode_response(self._searches.find(opened, selection.search).advance(opened, selection.since))

    def _checked(self, opened: OpenRun, selection: RolloutSelection) -> tuple[RolloutSelection, Run]:
        """The selection after a check of its SQL expression and after its search, and the run to query."""
        if selection.where:
            opened.run.rollouts(where=selection.where, limit=0)
        if selection.search:
            selection = msgspec.structs.replace(selection, responses_in_messages=responses_in_messages(opened))
        if selection.search and selection.since is not None:
            hits = self._searches.find(opened, selection.search).hits(opened, selection.since)
            if len(hits) <= MAX_HITS:
                selection = msgspec.structs.replace(selection, search="", since=None, hits=hits)
        return selection, opened.run
