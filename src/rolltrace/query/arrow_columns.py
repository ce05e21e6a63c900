"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from rolltrace.query.table_schema import COUNTS, NUMBER_MAP, sql_identifier
from rolltrace.trace.json_numbers import INT64_LIMIT, parse_float

if TYPE_CHECKING:
    import duckdb
    from nanoarrow._array import CArray
    from nanoarrow._schema import CSchema

MapNames = tuple[str, ...]
Kind = str | MapNames
"""The SQL type of a column; in its place, the names in its maps to numbers if all have the same."""
Values = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = b"null"
_MAX_STRUCT_NAMES = 256
"""Each name of a struct is an array of its own, which does not pay for many names and few rows."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPED_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")
"""The same after an even number of backslashes, which takes longer to find: other text only looks like one."""


class ArrowChunk(NamedTuple):
    """Rows of a table, and the kinds of its columns."""

    kinds: tuple[Kind, ...]
    rows: "CArray"


class ArrowTable:
    """A table in chunks, for DuckDB.

    DuckDB looks for repeated names in each map, which is most of the time that it takes to read maps. As long as all
    maps of a column have the same names, they are passed as structs, which are cast to maps.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = types
        self.chunks: list[ArrowChunk] = []
        """In order. Add a new chunk before the next one is made."""

    def new_chunk(self, columns: Mapping[str, Values]) -> ArrowChunk:
        """A chunk of one or more rows; raises `ValueError` if a JSON value has text that DuckDB may not read."""
        kinds: tuple[Kind, ...] = tuple(
            (kind == NUMBER_MAP and _shared_names(columns[name])) or kind for name, kind in self._types.items()
        )
        if self.chunks and self.chunks[-1].kinds != kinds:
            kinds = tuple(self._types.values())
        arrays = [_column(kind, columns[name]) for name, kind in zip(self._types, kinds, strict=True)]
        return ArrowChunk(kinds, _array(_row_type(tuple(self._types), kinds), len(arrays[0]), [None], arrays))

    @contextmanager
    def registered(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[str]:
        """SQL for the rows, which may be read any number of times while this is open."""
        from nanoarrow import Array

        streams = [  # at most two: chunks with structs, and then those with maps
            Array.from_chunks([chunk.rows for chunk in chunks], validate=False)
            for _, chunks in groupby(self.chunks, lambda chunk: chunk.kinds)
        ] or [Array.from_chunks((), _row_type(tuple(self._types), tuple(self._types.values())))]
        views = {f"_rows_{number}": stream for number, stream in enumerate(streams)}
        columns = ", ".join(
            f"{sql_identifier(name)}::{kind} as {sql_identifier(name)}" for name, kind in self._types.items()
        )
        try:
            for name, stream in views.items():
                connection.register(name, stream)
            yield f"({' union all '.join(f'select {columns} from {name}' for name in views)})"
        finally:
            for name in views:
                connection.unregister(name)


@lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...], kinds: tuple[Kind, ...]) -> "CSchema":
    """The Arrow type of the rows of a table."""
    import nanoarrow

    return nanoarrow.c_schema(nanoarrow.struct(dict(zip(names, map(_arrow_type, kinds), strict=True))))


def _shared_names(maps: Sequence[Mapping[str, float] | None]) -> MapNames | None:
    """The names that each of these maps has, in this order; None if they differ, or cannot be those of a struct."""
    if not all(maps):
        return None
    names, *others = {*map(tuple, maps)}  # type: ignore[arg-type]
    # A name in Arrow has no NUL and no half of a surrogate pair. DuckDB takes a struct with an empty name for a tuple.
    can_be_struct = len(names) <= _MAX_STRUCT_NAMES and all(name and name.isprintable() for name in names)
    return names if can_be_struct and not others else None


@lru_cache(maxsize=64)
def _arrow_type(kind: Kind) -> "CSchema":
    """The Arrow type of a column."""
    import nanoarrow

    if isinstance(kind, tuple):
        return nanoarrow.c_schema(nanoarrow.struct(dict.fromkeys(kind, nanoarrow.float64())))
    make_type = {
        "VARCHAR": nanoarrow.string,
        "JSON": lambda: nanoarrow.extension_type(nanoarrow.string(), "arrow.json", b""),
        "BIGINT": nanoarrow.int64,
        "DOUBLE": nanoarrow.float64,
        "BOOLEAN": nanoarrow.bool_,
        "TIMESTAMP": lambda: nanoarrow.timestamp("us"),
        "VARCHAR[]": lambda: nanoarrow.list_(nanoarrow.string()),
        NUMBER_MAP: lambda: nanoarrow.map_(nanoarrow.string(), nanoarrow.float64()),
        COUNTS: lambda: nanoarrow.map_(nanoarrow.string(), nanoarrow.int64()),
        _BYTES: nanoarrow.binary,
    }[kind]
    return nanoarrow.c_schema(make_type())


