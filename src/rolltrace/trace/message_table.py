"""The messages of a rollout, each occurrence once, and prompts as ranges of them."""

from collections.abc import Iterable, Sequence

from rolltrace.trace.alignment import align
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Range

_EDITED_BASE = 1 << 48
"""Places in the margin start here until they are settled: no trunk grows so long."""


class MessageTable:
    """A growing table of message occurrences, and the prompt that stands now.

    A prompt that only grows is one range, and growing it costs what is new. A prompt that is replaced is aligned
    with the one before: what stayed keeps its place, what came at the end continues the trunk, and what was changed
    further up goes to the margin. The margin follows the trunk once both are complete, so that an old message that
    is rewritten every turn does not cut the trunk into pieces.
    """

    def __init__(self) -> None:
        self._appended: list[Message] = []
        self._edited: list[Message] = []
        self._prompt = self._appended
        """The conversation as it stands: the trunk itself until something else than growing happens."""
        self._ranges: list[Range] = []
        """The prompt as places; empty as long as it is the trunk."""

    @property
    def prompt(self) -> list[Message]:
        """The conversation as it stands; not the caller's to change."""
        return self._prompt

    @property
    def messages(self) -> list[Message]:
        """Each occurrence once: the table that settled ranges are ranges of."""
        return self._appended + self._edited if self._edited else self._appended

    @property
    def has_edits(self) -> bool:
        """Whether ranges must be settled: something was changed further up."""
        return bool(self._edited)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The conversation as it stands, as ranges that are still to be settled."""
        if self._prompt is self._appended:
            return ((0, len(self._appended)),) if self._appended else ()
        return tuple(self._ranges)

    def final_ranges(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """Ranges of `messages`, as it is now."""
        if not self._edited:
            return ranges
        settled: list[Range] = []
        for first, last in ranges:
            _add_range(settled, self.final_index(first), self.final_index(last - 1) + 1)
        return tuple(settled)

    def final_index(self, place: int) -> int:
        """An index into `messages`, as it is now."""
        return place if place < _EDITED_BASE else place - _EDITED_BASE + len(self._appended)

    def extend(self, messages: Iterable[Message]) -> int:
        """Put messages at the end; returns the place of the first."""
        trunk = self._appended
        first = len(trunk)
        trunk.extend(messages)
        if self._prompt is not trunk and len(trunk) > first:
            self._prompt.extend(trunk[first:])
            _add_range(self._ranges, first, len(trunk))
        return first

    def replace(self, messages: Sequence[Message], response: Message | None = None) -> int | None:
        """Make `messages` the whole conversation, where the policy's `response` may be one of them.

        Returns the place of the response where it was kept.
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
        tail = len(old) - old[::-1].index(True) if any(old) else 0
        aligned = response is not None and len(places) in matches
        kept: int | None = None
        self._ranges = []
        for position, (message, match) in enumerate(zip(messages, matches, strict=True)):
            if match is not None and match < len(places):
                place = places[match]
            else:
                place = self._enter(message, in_trunk=position >= tail)
                # An env may also put the response elsewhere than at the end: what is new and equal is the response.
                if match is not None if aligned else (kept is None and message == response):
                    kept = place
            _add_range(self._ranges, place, place + 1)
        self._prompt = list(messages)
        return kept

    def _enter(self, message: Message, *, in_trunk: bool) -> int:
        if in_trunk:
            self._appended.append(message)
            return len(self._appended) - 1
        self._edited.append(message)
        return _EDITED_BASE + len(self._edited) - 1


def _add_range(ranges: list[Range], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))
