"""Answers as JSON: what is not finite is spelt out, and what JSON or a browser cannot hold becomes text."""

import math
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import nonfinite_text
from rolltrace.trace.strict_json import json_encoder

_EXACT = 2**53
"""A browser's numbers are exact up to this; larger integers are sent as text."""


def encode_response(answer: msgspec.Struct) -> bytes:
    """An answer as one JSON object."""
    return json_encoder.encode(to_json_value(answer))


def to_json_value(value: Any) -> Any:
    """A value of any kind as the encoder must be given it."""
    kind = type(value)
    if value is None or kind is bool or kind is msgspec.Raw:
        return value
    if kind is str:  # the name of a file may be bytes that are no text
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if kind is float:
        return value if math.isfinite(value) else nonfinite_text(value)
    if kind is int:
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, msgspec.Struct):
        return {name: to_json_value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    """What JSON has no kind for."""
    if isinstance(value, datetime):  # the tables' times are in UTC and do not say so
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
