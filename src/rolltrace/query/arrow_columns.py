"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from rolltrace.query.table_schema import NUMBER_MAP, sql_identifier, sql_literal
from rolltrace.trace.json_numbers import INT64_LIMIT, json_numbers, parse_float
from rolltrace.trace.strict_json import json_encoder

if TYPE_CHECKING:
    import duckdb
    from nanoarrow._array import CArray
    from nanoarrow._schema import CSchema

MapNames = tuple[str, ...]
Kind = str | MapNames
"""The SQL type of a column; of maps to numbers that all have the same names, these names."""
Values = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_STRUCT_NAMES = 256
"""Each name of a struct is an array of its own, which does not pay for many names and few rows."""
_MAX_LITERAL = 64
"""The longest text that may stand in a statement in place of a column."""


class ArrowTable:
    """A table for DuckDB.

    DuckDB takes long to read maps. As long as all maps of a column have the same names, they are passed as structs,
    which are cast to maps; others, and lists, as JSON. A short value that all rows have becomes a literal in the SQL,
    which takes next to no time. What a column cannot hold, such as an integer of more than 64 bits, is null.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self._columns: dict[tuple[Kind, ...], list[_Column]] = {}
        """By their kinds, in order: at most two, with structs and then with maps."""

    def append(self, columns: Mapping[str, Values]) -> None:
        """Add one or more rows."""
        kinds: tuple[Kind, ...] = tuple(
            (kind == NUMBER_MAP and _shared_names(columns[name])) or kind for name, kind in self._types.items()
        )
        if self._columns and next(reversed(self._columns)) != kinds:
            kinds = tuple(self._types.values())
        if kinds not in self._columns:
            self._columns[kinds] = list(map(_Column, kinds))
        for name, column in zip(self._types, self._columns[kinds], strict=True):
            column.append(columns[name])

    @contextmanager
    def registered(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[str]:
        """SQL for the rows, which are taken out of the table. It may be used any number of times while this is open."""
        from nanoarrow import Array

        tables = list(self._columns.values()) or [list(map(_Column, self._types.values()))]
        selects = []
        for number, columns in enumerate(tables):
            columns[0].store()  # there is at least one array, which has the number of rows
            named = dict(zip(self._types, columns, strict=True))
            arrays = _struct_array({name: column.stored for name, column in named.items() if column.stored})
            connection.register(f"_rows_{number}", Array(arrays))
            shown = (
                f"try_cast({column.literal or sql_identifier(name)} as {self._types[name]}) as {sql_identifier(name)}"
                for name, column in named.items()
            )
            selects.append(f"select {', '.join(shown)} from _rows_{number}")
        self._columns = {}
        try:
            yield f"({' union all '.join(selects)})"
        finally:
            for number in range(len(tables)):
                connection.unregister(f"_rows_{number}")


def _shared_names(maps: Sequence[Mapping[str, float] | None]) -> MapNames | None:
    """The names that each of these maps has, in this order; None if they differ, or cannot be those of a struct."""
    names = tuple(maps[0] or ())
    # A name in Arrow has no NUL and no half of a surrogate pair. DuckDB takes a struct with an empty name for a tuple.
    if not 0 < len(names) <= _MAX_STRUCT_NAMES or not all(name and name.isprintable() for name in names):
        return None
    # No map has a name twice, so the names of all maps, one after the other, are these only if each map has these.
    return names if all(maps) and [*chain.from_iterable(filter(None, maps))] == [*names] * len(maps) else None


class _Column:
    """A column: a short value, as long as it has no other, and then an array."""

    def __init__(self, kind: Kind) -> None:
        self.stored: _Texts | _Numbers | _Structs | None = None
        self.literal: str | None = "null"
        """The value of all rows in SQL; None if it must be an array."""
        self._kind = kind
        self._value: Any = None
        self._size = 0

    def append(self, values: Values) -> None:
        """Add one or more values."""
        if not self._size:
            self._value, self.literal = values[0], _literal(values[0])
        if self.literal is None or values[-1] != self._value or values.count(self._value) < len(values):
            self.store().extend(values)
        self._size += len(values)

    def store(self) -> "_Texts | _Numbers | _Structs":
        """Have an array from now on."""
        if self.stored is None:
            self.literal, self.stored = None, _new_array(self._kind)
            self.stored.extend([self._value] * self._size)
        return self.stored


def _literal(value: Any) -> str | None:
    """A short text, integer or JSON in SQL, or null; None for others. Floats are others: 0.0 and -0.0 are equal."""
    if value is None:
        return "null"
    if isinstance(value, str | int):
        text, kind = str(value), "VARCHAR"
    elif value == {} or isinstance(value, list | tuple | bytes | msgspec.Raw):
        text, kind = bytes(_encode_json(value)).decode(), "JSON"
    else:
        return None
    return f"{sql_literal(text)}::{kind}" if len(text) <= _MAX_LITERAL and text.isprintable() else None


def _encode_json(value: Any) -> Any:
    """Lists of texts and maps to numbers as JSON; None, and what is JSON, as it is."""
    if value is None or isinstance(value, bytes | msgspec.Raw):
        return value
    return json_encoder.encode(json_numbers(value) if isinstance(value, dict) else value)


class _Texts:
    """An array of texts or of JSON, which is also cast to lists and maps."""

    def __init__(self, kind: str) -> None:
        from nanoarrow.c_array import CArrayBuilder

        builder = CArrayBuilder.allocate()
        builder.init_from_schema(_arrow_type(kind))
        builder.start_appending()
        self._append = builder.append_strings if kind == "VARCHAR" else builder.append_bytes
        self._encode = None if kind in ("VARCHAR", "JSON") else _encode_json
        self.array: Callable[[], CArray] = builder.finish
        """It is called once, after the last value."""

    def extend(self, values: Values) -> None:
        """Add values."""
        self._append(map(self._encode, values) if self._encode else values)


class _Numbers:
    """An array of numbers, booleans or times."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._data = bytearray()
        self._validity = bytearray()
        """For each value the digit 1, or 0 for null; these are turned into bits together."""

    def extend(self, values: Values) -> None:
        """Add values."""
        code, as_number = _NUMBERS[self._kind]
        try:  # without looking for None, which takes longer
            self._data += struct.pack(f"{len(values)}{code}", *values)
            self._validity += b"1" * len(values)
        except struct.error:
            numbers = [None if value is None else as_number(value) for value in values]
            self._data += struct.pack(f"{len(values)}{code}", *[0 if number is None else number for number in numbers])
            self._validity += b"".join([b"0" if number is None else b"1" for number in numbers])

    def array(self) -> "CArray":
        """The array of all values."""
        bits = None
        if b"0" in self._validity:  # the first value is the lowest bit of the first byte
            bits = int(self._validity[::-1], 2).to_bytes(len(self._validity) // 8 + 1, "little")
        return _array(_arrow_type(self._kind), len(self._validity), [bits, self._data])


class _Structs:
    """An array of maps to numbers, all with the same names."""

    def __init__(self, names: MapNames) -> None:
        self._columns = {name: _Numbers("DOUBLE") for name in names}

    def extend(self, values: Values) -> None:
        """Add values."""
        numbers = [*chain.from_iterable(map(dict.values, values))]
        for first, column in enumerate(self._columns.values()):
            column.extend(numbers[first :: len(self._columns)])

    def array(self) -> "CArray":
        """The array of all values."""
        return _struct_array(self._columns)


def _new_array(kind: Kind) -> _Texts | _Numbers | _Structs:
    """An empty array for a column."""
    if isinstance(kind, tuple):
        return _Structs(kind)
    return _Numbers(kind) if kind in _NUMBERS else _Texts(kind)


def _struct_array(columns: Mapping[str, _Texts | _Numbers | _Structs]) -> "CArray":
    """The array of rows with these columns, of which there is at least one."""
    import nanoarrow

    arrays = {name: column.array() for name, column in columns.items()}
    schema = nanoarrow.struct({name: array.schema for name, array in arrays.items()})
    [size] = {*map(len, arrays.values())}
    return _array(nanoarrow.c_schema(schema), size, [None], [*arrays.values()])


def _array(schema: "CSchema", size: int, buffers: Values, children: Values = ()) -> "CArray":
    import nanoarrow

    return nanoarrow.c_array_from_buffers(schema, size, buffers, children=children, validation_level="none")


def _arrow_type(kind: str) -> "CSchema":
    """The Arrow type of numbers or texts. A column of texts may have more than 2 GB, if many steps share a response."""
    import nanoarrow

    types = {
        "VARCHAR": nanoarrow.large_string(), "BIGINT": nanoarrow.int64(), "DOUBLE": nanoarrow.float64(),
        "BOOLEAN": nanoarrow.uint8(), "TIMESTAMP": nanoarrow.timestamp("us"),
    }  # fmt: skip
    return nanoarrow.c_schema(types.get(kind) or nanoarrow.extension_type(nanoarrow.large_string(), "arrow.json", b""))


_NUMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BIGINT": ("q", lambda value: value if -INT64_LIMIT <= value < INT64_LIMIT else None),
    "DOUBLE": ("d", parse_float),
    "BOOLEAN": ("b", int),
    "TIMESTAMP": ("q", lambda time: (time - _EPOCH) // _MICROSECOND),
}
"""By type, the code of `struct`, and what turns a value that is not such a number into one. Large integers are null."""
