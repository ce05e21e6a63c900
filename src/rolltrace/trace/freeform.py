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
import re
import reprlib
import uuid
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from rolltrace.trace.field_types import Label, Text
from rolltrace.trace.json_numbers import FAST_INT_LIMIT, MAX_BITS, NON_FINITE, as_number, nonfinite_text
from rolltrace.trace.limits import MAX_NESTING

MAX_DEPTH = 64
"""Containers nested deeper than this become a placeholder: no JSON reader can be trusted with more."""

MAX_VALUES = 1_000_000
"""One free-form place holds at most so many values: a small structure that shares its parts must not fill the disk."""

MAX_TEXT = 1 << 26
"""One free-form place holds at most so many characters of text, for the same reason."""

MAX_NOTES = 32
"""One free-form place leaves at most so many notes; one more says how many there would have been."""

_MAX_DESCRIPTION_CHARS = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxstring = _short.maxother = _short.maxlong = 2 * _MAX_DESCRIPTION_CHARS


class Note(msgspec.Struct, frozen=True):
    """Something about the record itself that a reader should know."""

    path: Label
    """Where in the record, such as `steps[3].env_state.board`; empty for the whole."""
    message: Text
    """What happened to it."""


class Placeholder(dict[str, str]):
    """What stands for a value that could not be kept, as it is read from a record; written again it is the same."""


_FEW_VALUES = 100
_FEW_CHARACTERS = 10_000
"""Larger maps are walked, which counts what is too much."""


def to_json_mapping(values: Any, path: str, notes: list[Note]) -> dict[str, Any]:
    """A user's mapping as a fresh dict of plain JSON values, sharing nothing that can change."""
    if type(values) is dict:
        if is_flat(values):
            return dict(values)
        if (copied := _copy_flat_maps(values)) is not None:
            return copied
    plain = to_json_value(values, path, notes)
    if type(plain) is dict and not (_is_marker(plain) and not next(iter(plain)).startswith("$$")):
        return plain
    return {"value": plain}


def _copy_flat_maps(values: dict[Any, Any]) -> dict[str, Any] | None:
    """A copy of a small map whose values are flat, or small flat maps, such as the data of a grade; else None."""
    maps = {key: value for key, value in values.items() if type(value) is dict}
    others = {key: None if key in maps else value for key, value in values.items()}
    if not is_flat(others) or not all(map(is_flat, maps.values())):
        return None
    parts = [others, *maps.values()]
    text = sum(len(value) for part in parts for value in part.values() if type(value) is str)
    keys = sum(map(len, parts))
    if keys > _FEW_VALUES or text > _FEW_CHARACTERS:
        return None
    return {key: dict(maps[key]) if key in maps else value for key, value in values.items()}


def is_flat(values: dict[Any, Any]) -> bool:
    """Whether a map holds only what JSON has, one level deep: most do, and copying such a map is all there is to do."""
    text = 0
    for key, value in values.items():
        kind = type(value)
        if kind is str:
            if not is_valid_utf8(value):
                return False
            text += len(value)
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif kind is int:
            if not -FAST_INT_LIMIT < value < FAST_INT_LIMIT:
                return False
        elif kind is not bool and value is not None:
            return False
        if type(key) is not str or not is_valid_utf8(key) or key.startswith("$"):
            return False
        text += len(key)
    return text <= MAX_TEXT and len(values) <= MAX_VALUES


def to_json_value(value: Any, path: str, notes: list[Note]) -> Any:
    """Any value as fresh plain JSON, with placeholders and notes where JSON has no such value."""
    walk = _JsonConverter(path)
    plain = walk.plain(value)
    walk.add_notes_to(notes)
    return plain


def json_text(value: Any, path: str, notes: list[Note]) -> str:
    """Any value as JSON text for a reader who knows nothing of markers: a user's `$` keys stay as they are."""
    walk = _JsonConverter(path, escapes=False)
    plain = walk.plain(value)
    walk.add_notes_to(notes)
    return msgspec.json.encode(plain).decode()


