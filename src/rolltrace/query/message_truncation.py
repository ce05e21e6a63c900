"""Truncates messages to a length that a page can show, and counts what was left out."""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.transcript import TranscriptMessage

MAX_CHARACTERS = 20_000
"""The longest text of a truncated message."""
MAX_MESSAGES = 200
MAX_TOTAL_CHARACTERS = 1_000_000
"""The limit for all texts of a list of messages; the last message may exceed it."""
_MAX_PIECES = 200
"""The limit for tool calls, and for parts, of a truncated message."""


class TruncatedMessage(msgspec.Struct, frozen=True):
    """A message whose long texts are truncated."""

    message: Message
    omitted: int = 0
    """How many characters were left out."""
    step: int | None = None
    """The step whose response it is; None for other messages."""


def truncate_messages(messages: Sequence[TranscriptMessage]) -> tuple[TruncatedMessage, ...]:
    """The first messages, truncated."""
    truncated: list[TruncatedMessage] = []
    total = 0
    for one in islice(messages, MAX_MESSAGES):
        if total > MAX_TOTAL_CHARACTERS:
            break
        message, omitted = truncate_message(one.message)
        truncated.append(TruncatedMessage(message, omitted, one.step))
        total += _size(message)
    return tuple(truncated)


def truncate_message(message: Message) -> tuple[Message, int]:
    """Truncate the texts of a message; returns it and how many characters were left out."""
    if not _is_long(message):
        return message, 0
    parts = tuple(map(_truncate_part, message.parts[:_MAX_PIECES]))
    calls = tuple(map(_truncate_call, message.tool_calls[:_MAX_PIECES]))
    short = Message(
        truncate_text(message.role),
        truncate_text(message.content),
        parts=parts,
        tool_calls=calls,
        tool_call_id=_truncate_or_none(message.tool_call_id),
        name=_truncate_or_none(message.name),
        reasoning=_truncate_or_none(message.reasoning),
        other=_if_short(message.other),
    )
    return short, _size(message) - _size(short)


def truncate_text(text: str) -> str:
    """The beginning of a text."""
    return text[:MAX_CHARACTERS]


def _is_long(message: Message) -> bool:
    many = max(len(message.parts), len(message.tool_calls)) > _MAX_PIECES
    return many or _size(message) > MAX_CHARACTERS


def _truncate_or_none(text: str | None) -> str | None:
    return None if text is None else truncate_text(text)


def _truncate_call(call: ToolCall) -> ToolCall:
    return ToolCall(
        truncate_text(call.name),
        truncate_text(call.arguments),
        _truncate_or_none(call.id),
        _truncate_or_none(call.error),
        _if_short(call.other),
    )


def _truncate_part(part: Part) -> Part:
    return replace(
        part,
        type=truncate_text(part.type),
        text=_truncate_or_none(part.text),
        url=_truncate_or_none(part.url),
        media_type=_truncate_or_none(part.media_type),
        other=_if_short(part.other),
    )


def _if_short(other: FrozenMap | None) -> FrozenMap | None:
    """Free-form fields cannot be truncated: they are left out if they are long."""
    return None if other is None or len(other.json_bytes) > MAX_CHARACTERS else other


def _size(message: Message) -> int:
    """The number of characters in all its texts."""
    texts: list[str | None] = [message.role, message.content, message.tool_call_id, message.name, message.reasoning]
    for call in message.tool_calls:
        texts += call.name, call.arguments, call.id, call.error
    for part in message.parts:
        texts += part.type, part.text, part.url, part.media_type
    others = [message.other, *(call.other for call in message.tool_calls), *(part.other for part in message.parts)]
    return _length(texts) + sum(len(other.json_bytes) for other in others if other is not None)


def _length(texts: Iterable[str | None]) -> int:
    return sum(len(text) for text in texts if text is not None)
