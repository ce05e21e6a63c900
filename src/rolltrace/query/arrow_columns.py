"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

from rolltrace.query.table_schema import COUNTS, NUMBER_MAP, sql_identifier
from rolltrace.trace.json_numbers import INT64_LIMIT, NON_FINITE

if TYPE_CHECKING:
    import duckdb
    from nanoarrow._array import CArray, CArrayBuilder
    from nanoarrow._schema import CSchema

MapNames = tuple[str, ...]
Kind = str | MapNames
"""The SQL type of a column; in its place, the names in its maps to numbers if all have the same."""
Values = Sequence[Any]
Parts = tuple[list[Any], list["CArray"]]

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
        self._streams: list[_ArrowStream] = []
        """At most two: chunks with structs, and then those with maps."""

    def new_chunk(self, columns: Mapping[str, Values]) -> ArrowChunk:
        """A chunk of one or more rows; raises `ValueError` if a JSON value has text that DuckDB may not read."""
        kinds: tuple[Kind, ...] = tuple(
            (kind == NUMBER_MAP and _shared_names(columns[name])) or kind for name, kind in self._types.items()
        )
        if self._streams and self._streams[-1].kinds != kinds:
            kinds = tuple(self._types.values())
        arrays = [_column(kind, columns[name]) for name, kind in zip(self._types, kinds, strict=True)]
        return ArrowChunk(kinds, _array(_row_type(tuple(self._types), kinds), len(arrays[0]), [None], arrays))

    def append(self, chunk: ArrowChunk) -> None:
        """Add the newest chunk."""
        if not self._streams or self._streams[-1].kinds != chunk.kinds:
            self._streams.append(_ArrowStream(tuple(self._types), chunk.kinds))
        self._streams[-1].chunks.append(chunk.rows)

    @contextmanager
    def registered(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[str]:
        """SQL for the rows, which may be read any number of times while this is open."""
        streams = self._streams or [_ArrowStream(tuple(self._types), tuple(self._types.values()))]
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


class _ArrowStream:
    """Chunks whose columns are of the same kinds."""

    def __init__(self, names: tuple[str, ...], kinds: tuple[Kind, ...]) -> None:
        self.kinds = kinds
        self.chunks: list[CArray] = []
        self._type = _row_type(names, kinds)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from nanoarrow._array_stream import CArrayStream

        stream = CArrayStream.from_c_arrays(self.chunks, self._type, validate=False)
        return stream.__arrow_c_stream__(requested_schema)


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
    }[kind]
    return nanoarrow.c_schema(make_type())


def _builder(schema: "CSchema") -> "CArrayBuilder":
    from nanoarrow._array import CArrayBuilder

    builder = CArrayBuilder.allocate()
    builder.init_from_schema(schema)
    return builder


def _array(
    schema: "CSchema", count: int, buffers: Sequence[Any], children: Sequence["CArray"], nulls: int = 0
) -> "CArray":
    from nanoarrow._buffer import CBuffer

    builder = _builder(schema)
    for number, buffer in enumerate(buffers):
        if buffer is not None:
            builder.set_buffer(number, CBuffer.from_pybuffer(buffer), move=True)
    for number, child in enumerate(children):
        builder.set_child(number, child)
    builder.set_length(count)
    builder.set_null_count(nulls)
    return builder.finish(validation_level="none")


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
    if kind == "VARCHAR":
        return _texts(values)
    if kind == "JSON":
        return _json(values)
    try:
        buffers, children = _BUILDERS[kind](values)
        return _array(_arrow_type(kind), len(values), [None, *buffers], children)
    except (TypeError, struct.error):  # there is a None among them: looking for it first takes longer than most columns
        values = _fitting(values) if kind == "BIGINT" else values
        validity = _bitmap([value is not None for value in values])
        buffers, children = _BUILDERS[kind]([_DEFAULTS[kind] if value is None else value for value in values])
        return _array(_arrow_type(kind), len(values), [validity, *buffers], children, values.count(None))


def _bitmap(bits: Sequence[Any]) -> bytes:
    """One bit for each value, the first in the lowest bit, as Arrow has them."""
    digits = "".join(["1" if bit else "0" for bit in bits])
    return int(digits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def _offsets(values: Values) -> bytes:
    """Where each value begins if they are put one after the other, and where the last one ends."""
    return struct.pack(f"{len(values) + 1}i", *accumulate(map(len, values), initial=0))


def _texts(values: Iterable[Any], append: str = "append_strings") -> "CArray":
    """Raises `ValueError` if a text has half of a surrogate pair."""
    builder = _builder(_arrow_type("VARCHAR"))
    builder.start_appending()
    getattr(builder, append)(values)
    return builder.finish(validation_level="none")


def _json(values: Values) -> "CArray":
    """Raises `ValueError` if JSON is not UTF-8, or may have half of a surrogate pair."""
    data = b"".join(filter(None, values))
    if not data.isascii():
        data.decode()
    if _SURROGATE.search(data) and _ESCAPED_SURROGATE.search(data):
        raise ValueError("Expected no escaped surrogates.")
    if _NULL in data:
        values = [None if value is None or bytes(value) == _NULL else value for value in values]
    return _texts(values, "append_bytes")


def _pack(code: str, values: Values) -> Parts:
    return [struct.pack(f"{len(values)}{code}", *values)], []


def _fitting(values: Values) -> Values:
    """Integers of more than 64 bits are left out of the table; the record has them."""
    return [value if value is not None and -INT64_LIMIT <= value < INT64_LIMIT else None for value in values]


def _floats(values: Values) -> Parts:
    try:
        return _pack("d", values)
    except struct.error:
        return _pack("d", list(map(as_float, values)))


def as_float(value: Any) -> float:
    """Numbers that are not finite are written as text; an integer may be larger than every finite float."""
    try:
        return NON_FINITE[value] if type(value) is str else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _booleans(values: Values) -> Parts:
    if None in values:
        raise TypeError("Expected no None.")
    return [_bitmap(values)], []


def _maps(kind: str, item_kind: str, values: Values) -> Parts:
    """Maps from names to numbers."""
    filled = list(filter(None, values))
    keys = _texts(chain.from_iterable(filled))
    numbers = _build(item_kind, list(chain.from_iterable(map(dict.values, filled))))
    return [_offsets(values)], [_array(_arrow_type(kind).child(0), len(keys), [None], [keys, numbers])]


_BUILDERS: dict[str, Callable[[Values], Parts]] = {
    "BIGINT": partial(_pack, "q"),
    "DOUBLE": _floats,
    "BOOLEAN": _booleans,
    "TIMESTAMP": lambda values: _pack("q", [(time - _EPOCH) // _MICROSECOND for time in values]),
    "VARCHAR[]": lambda values: ([_offsets(values)], [_texts(chain.from_iterable(values))]),
    NUMBER_MAP: partial(_maps, NUMBER_MAP, "DOUBLE"),
    COUNTS: partial(_maps, COUNTS, "BIGINT"),
}
"""By the SQL type of a column, what makes the buffers of its array, and the arrays in it."""
_REPEATED_LENGTHS = {"VARCHAR": 64, "VARCHAR[]": 0, NUMBER_MAP: 0, COUNTS: 0}
"""By type, the longest value for which a column that repeats it is cached; those of other types only for None."""
_DEFAULTS: dict[str, Any] = {
    "BIGINT": 0, "DOUBLE": 0.0, "BOOLEAN": False, "TIMESTAMP": _EPOCH, "VARCHAR[]": (), NUMBER_MAP: {}, COUNTS: {},
}  # fmt: skip
"""By these types, what the array has where there is no value."""