def clean_text(text: str, path: str, notes: list[Note]) -> str:
    """The text as UTF-8 can hold it: surrogate pairs are joined, lone surrogates become U+FFFD, and a note says so."""
    if type(text) is not str:
        text = str.__str__(text)  # a subclass may answer anything; what it holds is its text
    if is_valid_utf8(text):
        return text
    found = sorted({f"U+{ord(c):04X}" for c in text if "\ud800" <= c <= "\udfff"})
    notes.append(Note(path, f"surrogates joined to pairs or replaced by U+FFFD: {', '.join(found[:8])}"))
    return join_surrogates(text)


def is_valid_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def join_surrogates(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def as_text(value: Any, path: str, notes: list[Note]) -> str:
    """Text as it is, nothing as empty text, bytes decoded as UTF-8, anything else as JSON, noted."""
    if isinstance(value, str):
        return clean_text(value, path, notes)
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray | memoryview):
        # Not as JSON: a redaction could not find text in base64.
        notes.append(Note(path, f"expected text, got {type(value).__name__}: decoded as UTF-8"))
        return bytes(value).decode("utf-8", "replace")
    notes.append(Note(path, f"expected text, got {type(value).__name__}: kept as JSON"))
    return json_text(value, path, notes)


def optional_text(value: Any, path: str, notes: list[Note]) -> str | None:
    """As `as_text`, but nothing stays nothing."""
    return None if value is None else as_text(value, path, notes)


def describe(value: Any) -> str:
    """What a value is, in few words, whatever it does when asked; the same words in every process."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    try:
        text = _ADDRESS.sub("", _short.repr(value))
    except Exception as error:  # noqa: BLE001 - a foreign repr may do anything
        text = f"its repr raises {type(error).__name__}"
    if len(text) > _MAX_DESCRIPTION_CHARS:
        text = f"{text[:_MAX_DESCRIPTION_CHARS]}…"
    return f"{name}: {text}".encode("utf-8", "replace").decode()


def object_fields(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a mapping, a pydantic model, a msgspec struct or a dataclass; may raise what the value raises."""
    if isinstance(value, Mapping):
        return value
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


