"""What can be asked over HTTP: the parameters of each question, and who answers it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.viewer import charts, listing, records
from rolltrace.viewer.answers import RevisionsAnswer
from rolltrace.viewer.cards import Cards
from rolltrace.viewer.filters import ALL_SAID, Selection, parse_selection
from rolltrace.viewer.findings import Findings
from rolltrace.viewer.library import Library, OpenRun
from rolltrace.viewer.names import read_names
from rolltrace.viewer.overview import ask_overview
from rolltrace.viewer.statements import SECONDS, ask_sql
from rolltrace.viewer.wire import encode_answer

_MOST_BINS = 100
_DEFAULT_COLUMNS = "iteration,env,group,index,reward,stop_reason,status"


class Asked:
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
    def selection(self) -> Selection:
        """Which rollouts are meant."""
        return parse_selection(
            self.all("filter"), self.text("search", ""), self.text("where", ""), self.flag("retried")
        )

    @property
    def is_written(self) -> bool:
        """Whether a person wrote some SQL of it."""
        return any(name == "where" and value.strip() for name, value in self._parameters)


Answer = bytes


class Questions:
    """Answers questions about the runs of a library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._cards = Cards(library)
        self._findings = Findings(library)
        self.asked: Mapping[str, Callable[[Asked], Answer]] = {
            "runs": self._runs, "revisions": self._revisions, "run": self._run, "series": self._series,
            "outcomes": self._outcomes, "histogram": self._histogram, "environments": self._environments,
            "rollouts": self._rollouts, "facets": self._facets, "neighbours": self._neighbours,
            "findings": self._find, "group": self._group, "rollout": self._rollout,
        }  # fmt: skip
        """By name, what a GET asks."""

    def answer(self, question: str, asked: Asked) -> Answer:
        """The answer to a question of any kind, SQL included."""
        return self.sql(asked) if question == "sql" else self.asked[question](asked)

    def sql(self, asked: Asked) -> Answer:
        """The rows of a statement that somebody wrote; only a process of its own may run it."""
        with self._library.open(asked.text("run")) as opened:
            return encode_answer(ask_sql(opened.texts, asked.text("sql"), asked.number("limit", 1_000)))

    def check(self, run: str) -> Answer:
        """Begin a check of a run."""
        with self._library.open(run):
            return encode_answer(self._findings.start(run))

    def close(self) -> None:
        """End what is being done in the background."""
        self._findings.close()

    def blob(self, asked: Asked) -> bytes:
        """Bytes that a message carries."""
        with self._library.open(asked.text("run")) as opened:
            return opened.numbers.blob(asked.text("name"))

    def _runs(self, asked: Asked) -> Answer:
        return encode_answer(self._cards.all())

    def _revisions(self, asked: Asked) -> Answer:
        standings = self._library.folder.standings()
        return encode_answer(RevisionsAnswer(revisions={key: one.revision for key, one in standings.items()}))

    def _run(self, asked: Asked) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            return encode_answer(ask_overview(opened, self._cards.one(opened.key)))

    def _series(self, asked: Asked) -> Answer:
        measure = asked.text("measure", "reward")
        return self._charted(
            asked, ("series", measure), lambda *given: charts.ask_series(given[0], given[1], measure, given[2])
        )

    def _outcomes(self, asked: Asked) -> Answer:
        return self._charted(asked, ("outcomes",), charts.ask_outcomes)

    def _histogram(self, asked: Asked) -> Answer:
        measure, bins = asked.text("measure", "reward"), asked.number("bins", 20, 1, _MOST_BINS)
        return self._charted(
            asked,
            ("histogram", measure, bins),
            lambda *given: charts.ask_distribution(given[0], given[1], measure, bins, given[2]),
        )

    def _environments(self, asked: Asked) -> Answer:
        measure, bins = asked.text("measure", "reward"), asked.number("bins", 20, 1, _MOST_BINS)
        return self._charted(
            asked,
            ("environments", measure, bins),
            lambda *given: charts.ask_environments(given[0], given[1], measure, bins, given[2]),
        )

    def _rollouts(self, asked: Asked) -> Answer:
        columns = read_names(asked.text("columns", _DEFAULT_COLUMNS))
        offset, limit = asked.number("offset", 0, 0), asked.number("limit", 100, 0, listing.MOST_ROWS)
        sort = listing.parse_sort(asked.text("sort", ""))
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            return encode_answer(listing.list_rollouts(opened, run, selection, sort, columns, offset, limit))

    def _facets(self, asked: Asked) -> Answer:
        columns = tuple(dict.fromkeys(read_names(asked.text("columns", ""))))
        return self._charted(
            asked, ("facets", columns), lambda *given: listing.count_values(given[0], given[1], columns, given[2])
        )

    def _neighbours(self, asked: Asked) -> Answer:
        sort = listing.parse_sort(asked.text("sort", ""))
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            return encode_answer(listing.find_neighbours(opened, run, selection, sort, asked.text("id")))

    def _find(self, asked: Asked) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            rollouts = self._cards.one(opened.key).rollouts
            return encode_answer(self._findings.answer(opened.key, rollouts))

    def _group(self, asked: Asked) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            key = (asked.text("split"), asked.number("iteration"), asked.text("env"), asked.text("group"))
            return encode_answer(records.ask_group(opened, *key))

    def _rollout(self, asked: Asked) -> Answer:
        with self._library.open(asked.text("run")) as opened:
            return encode_answer(records.ask_rollout(opened, asked.text("id")))

    def _charted(
        self,
        asked: Asked,
        question: tuple[Any, ...],
        ask: Callable[[Run, Selection, float | None], msgspec.Struct],
    ) -> Answer:
        """An answer about a selection, found once for each state of the run."""
        with self._library.open(asked.text("run")) as opened:
            selection, run = _checked(opened, asked.selection)
            timeout = SECONDS if selection.is_written else None
            return opened.keep((*question, selection), lambda: encode_answer(ask(run, selection, timeout)), len)


def _checked(opened: OpenRun, selection: Selection) -> tuple[Selection, Run]:
    """The selection, whose expression is no more than one, and the run to ask about it."""
    if selection.where:
        opened.texts.rollouts(where=selection.where, limit=0)
    if selection.search:
        all_said = opened.keep("all said", lambda: opened.texts.sql(ALL_SAID).fetchall() == [(True,)], lambda _: 1)
        selection = msgspec.structs.replace(selection, all_said=all_said)
    return selection, opened.texts if selection.where or selection.search else opened.numbers
