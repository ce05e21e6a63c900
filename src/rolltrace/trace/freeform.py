"""Any Python value as plain JSON and back, for the free-form places of a record.

Nothing here raises for a value it cannot represent: such a value becomes a marked placeholder, and a note says where.
Markers are objects with one key that starts with `$`:

    {"$float": "NaN"}             a number that JSON does not have
    {"$bytes": "aGVsbG8="}        bytes, in base64
    {"$unrepresentable": "..."}   what it was, in words
    {"$$float": "..."}            a user's own object that looked like a marker: one `$` more
"""

import base64
import binascii
import dataclasses
import datetime
import enum
import math
import uuid
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from rolltrace.trace.numbers import NON_FINITE, as_number, spell_float

MAX_DEPTH = 64
"""Containers nested deeper than this become a placeholder: no JSON reader can be trusted with more."""

MAX_VALUES = 1_000_000
"""One free-form place holds at most so many values: a small cyclic structure must not fill the disk."""

_LONGEST_DESCRIPTION = 200


class Note(msgspec.Struct, frozen=True):
    """Something about the record itself that a reader should know."""

    path: str
    """Where in the record, such as `steps[3].env_state.board`; empty for the whole."""
    message: str
    """What happened to it."""


def plain_mapping(values: Any, path: str, notes: list[Note]) -> dict[str, Any]:
    """A user's mapping as a fresh dict of plain JSON values, sharing nothing that can change."""
    if type(values) is dict and not values:
        return {}
    plain = plain_value(values, path, notes)
    if type(plain) is dict and not (_is_marker(plain) and not next(iter(plain)).startswith("$$")):
        return plain
    return {"value": plain}


def plain_value(value: Any, path: str, notes: list[Note]) -> Any:
    """Any value as fresh plain JSON, with placeholders and notes where JSON has no such value."""
    return _Plainer(notes).plain(value, path, 0)


def clean_text(text: str, path: str, notes: list[Note]) -> str:
    """The text as UTF-8 can hold it: surrogate pairs are joined, lone surrogates become U+FFFD, and a note says so."""
    if text.isascii():
        return str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        found = sorted({f"U+{ord(c):04X}" for c in text if "\ud800" <= c <= "\udfff"})
        notes.append(Note(path, f"surrogates joined to pairs or replaced by U+FFFD: {', '.join(found[:8])}"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def describe(value: Any) -> str:
    """What a value is, in few words, whatever it does when asked."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a foreign repr may do anything
        text = f"its repr raises {type(error).__name__}"
    text = text.encode("utf-8", "replace").decode()
    if len(text) > _LONGEST_DESCRIPTION:
        text = f"{text[:_LONGEST_DESCRIPTION]}…"
    return f"{name}: {text}"


class _Plainer:
    """One walk over one value: counts values and knows the containers it is inside of."""

    def __init__(self, notes: list[Note]) -> None:
        self.notes = notes
        self.values = 0
        self.inside: set[int] = set()

    def plain(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return clean_text(value, path, self.notes)
        if value is None or kind is bool or kind is int:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": spell_float(value)}
        try:
            return self._container_or_object(value, path, depth)
        except Exception as error:  # noqa: BLE001 - a foreign object may do anything when walked
            return self.placeholder(f"{type(error).__name__} while reading {describe(value)}", path)

    def placeholder(self, what: str, path: str) -> dict[str, str]:
        self.notes.append(Note(path, f"replaced by a placeholder: {what}"))
        return {"$unrepresentable": what}

    def _container_or_object(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"$bytes": base64.b64encode(bytes(value)).decode()}
        if id(value) in self.inside:
            return self.placeholder("it contains itself", path)
        if depth >= MAX_DEPTH:
            return self.placeholder(f"nested deeper than {MAX_DEPTH}", path)
        if self.values > MAX_VALUES:
            return self.placeholder(f"more than {MAX_VALUES} values", path)
        self.inside.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, path, depth)
            if isinstance(value, (list, tuple)):
                return self._sequence(value, path, depth)
            return self._object(value, path, depth)
        finally:
            self.inside.discard(id(value))

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str and key.isascii() else self._key(key, path)
            self.values += 1
            if name in plain:
                self.notes.append(Note(path, f"two keys are both {name!r} as text; the later one is kept"))
            plain[name] = self.plain(item, f"{path}.{name}", depth + 1)
        if len(plain) == 1 and (only := next(iter(plain))).startswith("$"):
            return {f"${only}": plain[only]}
        return plain

    def _key(self, key: Any, path: str) -> str:
        if isinstance(key, str):
            return clean_text(key, path, self.notes)
        if key is None or (isinstance(key, (bool, int, float)) and not isinstance(key, enum.Enum)):
            return str(key)
        return describe(key) if not isinstance(key, enum.Enum) else str(key.value)

    def _sequence(self, value: Iterable[Any], path: str, depth: int) -> list[Any]:
        plain = []
        for position, item in enumerate(value):
            self.values += 1
            if self.values > MAX_VALUES:
                plain.append(self.placeholder(f"cut after {MAX_VALUES} values", path))
                break
            plain.append(self.plain(item, f"{path}[{position}]", depth + 1))
        return plain

    def _object(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str):  # a subclass
            return clean_text(str.__str__(value), path, self.notes)
        if isinstance(value, enum.Enum):
            return self.plain(value.value, path, depth + 1)
        if (number := as_number(value)) is not None and not hasattr(value, "__len__"):
            return self.plain(number, path, depth)
        if isinstance(value, (set, frozenset)):
            return self._sequence(sorted(value, key=repr), path, depth)
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (PurePath, uuid.UUID)):
            return str(value)
        if (fields := _fields(value)) is not None:
            return self._mapping(fields, path, depth)
        if (items := _array(value)) is not None:
            return self.plain(items, path, depth)
        return self.placeholder(describe(value), path)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a pydantic model, msgspec struct or dataclass."""
    if isinstance(value, type):
        return None
    if callable(dump := getattr(value, "model_dump", None)):
        dumped = dump()
        return dumped if isinstance(dumped, Mapping) else None
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _array(value: Any) -> Any:
    """The items of a numpy array, a torch tensor or a similar block of numbers, where there are not too many."""
    if not callable(tolist := getattr(value, "tolist", None)):
        return None
    size = getattr(value, "size", None)
    count = size() if callable(size) else size
    total = math.prod(count) if isinstance(count, tuple) else count
    return tolist() if isinstance(total, int) and total <= MAX_VALUES else None


def _is_marker(plain: dict[str, Any]) -> bool:
    return len(plain) == 1 and next(iter(plain)).startswith("$")


def restore_value(value: Any) -> Any:
    """Turn markers of decoded JSON back into what they stand for."""
    if type(value) is list:
        return [restore_value(item) for item in value]
    if type(value) is not dict:
        return value
    if not _is_marker(value):
        return {key: restore_value(item) for key, item in value.items()}
    [(key, item)] = value.items()
    if key.startswith("$$"):
        return {key[1:]: restore_value(item)}
    if key == "$float" and item in NON_FINITE:
        return NON_FINITE[item]
    if key == "$bytes":
        try:
            return base64.b64decode(item, validate=True)
        except (binascii.Error, TypeError, ValueError):
            return value
    return value