class _JsonConverter:
    """One walk over one value: knows the containers it is inside of, and stops at what is too much."""

    def __init__(self, path: str, escapes: bool = True) -> None:
        self._notes: list[Note] = []
        self._noted = 0
        self._path = path
        self._escapes = escapes
        self._trail: list[str | int] = []
        self._values = 0
        self._text = 0
        self._inside: set[int] = set()

    def plain(self, value: Any) -> Any:
        kind = type(value)
        if kind is str:
            return self._string(value)
        if value is None or kind is bool or (kind is int and value.bit_length() <= MAX_BITS):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": nonfinite_text(value)}
        try:
            return self._other(value)
        except Exception as error:  # noqa: BLE001 - a foreign object may do anything when walked
            return self._placeholder(f"{type(error).__name__} while reading {describe(value)}")

    def add_notes_to(self, notes: list[Note]) -> None:
        """Append the notes of this walk, at most `MAX_NOTES`, and how many were left out."""
        notes.extend(self._notes)
        if self._noted > MAX_NOTES:
            notes.append(Note(self._path, f"{self._noted - MAX_NOTES} more notes like these were left out"))

    def _note(self, message: str) -> None:
        self._noted += 1
        if self._noted <= MAX_NOTES:
            trail = "".join(f"[{step}]" if type(step) is int else f".{step}" for step in self._trail)
            self._notes.append(Note(self._path + trail, message))

    def _placeholder(self, what: str) -> dict[str, str]:
        self._text += len(what)
        self._note(f"replaced by a placeholder: {what}")
        return {"$unrepresentable": what}

    def _string(self, value: str) -> Any:
        self._text += len(value)
        if self._text > MAX_TEXT:
            return self._placeholder(f"text past {MAX_TEXT} characters")
        heard: list[Note] = []
        text = clean_text(value, "", heard)
        for note in heard:
            self._note(note.message)
        return text

    def _other(self, value: Any) -> Any:
        if type(value) is Placeholder:
            return dict(value)
        if isinstance(value, int):
            number = as_number(value)
            return self._placeholder("an integer of thousands of digits") if number is None else number
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value)
        if id(value) in self._inside:
            return self._placeholder("it contains itself")
        if len(self._inside) >= MAX_DEPTH:
            return self._placeholder(f"nested deeper than {MAX_DEPTH}")
        self._inside.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value)
            if isinstance(value, (list, tuple)):
                return self._sequence(value)
            return self._object(value)
        finally:
            self._inside.discard(id(value))

    def _bytes(self, value: bytes | bytearray | memoryview) -> dict[str, str]:
        self._text += memoryview(value).nbytes * 4 // 3
        if self._text > MAX_TEXT:
            return self._placeholder(f"bytes past {MAX_TEXT} characters")
        return {"$bytes": base64.b64encode(bytes(value)).decode()}

    def _is_full(self) -> bool:
        self._values += 1
        return self._values > MAX_VALUES or self._text > MAX_TEXT

    def _cut(self) -> str:
        what = f"cut after {MAX_VALUES} values" if self._values > MAX_VALUES else f"cut after {MAX_TEXT} characters"
        self._note(what)
        return what

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if self._is_full():
                plain["$unrepresentable"] = self._cut()
                return plain
            name = self._key(key)
            if name in plain:
                self._note(f"two keys are both {name!r} as text; the later one is kept")
            self._trail.append(name)
            try:
                plain[name] = self.plain(item)
            finally:
                self._trail.pop()
        if self._escapes and _is_marker(plain):
            [(only, item)] = plain.items()
            return {f"${only}": item}
        return plain

    def _key(self, key: Any) -> str:
        if isinstance(key, enum.Enum):
            key = key.value
        if isinstance(key, str):
            text = self._string(key)
            return text if type(text) is str else f"text past {MAX_TEXT} characters"
        if key is None or (number := as_number(key)) is not None:
            return str(None if key is None else number)
        return describe(key)

    def _sequence(self, value: Iterable[Any]) -> list[Any]:
        plain = []
        for position, item in enumerate(value):
            if self._is_full():
                plain.append({"$unrepresentable": self._cut()})
                break
            self._trail.append(position)
            try:
                plain.append(self.plain(item))
            finally:
                self._trail.pop()
        return plain

    def _object(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return self.plain(value.value)
        if isinstance(value, str):  # a subclass
            return self._string(str.__str__(value))
        if not hasattr(value, "__len__") and (number := as_number(value)) is not None:
            return self.plain(number)
        if isinstance(value, (set, frozenset)):
            return self._sequence(sorted(value, key=repr))
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (PurePath, uuid.UUID)):
            return self._string(str(value))
        if (fields := object_fields(value)) is not None:
            return self._mapping(fields)
        if (items := _array(value)) is not None:
            return self.plain(items)
        return self._placeholder(describe(value))


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


def check_nesting(value: dict[str, Any] | list[Any], depth: int = 0) -> None:
    """Raise `RecursionError` if containers in decoded JSON are nested deeper than `MAX_NESTING`."""
    if depth > MAX_NESTING:
        raise RecursionError(f"nested deeper than {MAX_NESTING}")
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) is dict or type(item) is list:
            check_nesting(item, depth + 1)


def from_json_mapping(values: dict[str, Any]) -> dict[str, Any]:
    """A decoded free-form map with its markers turned back; itself it is always a map."""
    if _is_marker(values) and not next(iter(values)).startswith("$$"):
        return values
    restored: dict[str, Any] = from_json_value(values)
    return restored


def from_json_value(value: Any, depth: int = 0) -> Any:
    """Turn markers of decoded JSON back into what they stand for."""
    kind = type(value)
    if kind is not list and kind is not dict:
        return value
    if depth > MAX_NESTING:
        raise RecursionError(f"nested deeper than {MAX_NESTING}")
    if kind is list:
        return [from_json_value(item, depth + 1) for item in value]
    if not _is_marker(value):
        return {key: from_json_value(item, depth + 1) for key, item in value.items()}
    [(key, item)] = value.items()
    if key.startswith("$$"):
        return {key[1:]: from_json_value(item, depth + 1)}
    return _unmark(key, item, value)


def _unmark(key: str, item: Any, marker: dict[str, Any]) -> Any:
    """What a marker stands for; one that means nothing here stands for itself."""
    if key == "$float" and type(item) is str:
        return NON_FINITE.get(item, marker)
    if key == "$unrepresentable" and type(item) is str:
        return Placeholder(marker)
    if key == "$bytes" and type(item) is str:
        try:
            return base64.b64decode(item, validate=True)
        except (binascii.Error, ValueError):
            return marker
    return marker
