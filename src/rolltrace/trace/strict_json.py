"""Encoders of strict JSON: for records, for records with invalid values, and for everything else."""

import datetime
import decimal
from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.convert import coerce_message
from rolltrace.trace.freeform import Note, clean_text, to_json_value
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import json_number
from rolltrace.trace.message import Message, encode_hook

json_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
"""Encodes records; raises an error if a text is not valid UTF-8."""
_value_encoder = msgspec.json.Encoder(enc_hook=encode_hook, decimal_format="number")

MAX_BROWSER_INTEGER = 2**53
"""The numbers of a browser are exact up to this."""
_UNESCAPED_BYTES = frozenset(range(0x20, 0x7F)) - frozenset(b"\\\"'")


def encode_fields(fields: dict[str, Any] | msgspec.Struct, notes: list[Note]) -> bytes:
    """Encode the fields of a record. Values that JSON cannot hold are replaced, and `notes` says which."""
    try:
        return json_encoder.encode(fields)
    except Exception:  # noqa: BLE001 - no value may prevent the recording
        return encode_lossy(fields, notes)


def encode_lossy(fields: dict[str, Any] | msgspec.Struct, notes: list[Note]) -> bytes:
    """Encode the fields of a record, with text and values that JSON cannot hold replaced; `notes` says which.

    If `notes` is itself one of the fields, it must be the last one.
    """
    if isinstance(fields, msgspec.Struct):
        names = zip(fields.__struct_fields__, fields.__struct_encode_fields__, strict=True)
        fields = {written: getattr(fields, name) for name, written in names}
    present = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return json_encoder.encode({name: _to_valid(value, name, notes) for name, value in present.items()})


def _to_valid(value: Any, path: str, notes: list[Note]) -> Any:
    if value is notes:
        return [Note(clean_text(note.path, "", []), clean_text(note.message, "", [])) for note in notes]
    if isinstance(value, str):
        return clean_text(value, path, notes)
    if isinstance(value, Message):
        return coerce_message(value, path, notes)
    # Already strict JSON, or a name; an unset field is omitted.
    if value is msgspec.UNSET or isinstance(value, FrozenMap | Blob | msgspec.Raw):
        return value
    if isinstance(value, msgspec.Struct):
        fields = {name: _to_valid(getattr(value, name), f"{path}.{name}", notes) for name in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, list | tuple):
        return [_to_valid(item, f"{path}[{position}]", notes) for position, item in enumerate(value)]
    if isinstance(value, dict):
        return {_to_valid(key, path, notes): _to_valid(item, f"{path}.{key}", notes) for key, item in value.items()}
    try:
        json_encoder.encode(value)
    except Exception:  # noqa: BLE001 - no value may prevent the recording
        return to_json_value(value, path, notes)
    return value


def encode_json(value: Any, *, for_browser: bool = False) -> bytes:
    """Encode any value as strict JSON, see `to_json_types`."""
    return _value_encoder.encode(to_json_types(value, for_browser=for_browser))


def to_json_types(value: Any, *, for_browser: bool = False) -> Any:
    """Convert a value to types that JSON has.

    Numbers that are not finite become text as in records, times are in UTC, and types that JSON lacks become the text
    that SQL writes for them. `for_browser` also makes text of numbers that a browser would round.
    """
    kind = type(value)
    if value is None or kind is bool or kind is msgspec.Raw or kind is Message:  # a message has no numbers
        return value
    if kind is str:  # the name of a file may contain bytes that are not UTF-8
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if kind is float:
        return json_number(value)
    if kind is int:
        is_rounded = for_browser and not -MAX_BROWSER_INTEGER <= value <= MAX_BROWSER_INTEGER
        return str(value) if is_rounded else value
    if isinstance(value, msgspec.Struct):
        return {name: to_json_types(getattr(value, name), for_browser=for_browser) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(to_json_types(name)): to_json_types(item, for_browser=for_browser) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_types(item, for_browser=for_browser) for item in value]
    if isinstance(value, FrozenMap):
        return msgspec.Raw(value.json_bytes)
    if isinstance(value, decimal.Decimal) and not for_browser:
        return value
    return _to_text(value)


def _to_text(value: Any) -> str:
    if isinstance(value, datetime.datetime):  # times of the tables are in UTC and have no time zone
        aware = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
        return aware.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.timedelta):
        return _interval(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "".join(chr(byte) if byte in _UNESCAPED_BYTES else f"\\x{byte:02X}" for byte in bytes(value))
    return str(value)


def _interval(value: datetime.timedelta) -> str:
    """Format a duration as SQL does: `1 day 03:00:00`."""
    sign = "-" if value < datetime.timedelta() else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    clock = f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    if value.microseconds:
        clock += f".{value.microseconds:06}".rstrip("0")
    days = f"{sign}{value.days} day{'' if value.days == 1 else 's'}" if value.days else ""
    return days if days and not value.seconds and not value.microseconds else f"{days} {clock}".lstrip()
