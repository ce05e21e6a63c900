"""The messages of a rollout, each occurrence once, and prompts as ranges of them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Range


class Conversation:
    """A growing table of message occurrences, and the prompt that stands now.

    A prompt that only grows is one range, and growing it costs what is new. A prompt that is replaced is aligned
    with the one before: what stayed keeps its place in the table, what changed is a new entry.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """Each occurrence, in the order in which the conversation held it."""
        self.prompt: list[Message] = []
        """The conversation as it stands."""
        self._ranges: list[Range] = []

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The conversation as it stands, as ranges of `messages`."""
        return tuple(self._ranges)

    def extend(self, messages: Iterable[Message]) -> int:
        """Put messages at the end; returns the table's index of the first."""
        first = len(self.messages)
        self.messages.extend(messages)
        last = len(self.messages)
        if last > first:
            self.prompt.extend(self.messages[first:])
            self._add_range(first, last)
        return first

    def replace(self, messages: Sequence[Message], response: Message | None = None) -> int | None:
        """Make `messages` the whole conversation, where the policy's `response` may be one of them.

        Returns the table's index of the response where it was kept.
        """
        places: list[int | None] = [place for first, last in self._ranges for place in range(first, last)]
        previous = list(self.prompt)
        if response is not None:
            previous.append(response)
            places.append(None)
        matches = _align(previous, messages)
        self.prompt = list(messages)
        self._ranges = []
        kept: int | None = None
        for message, match in zip(messages, matches, strict=True):
            place = None if match is None else places[match]
            if place is None:
                place = len(self.messages)
                self.messages.append(message)
                if response is not None and match == len(previous) - 1:
                    kept = place
            self._add_range(place, place + 1)
        return kept

    def _add_range(self, first: int, last: int) -> None:
        if self._ranges and self._ranges[-1][1] == first:
            self._ranges[-1] = (self._ranges[-1][0], last)
        else:
            self._ranges.append((first, last))


def _align(previous: Sequence[Message], now: Sequence[Message]) -> list[int | None]:
    """For each message now, where it stood before, in increasing order; None for a new one."""
    same = _common_prefix(previous, now)
    matches: list[int | None] = list(range(same))
    if same == len(now):
        return matches
    where: dict[Message, list[int]] = {}
    for place in range(same, len(previous)):
        where.setdefault(previous[place], []).append(place)
    reached = same - 1
    for message in now[same:]:
        candidates = where.get(message, [])
        later = bisect_right(candidates, reached)
        if later < len(candidates):
            reached = candidates[later]
            matches.append(reached)
        else:
            matches.append(None)
    return matches


def _common_prefix(one: Sequence[Message], other: Sequence[Message]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left is not right and left != right:
            break
        length += 1
    return length
