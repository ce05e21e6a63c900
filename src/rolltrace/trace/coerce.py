"""Coerces values to the types of a record's fields, so that every line can be read back.

Nothing here raises: a value that does not fit is replaced or left out, and a note says so.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Quote
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import Field, FieldKind, record_fields
from rolltrace.trace.freeform import Note, as_text, describe, is_valid_utf8
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import FAST_INT_LIMIT, Number, as_float, as_number
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.tokens import Tokens, Usage

Record = TypeVar("Record", bound=msgspec.Struct)

_TEXT, _INTEGER, _FLOAT = frozenset({str}), frozenset({int}), frozenset({float})


def coerce_record(record: Record, path: str, notes: list[Note]) -> Record:
    """The record with each field of its type. What is not a number in a number's place is moved to its `extra`.

    Free-form maps stay as they are: they are converted when the record is encoded.
    """
    fields = record_fields(type(record))
    non_numeric: dict[str, Any] | None = {} if "extra" in record.__struct_fields__ else None
    values = {
        field.name: coerce_field(field, getattr(record, field.name), path, notes, non_numeric) for field in fields
    }
    if non_numeric:
        values["extra"] = with_non_numeric(values["extra"], non_numeric)
    return type(record)(**values)


def coerce_field(
    field: Field, value: Any, path: str, notes: list[Note], non_numeric: dict[str, Any] | None = None
) -> Any:
    """The value of one field of the record at `path`.

    Values that are not numbers are added to `non_numeric`, or left out if that is None.
    """
    if value is None and field.is_nullable:
        return None
    return _COERCIONS[field.kind](field, value, _Place(path, notes, non_numeric))


class _Place(msgspec.Struct, gc=False):
    """Where in a record a value is, and where to note what happened to it."""

    path: str
    """The path of the record; empty for the rollout itself."""
    notes: list[Note]
    non_numeric: dict[str, Any] | None

    def path_of(self, field: Field) -> str:
        return f"{self.path}.{field.written_name}" if self.path else field.written_name

    def set_aside(self, name: str, value: Any) -> str:
        """Move a value that is not a number to the record's `extra`, if it has one; says what became of it."""
        if self.non_numeric is None:
            return f"got {describe(value)}, left out"
        self.non_numeric[name] = value
        return "moved to extra"

    def left_out(self, field: Field, expected: str, value: Any) -> None:
        self.notes.append(Note(self.path_of(field), f"expected {expected}, got {describe(value)}: left out"))


def _text(field: Field, value: Any, place: _Place) -> Any:
    if field.depth == 0:
        return value if type(value) is str else as_text(value, place.path_of(field), place.notes)
    if type(value) is tuple and _TEXT.issuperset(map(type, value)):
        return value
    listed = value if isinstance(value, tuple | list | set | frozenset) else () if value is None else (value,)
    return tuple(as_text(text, place.path_of(field), place.notes) for text in listed)


def _name_or_integer(field: Field, value: Any, place: _Place) -> int | str:
    if type(value) is str:
        return value
    number = as_number(value)
    return number if type(number) is int else as_text(value, place.path_of(field), place.notes)


def _choice(field: Field, value: Any, place: _Place) -> Any:
    if type(value) is field.enum:
        return value
    try:
        return field.enum(value)
    except Exception:  # noqa: BLE001 - a foreign object may raise anything when it is compared
        place.left_out(field, f"one of {', '.join(field.enum)}", value)
        return None if field.is_nullable else next(iter(field.enum))


def _integer(field: Field, value: Any, place: _Place) -> Any:
    if field.depth:
        return _sequence(field, value, _whole, place)
    if type(value) is int and -FAST_INT_LIMIT < value < FAST_INT_LIMIT:
        return value
    number = None if value is None else _whole(value)
    if number is None:
        if value is not None:
            place.left_out(field, "a whole number", value)
        return None if field.is_nullable else 0
    return number


def _boolean(field: Field, value: Any, place: _Place) -> bool | None:
    if type(value) is bool:
        return value
    place.left_out(field, "True or False", value)
    return None if field.is_nullable else bool(field.default)


def _number(field: Field, value: Any, place: _Place) -> Any:
    if field.depth:
        return _sequence(field, value, as_float, place)
    if type(value) is float:
        return value
    number = as_float(value)
    if number is not None:
        return number
    if field.is_nullable:
        place.left_out(field, "a number", value)
        return None
    place.notes.append(
        Note(place.path_of(field), f"not a number: {place.set_aside(field.name, value)}, NaN in its place")
    )
    return float("nan")


