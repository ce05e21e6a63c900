"""The table of a rollout's messages, each occurrence once, and prompts as ranges of the table."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rolltrace.trace.field_types import Range
from rolltrace.trace.message import Message

_EDITED_BASE = 1 << 48
"""Indexes of edited messages start here until the table is complete."""


class MessageTable:
    """A growing table of message occurrences, and the present prompt.

    A prompt that only grows is one range, and extending it takes time for the new messages only. A prompt that is
    replaced is aligned with the previous one: unchanged messages keep their index, new messages at the end are
    appended, and messages that were edited further up go to a second list. That list follows the appended messages
    in the complete table, so that an old message that is rewritten every turn does not split the ranges.
    """

    __slots__ = ("_appended", "_edited", "_prompt", "_ranges")

    def __init__(self) -> None:
        self._appended: list[Message] = []
        self._edited: list[Message] = []
        self._prompt = self._appended
        """The present conversation: the same list as `_appended` until something is replaced."""
        self._ranges: list[Range] = []
        """The ranges of the prompt; empty as long as the prompt is `_appended`."""

    @property
    def prompt(self) -> list[Message]:
        """The present conversation; do not modify it."""
        return self._prompt

    @property
    def messages(self) -> list[Message]:
        """The table: each occurrence once."""
        return self._appended + self._edited if self._edited else self._appended

    @property
    def has_edits(self) -> bool:
        """Whether messages were edited, so that ranges must be converted with `final_ranges`."""
        return bool(self._edited)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The present conversation as ranges, to be converted with `final_ranges` when the table is complete."""
        if self._prompt is self._appended:
            return ((0, len(self._appended)),) if self._appended else ()
        return tuple(self._ranges)

    def final_ranges(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """Convert ranges to ranges of `messages` as it is now."""
        if not self._edited:
            return ranges
        final: list[Range] = []
        for first, last in ranges:
            _add_range(final, self.final_index(first), self.final_index(last - 1) + 1)
        return tuple(final)

    def final_index(self, place: int) -> int:
        """Convert an index to an index of `messages` as it is now."""
        return place if place < _EDITED_BASE else place - _EDITED_BASE + len(self._appended)

    def extend(self, messages: Iterable[Message]) -> int:
        """Append messages; returns the index of the first."""
        appended = self._appended
        first = len(appended)
        appended.extend(messages)
        if self._prompt is not appended and len(appended) > first:
            self._prompt.extend(appended[first:])
            _add_range(self._ranges, first, len(appended))
        return first

    def replace(self, messages: Sequence[Message], response: Message | None = None) -> int | None:
        """Make `messages` the whole conversation, which may contain the policy's `response`.

        Returns the index of the response, or None if the conversation does not contain it.
        """
        before = self._prompt if response is None else [*self._prompt, response]
        if list(messages[: len(before)]) == before:  # it only grew
            place = self.extend(messages[len(self._prompt) :])
            return None if response is None else place
        return self._rearrange(before, messages, response)

    def _rearrange(
        self, before: Sequence[Message], messages: Sequence[Message], response: Message | None
    ) -> int | None:
        places = [place for first, last in self.ranges for place in range(first, last)]
        matches = align(before, messages)
        old = [match is not None and match < len(places) for match in matches]
        new_tail = len(old) - old[::-1].index(True) if any(old) else 0
        aligned = response is not None and len(places) in matches
        response_place: int | None = None
        self._ranges = []
        for position, (message, match) in enumerate(zip(messages, matches, strict=True)):
            if match is not None and match < len(places):
                place = places[match]
            else:
                place = self._enter(message, is_appended=position >= new_tail)
                # An environment may also insert the response elsewhere: a new message that equals it is the response.
                if match is not None if aligned else (response_place is None and message == response):
                    response_place = place
            _add_range(self._ranges, place, place + 1)
        self._prompt = list(messages)
        return response_place

    def _enter(self, message: Message, *, is_appended: bool) -> int:
        if is_appended:
            self._appended.append(message)
            return len(self._appended) - 1
        self._edited.append(message)
        return _EDITED_BASE + len(self._edited) - 1


def _add_range(ranges: list[Range], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))


def align(before: Sequence[Message], now: Sequence[Message]) -> list[int | None]:
    """Return for each message of `now` its position in `before`, in increasing order, or None if it is new.

    The common beginning and end are matched first, then messages that occur exactly once in both: a message that
    occurs twenty times must not prevent matches around it.
    """
    alignment = _Aligner(before, now)
    rest = alignment.trim(_Span(0, len(before), 0, len(now)))
    alignment.match_anchors(rest)
    return alignment.matches


class _Span(NamedTuple):
    """A range of the previous messages, and a range of the present ones to match it with."""

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
        """Match the common beginning and end of both ranges; returns the rest."""
        before, before_end, now, now_end = span
        while before < before_end and now < now_end and self.before[before] == self.now[now]:
            self.matches[now] = before
            before, now = before + 1, now + 1
        while before < before_end and now < now_end and self.before[before_end - 1] == self.now[now_end - 1]:
            before_end, now_end = before_end - 1, now_end - 1
            self.matches[now_end] = before_end
        return _Span(before, before_end, now, now_end)

    def match_anchors(self, span: _Span) -> None:
        """Match messages that occur once in each range, then those between."""
        before, now = span.before, span.now
        for place, position in self._anchors(span):
            self.matches[position] = place
            self.match_in_order(_Span(before, place, now, position))
            before, now = place + 1, position + 1
        self.match_in_order(_Span(before, span.before_end, now, span.now_end))

    def match_in_order(self, span: _Span) -> None:
        """Match each message with the next equal one."""
        before, before_end, now, now_end = self.trim(span)
        positions: dict[Message, list[int]] = {}
        for position in range(before, before_end):
            positions.setdefault(self.before[position], []).append(position)
        last_match = before - 1
        for index in range(now, now_end):
            candidates = positions.get(self.now[index], [])
            following = bisect_right(candidates, last_match)
            if following < len(candidates):
                last_match = self.matches[index] = candidates[following]

    def _anchors(self, span: _Span) -> list[tuple[int, int]]:
        """Return the longest sequence of messages that occur once in each range, in the same order in both."""
        where = _unique_positions(self.before, span.before, span.before_end)
        # Patience sorting: the top of each pile is the lowest position that ends a sequence of that length.
        tops: list[int] = []
        ends: list[tuple[int, int]] = []
        under: dict[tuple[int, int], tuple[int, int] | None] = {}
        anchor: tuple[int, int] | None = None
        for message, position in _unique_positions(self.now, span.now, span.now_end).items():
            if (place := where.get(message)) is not None:
                pile = bisect_left(tops, place)
                under[place, position] = ends[pile - 1] if pile else None
                if pile == len(tops):  # the first of several longest sequences
                    anchor = (place, position)
                tops[pile : pile + 1] = [place]
                ends[pile : pile + 1] = [(place, position)]
        sequence: list[tuple[int, int]] = []
        while anchor is not None:
            sequence.append(anchor)
            anchor = under[anchor]
        return sequence[::-1]


def _unique_positions(messages: Sequence[Message], first: int, last: int) -> dict[Message, int]:
    """Return the position of each message that occurs once in the range."""
    places: dict[Message, int] = {}
    repeated: set[Message] = set()
    for place in range(first, last):
        message = messages[place]
        if message in places:
            repeated.add(message)
        places[message] = place
    return {message: place for message, place in places.items() if message not in repeated}
