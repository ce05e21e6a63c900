"""Searches the texts of a run in pieces, the newest rollouts first: each answer is quick, and a search can stop."""

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

from rolltrace.errors import QueryTimeoutError
from rolltrace.query.run import Run
from rolltrace.query.table_schema import sql_literal
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.schemas import SearchResponse

MAX_SEARCHES = 4
"""How many searches are remembered."""
FIRST_ROWS = 5_000
"""How many rollouts the first piece has. The next is twice as large after one that took less than `_PIECE_SECONDS`, or
in which a rollout took less time than in a smaller one: where all parts have ids of all times, each piece reads all."""
_MAX_ROWS = 160_000
_PIECE_SECONDS = 0.3
_ANSWER_SECONDS = 0.4
"""After so long, an answer begins no other piece."""
_PIECE_TIMEOUT = 2.0
"""A piece that takes longer is made smaller, unless it is one rollout. Until one succeeds, each may take twice as long
as the one before: a smaller piece may not be quicker."""
_QUICKER = 0.75
"""How much of the time a rollout may take in a larger piece for the next to be larger still."""
_SPECIAL = re.compile(r"[^0-9A-Za-z\u0080-\U0010ffff]")
"""Characters that may be special in a pattern."""
_RESPONSES_IN_MESSAGES = "select (select count(*) from steps) = (select count(step) from messages)"
"""Selects whether every response is also a message. A response is not if the next prompt leaves it out."""


def select_matches(text: str, responses_in_messages: bool, condition: str = "true") -> str:
    """SQL for the rollouts with a message or response that contains a text, ignoring case."""
    # A case-insensitive pattern is much faster than lower() of each text.
    pattern = f"{sql_literal(_SPECIAL.sub(_escaped, text))}, 'i'"
    messages = f"select rollout from messages where {condition} and regexp_matches(content, {pattern})"
    if responses_in_messages:
        return messages
    return f"{messages} union all select rollout from steps where {condition} and regexp_matches(response, {pattern})"


def _escaped(letter: re.Match[str]) -> str:
    return f"\\x{{{ord(letter[0]):x}}}"


def responses_in_messages(run: OpenRun) -> bool:
    """Whether every response is also a message, so that a search need not look at the steps; cached."""
    return run.cached(
        "responses in messages", lambda: run.run.sql(_RESPONSES_IN_MESSAGES).fetchall() == [(True,)], lambda _: 1
    )


class _Piece(NamedTuple):
    """Rollouts with consecutive ids that were searched."""

    above: str | None
    """Their ids are below this one; None for the newest piece."""
    since: str
    """Their ids are not below this one; empty for the oldest piece."""
    stamp: list[int]
    """How many rollouts it has, and a number that changes with their ids."""
    hits: tuple[str, ...]
    is_whole: bool
    """Whether everything in it could be read."""


class _Gap(NamedTuple):
    """Rollouts that are to be searched next: those below `above` and not below `since`."""

    place: int
    """Where a piece of them belongs."""
    above: str | None
    since: str


def _between(column: str, above: str | None, since: str) -> str:
    below = "" if above is None else f" and {column} < {sql_literal(above)}"
    return f"{column} >= {sql_literal(since)}{below}"


def _newest(run: Run, above: str | None, since: str, rows: int) -> list[Any]:
    """The smallest of the newest ids between two, how many these are, and a number that changes with them."""
    ids = f"select id from rollouts where {_between('id', above, since)} order by id desc limit {rows}"
    [row] = run.sql(f"select min(id), count(*), coalesce(bit_xor(hash(id)), 0) from ({ids})").fetchall()
    return list(row)