def _duration(field: Field, value: Any, place: _Place) -> float | None:
    seconds: float | None = _number(field, value, place)
    if seconds is None or not seconds < 0.0:
        return seconds
    place.notes.append(Note(place.path_of(field), f"expected a duration, got {describe(value)}: 0 in its place"))
    return 0.0


def _numbers(field: Field, values: Any, place: _Place) -> dict[str, Number]:
    if type(values) is dict and not values:
        return {}
    path = place.path_of(field)
    numbers: dict[str, Number] = {}
    try:
        for name, value in values.items():
            key = as_text(name, path, place.notes)
            if (number := as_number(value)) is None:
                where = place.set_aside(f"{field.name}.{key}", value)
                place.notes.append(Note(f"{path}.{key}", f"not a number: {where}"))
            else:
                numbers[key] = number
    except Exception:  # noqa: BLE001 - a hostile mapping may raise anywhere
        where = place.set_aside(field.name, values)
        place.notes.append(Note(path, f"not a map of numbers: {where}"))
    return numbers


def _counts(field: Field, values: Any, place: _Place) -> dict[str, int]:
    numbers = _numbers(field, values, place)
    return {name: whole for name, number in numbers.items() if (whole := _whole(number)) is not None}


def _record(field: Field, value: Any, place: _Place) -> Any:
    if field.depth == 0:
        return _one_record(field, value, place.path_of(field), place)
    path = place.path_of(field)
    try:
        items = list(value)
    except Exception:  # noqa: BLE001 - a foreign object may raise anything
        place.left_out(field, "a sequence", value)
        return ()
    coerced = [_one_record(field, item, f"{path}[{position}]", place) for position, item in enumerate(items)]
    return tuple(item for item in coerced if item is not None)


def _one_record(field: Field, value: Any, path: str, place: _Place) -> Any:
    if field.record is Message:
        return as_message(value, path, place.notes)
    if field.record is ToolSpec:
        return as_tool(value, path, place.notes)
    if field.record is Tokens:
        return coerce_tokens(value, path, place.notes)
    if is_valid_usage(value):
        return value
    if type(value) is not field.record:
        kind = field.record.__name__ if field.record is not None else "record"
        place.notes.append(Note(path, f"expected a {kind}, got {describe(value)}: left out"))
        return None
    return value if field.record in (Failure, Quote) else coerce_record(value, path, place.notes)


def is_valid_usage(value: Any) -> bool:
    """Whether it is a `Usage` whose counts fit into 64 bits."""
    if type(value) is not Usage:
        return False
    prompt, completion = value.prompt_tokens, value.completion_tokens
    return (
        type(prompt) is int
        and type(completion) is int
        and -FAST_INT_LIMIT < prompt < FAST_INT_LIMIT
        and -FAST_INT_LIMIT < completion < FAST_INT_LIMIT
    )


def _timestamp(field: Field, value: Any, place: _Place) -> datetime | None:
    if isinstance(value, datetime):
        return coerce_time(value)
    place.left_out(field, "a datetime", value)
    return None if field.is_nullable else datetime.fromtimestamp(0, UTC)


def _custom(field: Field, value: Any, place: _Place) -> Any:
    if isinstance(value, FrozenMap | Blob):
        return value
    if isinstance(value, Mapping):
        return FrozenMap.of(value, place.path_of(field), place.notes)
    place.left_out(field, "a mapping", value)
    return None


def _unchanged(_: Field, value: Any, __: _Place) -> Any:
    return value


_COERCIONS: dict[FieldKind, Callable[[Field, Any, _Place], Any]] = {
    FieldKind.NAME: _text,
    FieldKind.LABEL: _text,
    FieldKind.TEXT: _text,
    FieldKind.NAME_OR_INTEGER: _name_or_integer,
    FieldKind.CHOICE: _choice,
    FieldKind.INTEGER: _integer,
    FieldKind.BOOLEAN: _boolean,
    FieldKind.NUMBER: _number,
    FieldKind.DURATION: _duration,
    FieldKind.NUMBERS: _numbers,
    FieldKind.COUNTS: _counts,
    FieldKind.FREE_FORM: _unchanged,
    FieldKind.TIMESTAMP: _timestamp,
    FieldKind.RECORD: _record,
    FieldKind.RESPONSE: _unchanged,
    FieldKind.CUSTOM: _custom,
    FieldKind.RANGE: _unchanged,
}


