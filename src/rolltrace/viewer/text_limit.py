"""Shortens the texts of a record, wherever they are in it, until it is small enough for a report."""

from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.tokens import Tokens

Record = TypeVar("Record", bound=msgspec.Struct)

_SHORTEST = 200
"""Texts up to this length are never shortened: names, ids and hashes are as they were recorded."""


def shorten_texts(record: Record, most: int) -> Record:
    """The record with about `most` characters of text: the longest texts are cut, and say how much is left out.

    Token ids and log-probabilities are dropped.
    """
    shortened: Record = _shorten(record, fair_limit(_lengths(record), most))
    return shortened


def fair_limit(lengths: Iterable[int], most: int) -> int:
    """How long each may be, so that all of them, with longer ones cut to this, are `most` together."""
    ordered = sorted(lengths)
    for place, length in enumerate(ordered):
        rest = len(ordered) - place
        if length * rest > most:
            return max(_SHORTEST, most // rest)
        most -= length
    return max([_SHORTEST, *ordered[-1:]])


def _lengths(value: Any) -> Iterator[int]:
    """The lengths of all texts in a record."""
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, FrozenMap):
        yield from _lengths(value.to_dict())
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _lengths(getattr(value, name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _lengths(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _lengths(one)


def _shorten(value: Any, most: int) -> Any:
    """The value with each text cut to `most` characters."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}\n… {len(value) - most:,} characters left out here"
    if isinstance(value, FrozenMap):
        return FrozenMap.of(_shorten(value.to_dict(), most))
    if isinstance(value, Tokens):
        return None
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := _shorten(old, most)) is not old}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple | list):
        parts = [_shorten(one, most) for one in value]
        return value if all(map(is_, parts, value)) else type(value)(parts)
    if isinstance(value, dict):
        values = {key: _shorten(one, most) for key, one in value.items()}
        return value if all(map(is_, values.values(), value.values())) else values
    return value