def _column(kind: Kind, values: Values) -> "CArray":
    """The array of a column. One that repeats a short value, or has none, takes next to no time."""
    if isinstance(kind, tuple):
        numbers = [_build("DOUBLE", column) for column in zip(*map(dict.values, values), strict=True)]
        return _array(_arrow_type(kind), len(values), [None], numbers)
    first = values[0]
    is_short = first is None or (kind in _REPEATED_LENGTHS and len(first) <= _REPEATED_LENGTHS[kind])
    if is_short and first == values[-1] and values.count(first) == len(values):
        # An empty list or map cannot be the key of a cache: an empty tuple stands for it.
        return _repeated_value(kind, first if first is None or kind == "VARCHAR" else (), len(values))
    return _build(kind, values)


@lru_cache(maxsize=64)
def _repeated_value(kind: str, value: Any, count: int) -> "CArray":
    return _build(kind, [value] * count)


def _build(kind: str, values: Values) -> "CArray":
    """The array of a column of one of the SQL types; raises `ValueError` if a text has half of a surrogate pair."""
    import nanoarrow

    if kind in _ITEMS:
        return _nested(kind, values)
    if kind == "JSON":
        kind, values = _BYTES, _valid_json(values)
    elif kind == "TIMESTAMP":
        values = [time if time is None else (time - _EPOCH) // _MICROSECOND for time in values]
    if kind in _NUMBERS:
        code, as_number = _NUMBERS[kind]
        try:  # without looking for None, which takes longer
            return _array(_arrow_type(kind), len(values), [None, struct.pack(f"{len(values)}{code}", *values)])
        except struct.error:
            values = list(map(as_number, values))
    return nanoarrow.c_array(values, _arrow_type(kind))


def _nested(kind: str, values: Values) -> "CArray":
    """An array of lists of texts, or of maps from names to numbers."""
    import nanoarrow

    filled = list(filter(None, values))
    items = _build("VARCHAR", list(chain.from_iterable(filled)))
    if _ITEMS[kind]:
        numbers = _build(_ITEMS[kind], list(chain.from_iterable(map(dict.values, filled))))
        items = _array(_arrow_type(kind).child(0), len(items), [None], [items, numbers])
    nulls = values.count(None)
    validity = nanoarrow.c_buffer([value is not None for value in values], nanoarrow.bool_()) if nulls else None
    ends = accumulate([len(value or ()) for value in values], initial=0)
    return _array(_arrow_type(kind), len(values), [validity, struct.pack(f"{len(values) + 1}i", *ends)], [items], nulls)


def _array(schema: "CSchema", count: int, buffers: Values, children: Values = (), nulls: int = 0) -> "CArray":
    import nanoarrow

    return nanoarrow.c_array_from_buffers(schema, count, buffers, nulls, children=children, validation_level="none")


def _valid_json(values: Values) -> Values:
    """Raises `ValueError` if JSON is not UTF-8, or may have half of a surrogate pair."""
    data = b"".join(filter(None, values))
    if not data.isascii():
        data.decode()
    if _SURROGATE.search(data) and _ESCAPED_SURROGATE.search(data):
        raise ValueError("Expected no escaped surrogates.")
    if _NULL in data:
        return [None if value is None or bytes(value) == _NULL else value for value in values]
    return values


_NUMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BIGINT": ("q", lambda value: value if value is not None and -INT64_LIMIT <= value < INT64_LIMIT else None),
    "DOUBLE": ("d", lambda value: None if value is None else parse_float(value)),
    "TIMESTAMP": ("q", lambda value: value),
}
"""By type, the code of `struct`, and what a column has for a value that is not simply a number.

Integers of more than 64 bits are left out.
"""
_BYTES = "BLOB"
"""JSON is passed as bytes, which are already text in UTF-8."""
_ITEMS = {"VARCHAR[]": "", NUMBER_MAP: "DOUBLE", COUNTS: "BIGINT"}
"""By the type of a list or map, the type of the numbers in it; a list has none."""
_REPEATED_LENGTHS = {"VARCHAR": 64, "VARCHAR[]": 0, NUMBER_MAP: 0, COUNTS: 0}
"""By type, the longest value for which a column that repeats it is cached; those of other types only for None."""