def with_non_numeric(extra: Any, non_numeric: Mapping[str, Any]) -> Any:
    """A free-form map with the values that were moved to it."""
    if not non_numeric:
        return extra
    try:
        return (
            {**non_numeric, **extra}
            if not non_numeric.keys() & extra.keys()
            else {**extra, "non_numeric": dict(non_numeric)}
        )
    except Exception:  # noqa: BLE001 - a hostile mapping may raise anywhere; encoding it says what is wrong with it
        return {"value": extra, **non_numeric}


def coerce_time(time: datetime) -> datetime:
    """The same time in UTC; a time without a zone is local time, as in Python."""
    if time.tzinfo is UTC:
        return time
    try:
        return time.astimezone(UTC)
    except (OverflowError, ValueError, OSError):  # in the first or the last year that Python knows
        return time.replace(tzinfo=UTC)


def coerce_usage(usage: Any, path: str, notes: list[Note]) -> Usage | None:
    """Counts of tokens, or None if `usage` is not a `Usage`."""
    if usage is None or is_valid_usage(usage):
        return usage  # type: ignore[no-any-return]
    if type(usage) is Usage:
        return coerce_record(usage, path, notes)
    notes.append(Note(path, f"expected a Usage, got {describe(usage)}: left out"))
    return None


def coerce_tokens(tokens: Any, path: str, notes: list[Note]) -> Tokens | None:
    """Token ids and log-probabilities as tuples of Python numbers, or None if they are not sequences of numbers."""
    if tokens is None:
        return None
    try:
        logprobs = None if tokens.logprobs is None else _numbers_in(tokens.logprobs, as_float)
        coerced = Tokens(_numbers_in(tokens.prompt, _whole), _numbers_in(tokens.response, _whole), logprobs)
    except Exception as error:  # noqa: BLE001 - a foreign array may raise anything when it is read
        notes.append(Note(path, f"expected sequences of numbers, got {describe(tokens)} ({error}): left out"))
        return None
    if (char_lengths := getattr(tokens, "char_lengths", None)) is None:
        return coerced
    try:
        return msgspec.structs.replace(coerced, char_lengths=_numbers_in(char_lengths, _whole))
    except Exception as error:  # noqa: BLE001 - as above; the ids are valid without them
        expected = f"expected a sequence of numbers, got {describe(char_lengths)} ({error}): left out"
        notes.append(Note(f"{path}.char_lengths", expected))
        return coerced


def matching_char_lengths(tokens: Tokens, text: Any, path: str, notes: list[Note]) -> tuple[int, ...] | None:
    """The lengths of the response tokens' texts if they add up to the recorded text, else None."""
    char_lengths = tokens.char_lengths
    if char_lengths is None:
        return None
    if len(char_lengths) != len(tokens.response):
        notes.append(
            Note(path, f"expected {len(tokens.response)}, one for each token, got {len(char_lengths)}: left out")
        )
        return None
    if (
        type(text) is not str
        or not is_valid_utf8(text)
        or any(length < 0 for length in char_lengths)
        or sum(char_lengths) != len(text)
    ):
        notes.append(Note(path, "expected lengths that add up to the step's text, got others: left out"))
        return None
    return char_lengths


def _sequence(field: Field, values: Any, convert: Callable[[Any], Any], place: _Place) -> tuple[Any, ...]:
    try:
        return _numbers_in(values, convert)
    except Exception as error:  # noqa: BLE001 - as above
        place.left_out(field, "a sequence of numbers", f"{values!r} ({error})")
        return ()


def _numbers_in(values: Any, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    plain = tuple(values)
    if (_INTEGER if convert is _whole else _FLOAT).issuperset(map(type, plain)):
        return plain
    numbers = tuple(map(convert, plain))
    if None in numbers:
        raise TypeError(f"no number at {numbers.index(None)}")
    return numbers


def _whole(value: Any) -> int | None:
    number = as_number(value)
    if type(number) is int:
        return number
    if number is not None and number == number and abs(number) != float("inf") and number == int(number):
        return int(number)
    return None
