"""Hashes the text of records, or redacts it with a user's function. Numbers, names and ids stay."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from rolltrace.trace.convert import as_message, coerce_message
from rolltrace.trace.field_types import Field, FieldKind, record_fields
from rolltrace.trace.freeform import (
    Note,
    Placeholder,
    clean_text,
    from_json_mapping,
    join_surrogates,
    to_json_mapping,
)
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.rollout import Rollout

Redact = Callable[[Any], Any]
"""Takes a message or a free-form map and returns what may be kept of it."""

_HASHED = re.compile(r"hashed:\d+:[0-9a-f]{16}")
_PART_TYPES = {"image", "audio", "video", "file", "thinking", "refusal", "text"}
_MEDIA_TYPES = {
    f"{kind}/{name}"
    for kind, names in {
        "image": "png jpeg gif webp bmp tiff avif heic svg+xml",
        "audio": "wav mp3 mp4 mpeg ogg flac aac webm opus pcm16",
        "video": "mp4 mpeg webm ogg quicktime",
        "text": "plain html csv markdown",
        "application": "pdf json zip octet-stream",
    }.items()
    for name in names.split()
}
"""Any other word may be text that a program put there."""


class TextTransform(Protocol):
    """Rewrites text: one method for each kind of place where text can be."""

    def message(self, message: Message) -> Message:
        """A message of the conversation, or of another model call."""
        ...

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """A free-form map."""
        ...

    def text(self, name: str, text: str) -> str:
        """The text of a field of that name."""
        ...

    def label(self, name: str, text: str) -> str:
        """The label in a field of that name."""
        ...


class HashText:
    """Replaces each text by its length and its hash, so that equal texts can still be recognised."""

    def message(self, message: Message) -> Message:
        """Role, names and ids stay; so does how many parts and calls there are."""
        return Message(
            message.role,
            hash_text(message.content),
            tuple(map(_hashed_part, message.parts)) if message.parts else (),
            tuple([_hashed_call(call) for call in message.tool_calls]) if message.tool_calls else (),
            message.tool_call_id,
            message.name,
            None if message.reasoning is None else hash_text(message.reasoning),
        )

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """Numbers and keys stay."""
        return {key: _hashed_value(value) for key, value in values.items()}

    def text(self, name: str, text: str) -> str:
        """Only its length and hash stay."""
        return hash_text(text)

    def label(self, name: str, text: str) -> str:
        """It stays."""
        return text


class RedactText:
    """Calls a user's function for each message and each map. A text in a field of its own is a map of one entry."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def message(self, message: Message) -> Message:
        """What the function makes of it: a message, or a chat dict."""
        notes: list[Note] = []
        given = self._redact(coerce_message(message, "", []))
        kept = as_message(given, "", notes)
        if notes:
            raise TypeError(f"Expected redact to return a message, got {_kind(given)}.")
        return kept

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the function makes of it; an empty map is not shown to it."""
        if not values:
            return values
        kept = self._redact(values)
        if not isinstance(kept, Mapping):
            raise TypeError(f"Expected redact to return a map, got {_kind(kept)}.")
        return dict(kept)

    def text(self, name: str, text: str) -> str:
        """The function gets a map of one entry; if it removes that, the text becomes empty."""
        kept = self.mapping({name: clean_text(text, "", [])}).get(name, "")
        if not isinstance(kept, str):
            raise TypeError(f"Expected redact to leave text under {name!r}, got {_kind(kept)}.")
        return kept

    def label(self, name: str, text: str) -> str:
        """It is redacted like text."""
        return self.text(name, text)


class BothTransforms(NamedTuple):
    """One transform after the other."""

    first: TextTransform
    second: TextTransform

    def message(self, message: Message) -> Message:
        """As in `TextTransform`."""
        return self.second.message(self.first.message(message))

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """As in `TextTransform`."""
        return self.second.mapping(self.first.mapping(values))

    def text(self, name: str, text: str) -> str:
        """As in `TextTransform`."""
        return self.second.text(name, self.first.text(name, text))

    def label(self, name: str, text: str) -> str:
        """As in `TextTransform`."""
        return self.second.label(name, self.first.label(name, text))


Record = TypeVar("Record", bound=msgspec.Struct)


def transform_record(record: Record, transform: TextTransform) -> Record:
    """The record with every text transformed. Fields from which text can be restored get their default."""
    changes: dict[str, Any] = {}
    for field in text_fields(type(record)):
        value = getattr(record, field.name)
        if value is not None and value != () and value != "":
            changes[field.name] = transform_field(field, value, transform)
    return replace(record, **changes) if changes else record


def transform_field(field: Field, value: Any, transform: TextTransform) -> Any:
    """The value of one of the `text_fields` of a record, transformed."""
    if field.is_dropped_with_text:
        return field.default
    return _transform_value(field, value, transform, field.depth)


def _transform_value(field: Field, value: Any, transform: TextTransform, depth: int) -> Any:
    if depth:
        return tuple(_transform_value(field, part, transform, depth - 1) for part in value)
    if type(value) is Message:
        return transform.message(value)
    if field.kind is FieldKind.TEXT:
        return transform.text(field.name, value)
    if field.kind is FieldKind.LABEL:
        return transform.label(field.name, value)
    if field.kind is FieldKind.FREE_FORM:
        return transform.mapping(value)
    if isinstance(value, FrozenMap):
        return FrozenMap.of(transform.mapping(value.to_dict()))
    if isinstance(value, dict) and field.record is not None:
        return transform_wire(field.record, value, transform)
    return transform_record(value, transform) if isinstance(value, msgspec.Struct) else value


def transform_wire(
    record: type[msgspec.Struct], fields: dict[str, Any], transform: TextTransform | None
) -> dict[str, Any]:
    """The fields of a record, as they are written, with their text transformed."""
    if transform is None:
        return fields
    changes = {
        field.written_name: transform_wire_value(field, fields[field.written_name], transform)
        for field in text_fields(record)
        if fields.get(field.written_name)
    }
    return {**fields, **changes}


def transform_wire_value(field: Field, value: Any, transform: TextTransform | None) -> Any:
    """A value as it is written, with its text transformed; a free-form map is a dict or its bytes."""
    if transform is None:
        return value
    if field.kind is not FieldKind.FREE_FORM:
        return transform_field(field, value, transform)
    values = msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    return to_json_mapping(transform.mapping(from_json_mapping(values)), field.name, [])


@cache
def text_fields(record: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields of a record that may hold text."""
    return tuple(field for field in record_fields(record) if _may_hold_text(field))


