"""Which messages of a conversation are those that stood in it before."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from rolltrace.trace.message import Message


def align(before: Sequence[Message], now: Sequence[Message]) -> list[int | None]:
    """For each message now, where it stood before, in increasing order; None for a new one.

    What begins and what ends both is the same. Between, messages that both hold exactly once are matched first: a
    message said twenty times over must not draw the match away from those around it.
    """
    alignment = _Aligner(before, now)
    rest = alignment.trim(_Span(0, len(before), 0, len(now)))
    alignment.match_anchors(rest)
    return alignment.matches


class _Span(NamedTuple):
    """A stretch of the messages before, and the stretch of the messages now that may hold the same."""

    before: int
    before_end: int
    now: int
    now_end: int


class _Aligner:
    def __init__(self, before: Sequence[Message], now: Sequence[Message]) -> None:
        self.before = before
        self.now = now
        self.matches: list[int | None] = [None] * len(now)

    def trim(self, span: _Span) -> _Span:
        """Match what begins and what ends both stretches; returns what is left."""
        before, before_end, now, now_end = span
        while before < before_end and now < now_end and self.before[before] == self.now[now]:
            self.matches[now] = before
            before, now = before + 1, now + 1
        while before < before_end and now < now_end and self.before[before_end - 1] == self.now[now_end - 1]:
            before_end, now_end = before_end - 1, now_end - 1
            self.matches[now_end] = before_end
        return _Span(before, before_end, now, now_end)

    def match_anchors(self, span: _Span) -> None:
        """Match what each stretch holds once, then what stands between."""
        before, now = span.before, span.now
        for place, position in self._anchors(span):
            self.matches[position] = place
            self.match_in_order(_Span(before, place, now, position))
            before, now = place + 1, position + 1
        self.match_in_order(_Span(before, span.before_end, now, span.now_end))

    def match_in_order(self, span: _Span) -> None:
        """Match each message with the first equal one that is still to come."""
        before, before_end, now, now_end = self.trim(span)
        where: dict[Message, list[int]] = {}
        for place in range(before, before_end):
            where.setdefault(self.before[place], []).append(place)
        reached = before - 1
        for position in range(now, now_end):
            candidates = where.get(self.now[position], [])
            later = bisect_right(candidates, reached)
            if later < len(candidates):
                reached = self.matches[position] = candidates[later]

    def _anchors(self, span: _Span) -> list[tuple[int, int]]:
        """Messages that each stretch holds once: the longest row of them that is in the same order in both."""
        where = _unique_positions(self.before, span.before, span.before_end)
        # As in the card game patience: each pile's top is the lowest place that can end a row of that length.
        tops: list[int] = []
        ends: list[tuple[int, int]] = []
        under: dict[tuple[int, int], tuple[int, int] | None] = {}
        anchor: tuple[int, int] | None = None
        for message, position in _unique_positions(self.now, span.now, span.now_end).items():
            if (place := where.get(message)) is not None:
                pile = bisect_left(tops, place)
                under[place, position] = ends[pile - 1] if pile else None
                if pile == len(tops):  # of rows that are equally long the first to be found is taken
                    anchor = (place, position)
                tops[pile : pile + 1] = [place]
                ends[pile : pile + 1] = [(place, position)]
        row: list[tuple[int, int]] = []
        while anchor is not None:
            row.append(anchor)
            anchor = under[anchor]
        return row[::-1]


def _unique_positions(messages: Sequence[Message], first: int, last: int) -> dict[Message, int]:
    """The place of each message that stands there once."""
    places: dict[Message, int] = {}
    repeated: set[Message] = set()
    for place in range(first, last):
        message = messages[place]
        if message in places:
            repeated.add(message)
        places[message] = place
    return {message: place for message, place in places.items() if message not in repeated}
