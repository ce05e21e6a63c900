"""Encodes what the encoder refused: text that UTF-8 cannot hold is cleaned, the rest becomes a placeholder."""

from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.convert import coerce_message
from rolltrace.trace.freeform import Note, clean_text, to_json_value
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, encode_hook

json_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
"""Writes records; it refuses text that UTF-8 cannot hold."""


def encode_lossy(fields: dict[str, Any] | msgspec.Struct, notes: list[Note]) -> bytes:
    """The fields as JSON, whatever they hold; where `notes` are among them, they come last and so tell all."""
    if isinstance(fields, msgspec.Struct):
        fields = {name: getattr(fields, name) for name in fields.__struct_fields__}
    said = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    return json_encoder.encode({name: _careful(value, name, notes) for name, value in said.items()})


def _careful(value: Any, path: str, notes: list[Note]) -> Any:
    if value is notes:
        return [Note(clean_text(note.path, "", []), clean_text(note.message, "", [])) for note in notes]
    if isinstance(value, str):
        return clean_text(value, path, notes)
    if isinstance(value, Message):
        return coerce_message(value, path, notes)
    # Already strict JSON, or a name; an unset field is left out.
    if value is msgspec.UNSET or isinstance(value, FrozenMap | Blob | msgspec.Raw):
        return value
    if isinstance(value, msgspec.Struct):
        fields = {name: _careful(getattr(value, name), f"{path}.{name}", notes) for name in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, list | tuple):
        return [_careful(item, f"{path}[{position}]", notes) for position, item in enumerate(value)]
    if isinstance(value, dict):
        return {_careful(key, path, notes): _careful(item, f"{path}.{key}", notes) for key, item in value.items()}
    try:
        json_encoder.encode(value)
    except Exception:  # noqa: BLE001 - whatever it is, the record must not fail for it
        return to_json_value(value, path, notes)
    return value