_WITH_TEXT = {FieldKind.TEXT, FieldKind.LABEL, FieldKind.FREE_FORM, FieldKind.CUSTOM}


def _may_hold_text(field: Field) -> bool:
    if field.is_dropped_with_text or field.kind in _WITH_TEXT:
        return True
    return field.record is not None and bool(text_fields(field.record))


def hash_text(text: str) -> str:
    """The text that is recorded in place of another: its length in characters, and the XXH3 hash of its UTF-8."""
    try:
        return f"hashed:{len(text)}:{xxh3_64_hexdigest(text.encode())}" if text else ""
    except UnicodeEncodeError:
        return hash_text(join_surrogates(text))


def has_hashed_text(rollout: Rollout) -> bool:
    """Whether it was recorded as numbers: of every text only length and hash are there."""
    texts = [message.content for message in rollout.messages if message.content]
    return bool(texts) and all(_HASHED.fullmatch(text) for text in texts)


def is_hashed_text(text: str) -> bool:
    """Whether only the length and the hash of a text are left."""
    return text.startswith("hashed:") and _HASHED.fullmatch(text) is not None


def _kind(value: object) -> str:
    """The type of a value. Its content is not shown: it may be text that was to be redacted."""
    return f"a value of type {type(value).__name__}"


def _hashed_or_none(text: str | None) -> str | None:
    return None if text is None else hash_text(text)


def _hashed_part(part: Part) -> Part:
    carried = part.blob.name if part.blob is not None else part.text or part.url
    media_type = part.media_type if part.media_type in _MEDIA_TYPES else _hashed_or_none(part.media_type)
    kind = part.type if part.type in _PART_TYPES else hash_text(part.type)
    return Part(kind, offset=0, text=_hashed_or_none(carried), media_type=media_type)


def _hashed_call(call: ToolCall) -> ToolCall:
    hashed = ToolCall(call.name, hash_text(call.arguments), call.id)
    return hashed if call.error is None else replace(hashed, error=hash_text(call.error))


def _hashed_value(value: Any) -> Any:
    if isinstance(value, str):
        return hash_text(value)
    if isinstance(value, bytes):
        return f"hashed:{len(value)}:{xxh3_64_hexdigest(value)}"
    if isinstance(value, Placeholder):
        return Placeholder({key: hash_text(text) for key, text in value.items()})
    if isinstance(value, Mapping):
        return {key: _hashed_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hashed_value(item) for item in value]
    return value
