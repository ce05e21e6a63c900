"""Messages at a length that a page can hold, with how much of each was left out."""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.transcript import TranscriptMessage

MAX_CHARACTERS = 20_000
"""No text of an excerpt is longer."""
MAX_MESSAGES = 200
MAX_TOTAL_CHARACTERS = 1_000_000
"""All texts of one list of excerpts together have no more characters than this and one message more."""
_MAX_PIECES = 200
"""How many tool calls, and how many parts, an excerpt has at most."""


class TruncatedMessage(msgspec.Struct, frozen=True):
    """A message of which long texts are cut."""

    message: Message
    omitted: int = 0
    """How many characters were left out."""
    step: int | None = None
    """The step whose answer it is; None for what the policy did not say."""


def truncate_messages(said: Sequence[TranscriptMessage]) -> tuple[TruncatedMessage, ...]:
    """The first messages, cut."""
    taken: list[TruncatedMessage] = []
    together = 0
    for one in islice(said, MAX_MESSAGES):
        if together > MAX_TOTAL_CHARACTERS:
            break
        message, omitted = truncate_message(one.message)
        taken.append(TruncatedMessage(message, omitted, one.step))
        together += _size(message)
    return tuple(taken)


def truncate_message(message: Message) -> tuple[Message, int]:
    """A message whose texts are cut, and how many characters were left out; a short one is itself."""
    if not _is_long(message):
        return message, 0
    parts = tuple(map(_cut_part, message.parts[:_MAX_PIECES]))
    calls = tuple(map(_cut_call, message.tool_calls[:_MAX_PIECES]))
    short = Message(
        truncate_text(message.role),
        truncate_text(message.content),
        parts=parts,
        tool_calls=calls,
        tool_call_id=_cut_or_none(message.tool_call_id),
        name=_cut_or_none(message.name),
        reasoning=_cut_or_none(message.reasoning),
        other=_kept(message.other),
    )
    return short, _size(message) - _size(short)


def truncate_text(text: str) -> str:
    """The beginning of a text."""
    return text[:MAX_CHARACTERS]


def _is_long(message: Message) -> bool:
    many = max(len(message.parts), len(message.tool_calls)) > _MAX_PIECES
    return many or _size(message) > MAX_CHARACTERS


def _cut_or_none(text: str | None) -> str | None:
    return None if text is None else truncate_text(text)


def _cut_call(call: ToolCall) -> ToolCall:
    return ToolCall(
        truncate_text(call.name),
        truncate_text(call.arguments),
        _cut_or_none(call.id),
        _cut_or_none(call.error),
        _kept(call.other),
    )


def _cut_part(part: Part) -> Part:
    return replace(
        part,
        type=truncate_text(part.type),
        text=_cut_or_none(part.text),
        url=_cut_or_none(part.url),
        media_type=_cut_or_none(part.media_type),
        other=_kept(part.other),
    )


def _kept(other: FrozenMap | None) -> FrozenMap | None:
    """Fields of any kind cannot be cut: they are there, or they are not."""
    return None if other is None or len(other.json_bytes) > MAX_CHARACTERS else other


def _size(message: Message) -> int:
    """How many characters it has, wherever they stand."""
    texts: list[str | None] = [message.role, message.content, message.tool_call_id, message.name, message.reasoning]
    for call in message.tool_calls:
        texts += call.name, call.arguments, call.id, call.error
    for part in message.parts:
        texts += part.type, part.text, part.url, part.media_type
    others = [message.other, *(call.other for call in message.tool_calls), *(part.other for part in message.parts)]
    return _length(texts) + sum(len(other.json_bytes) for other in others if other is not None)


def _length(texts: Iterable[str | None]) -> int:
    return sum(len(text) for text in texts if text is not None)
