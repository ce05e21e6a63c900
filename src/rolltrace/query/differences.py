"""Where two tellings of one task first differ."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import msgspec

from rolltrace.trace.message import Message

Field = Literal["role", "reasoning", "content", "tool_calls", "parts"]

_ORDER: tuple[Field, ...] = ("role", "reasoning", "content", "tool_calls", "parts")
"""As a message is read."""
_WITHHELD = re.compile(r"withheld:\d+:[0-9a-f]{16}")


class Difference(msgspec.Struct, frozen=True):
    """Where a member's text first differs from its neighbour's."""

    message: int
    """The place in the member's `messages`, also of an omitted one; past the end where only the other goes on."""
    character: int
    """The offset in the text that differs, in code points, before anything is cut; 0 where the text is withheld."""
    of: str
    """The id of the member that it was compared with."""
    field: Field = "content"
    """Which text of the message that is; of `tool_calls` the arguments."""
    number: int | None = None
    """Which of the tool calls, or of the parts."""


class _DiffField(NamedTuple):
    """A text of a message, and what it is called there."""

    field: Field
    number: int | None
    label: str
    text: str = ""


def first_difference(own: Sequence[Message], others: Sequence[Message], of: str) -> Difference | None:
    """Where the first of two tellings differs from the second; None where they are the same to a reader.

    What merely refers, such as the id of a tool call, makes no difference.
    """
    for place, (one, other) in enumerate(zip_longest(own, others)):
        if one is None or other is None:
            return Difference(place, 0, of, "role")
        if (found := _within(one, other)) is not None:
            piece, character = found
            return Difference(place, character, of, piece.field, piece.number)
    return None


def _within(one: Message, other: Message) -> tuple[_DiffField, int] | None:
    """The first text that two messages do not share, and where in it they part."""
    for mine, theirs in zip_longest(_pieces(one), _pieces(other)):
        if mine == theirs:
            continue
        if mine is None or theirs is None or mine[:2] != theirs[:2]:
            return _earlier(mine, theirs), 0
        return mine, _parting(mine.text, theirs.text) if mine.label == theirs.label else 0
    return None


def _pieces(message: Message) -> Iterator[_DiffField]:
    """What a reader sees of a message, in the order in which it is read."""
    yield _DiffField("role", None, f"{message.role}\n{message.name or ''}")
    if message.reasoning:
        yield _DiffField("reasoning", None, "", message.reasoning)
    if message.content:
        yield _DiffField("content", None, "", message.content)
    for number, call in enumerate(message.tool_calls):
        yield _DiffField("tool_calls", number, call.name, call.arguments)
    for number, part in enumerate(message.parts):
        yield _DiffField("parts", number, part.type, part.blob.name if part.blob else part.text or part.url or "")


def _earlier(mine: _DiffField | None, theirs: _DiffField | None) -> _DiffField:
    """Of two texts that stand in different places, the one that is read first: the other message has none there."""
    pieces = [piece for piece in (mine, theirs) if piece is not None]
    return min(pieces, key=lambda piece: (_ORDER.index(piece.field), piece.number or 0))


def _parting(one: str, other: str) -> int:
    """How many characters two different texts share from the start on; slices are compared, as that is quick."""
    if _WITHHELD.fullmatch(one) or _WITHHELD.fullmatch(other):
        return 0
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