class TextSearch:
    """The search for one text in one run. Ids sort by time, so that the newest rollouts have the highest ones."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._pieces: list[_Piece] = []
        """The newest first; there are gaps between them where the run has changed."""
        self._state: Hashable = None
        self._total = 0
        self._rows = FIRST_ROWS
        self._timeout = _PIECE_TIMEOUT
        self._seconds_per_row = math.inf
        """In the last piece that was followed by a larger one."""

    def advance(self, run: OpenRun, since: str | None) -> SearchResponse:
        """Search further down than `since`, for a moment, unless an earlier request has done so."""
        with self._lock:
            self._forget_changed(run)
            reached, started = self._gap().above, time.monotonic()
            if reached is None or (since is not None and reached >= since):
                while self._extend(run) and time.monotonic() - started < _ANSWER_SECONDS:
                    pass
            gap = self._gap()
            pieces = self._pieces[: gap.place]
            return SearchResponse(
                since=gap.above or "",
                searched=sum(piece.stamp[0] for piece in pieces),
                total=self._total,
                hits=sum(len(piece.hits) for piece in pieces),
            )

    def hits(self, run: OpenRun, since: str) -> tuple[str, ...]:
        """The rollouts that contain the text, of those whose ids are not below `since`."""
        with self._lock:
            self._forget_changed(run)
            while (reached := self._gap().above) is None or reached > since:
                self._extend(run)
            return tuple(hit for piece in self._pieces for hit in piece.hits if hit >= since)

    def _gap(self) -> _Gap:
        """The first gap; if everything was searched, an empty one above the empty text."""
        above: str | None = None
        for place, piece in enumerate(self._pieces):
            if piece.above != above:
                return _Gap(place, above, piece.above or "")
            above = piece.since
        return _Gap(len(self._pieces), above, "")

    def _extend(self, run: OpenRun) -> bool:
        """Search the next piece; False if everything was searched."""
        place, above, since = self._gap()
        if above == "":
            return False
        started, failures = time.monotonic(), run.run.failures
        first, *stamp = _newest(run.run, above, since, self._rows)
        run.run.refresh(frozenset({"steps", "messages"}))
        is_reading = "steps" in run.run.pending_tables  # before the search, too: it may miss what is added meanwhile
        since = first if stamp[0] == self._rows else since
        matches = select_matches(self._text, responses_in_messages(run), _between("rollout", above, since))
        try:
            timeout = self._timeout if self._rows > 1 else None
            hits = run.run.sql(f"select distinct rollout from ({matches})", timeout=timeout).fetchall()
        except QueryTimeoutError:
            self._rows, self._timeout, self._seconds_per_row = max(1, self._rows // 10), 2 * self._timeout, math.inf
            return self._extend(run)
        is_reading |= "steps" in run.run.pending_tables
        is_whole = run.run.failures == failures and not is_reading
        self._pieces.insert(place, _Piece(above, since, stamp, tuple(hit for (hit,) in hits), is_whole))
        seconds = time.monotonic() - started
        self._timeout = max(_PIECE_TIMEOUT, 2 * seconds)
        per_row = seconds / max(stamp[0], 1)
        if seconds < _PIECE_SECONDS or per_row < _QUICKER * self._seconds_per_row:
            self._seconds_per_row = per_row
            self._rows = min(2 * self._rows, _MAX_ROWS)
        return True

    def _forget_changed(self, run: OpenRun) -> None:
        """Remove pieces whose rollouts have changed, or could not all be read."""
        state = run.content
        if state == self._state:
            return
        [(self._total,)] = run.run.sql("select count(*) from rollouts").fetchall()
        self._pieces = [
            piece
            for piece in self._pieces
            if piece.is_whole and piece.stamp == _newest(run.run, piece.above, piece.since, piece.stamp[0] + 1)[1:]
        ]
        self._state = state


class TextSearches:
    """The latest searches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: OrderedDict[Hashable, TextSearch] = OrderedDict()

    def find(self, run: OpenRun, text: str) -> TextSearch:
        """The search for a text in a run."""
        key = run.key, run.identity, text
        with self._lock:
            search = self._searches.setdefault(key, TextSearch(text))
            self._searches.move_to_end(key)
            if len(self._searches) > MAX_SEARCHES:
                self._searches.popitem(last=False)
            return search
