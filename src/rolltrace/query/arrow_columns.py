"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from rolltrace.query.table_schema import COUNTS, NUMBER_MAP
from rolltrace.trace.json_numbers import NON_FINITE

if TYPE_CHECKING:
    from nanoarrow import Schema
    from nanoarrow._array import CArray

Values = Sequence[Any]
Parts = tuple[list[Any], list["CArray"]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NULL = b"null"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ArrowTable:
    """A table in chunks. It can be scanned any number of times, by DuckDB and other readers of Arrow streams."""

    def __init__(self, types: Mapping[str, str]) -> None:
        import nanoarrow

        self._types = types
        self._schema = nanoarrow.c_schema(nanoarrow.struct({name: _arrow_type(kind) for name, kind in types.items()}))
        self._chunks: list[CArray] = []
        self.rows = 0

    def append(self, columns: Mapping[str, Values]) -> None:
        """Add rows, given by column. Raises `ValueError` if a JSON value has text that DuckDB may not read."""
        self.append_chunk(self.chunk(columns))

    def chunk(self, columns: Mapping[str, Values]) -> "CArray | None":
        """An array of rows, for `append_chunk`; None without rows."""
        import nanoarrow

        count = len(next(iter(columns.values())))
        if not count:
            return None
        arrays = [_column(kind, columns[name]) for name, kind in self._types.items()]
        return nanoarrow.c_array_from_buffers(self._schema, count, [None], children=arrays, validation_level="none")

    def append_chunk(self, chunk: "CArray | None") -> None:
        """Add these rows."""
        if chunk is not None:
            self._chunks.append(chunk)
            self.rows += len(chunk)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        from nanoarrow._array_stream import CArrayStream

        stream = CArrayStream.from_c_arrays(self._chunks, self._schema, validate=False)
        return stream.__arrow_c_stream__(requested_schema)


@cache
def _arrow_type(kind: str) -> "Schema":
    """The Arrow type of a column of this SQL type, or of an entry of its maps."""
    import nanoarrow

    if kind.endswith(" entry"):
        item = _arrow_type(_item_kind(kind))
        return nanoarrow.struct({"key": nanoarrow.string(nullable=False), "value": item}, nullable=False)
    if kind.startswith("MAP"):
        return nanoarrow.map_(nanoarrow.string(), _arrow_type(_item_kind(kind)))
    return {
        "VARCHAR": nanoarrow.string,
        "JSON": lambda: nanoarrow.extension_type(nanoarrow.string(), "arrow.json", b""),
        "BIGINT": nanoarrow.int64,
        "DOUBLE": nanoarrow.float64,
        "BOOLEAN": nanoarrow.bool_,
        "TIMESTAMP": lambda: nanoarrow.timestamp("us"),
        "VARCHAR[]": lambda: nanoarrow.list_(nanoarrow.string()),
    }[kind]()


def _array(kind: str, count: int, buffers: Iterable[Any], children: Iterable[Any] = (), nulls: int = 0) -> "CArray":
    import nanoarrow

    return nanoarrow.c_array_from_buffers(
        _arrow_type(kind), count, buffers, null_count=nulls, children=children, validation_level="none"
    )


def _column(kind: str, values: Values) -> "CArray":
    """The array of a column. Those in which all rows have the same text, or no value, take next to no time."""
    first, last = values[0], values[-1]
    if first is None and last is None and values.count(None) == len(values):
        return _default_column(kind, len(values), is_null=True)
    if kind in ("VARCHAR", "JSON") and first == last and values.count(first) == len(values):
        return _constant_column(kind, first, len(values))
    if kind in _NESTED and not any(values) and None not in values:
        return _default_column(kind, len(values), is_null=False)
    if kind == "JSON":
        values = [None if value is None or _is_null(value) else value for value in values]
    try:
        return _build(kind, values)
    except TypeError:  # there is a None among them: looking for it first takes longer than most columns
        validity = _bitmap([value is not None for value in values])
        filled = [_DEFAULTS[kind] if value is None else value for value in values]
        return _build(kind, filled, validity, values.count(None))


@lru_cache(maxsize=256)
def _default_column(kind: str, count: int, *, is_null: bool) -> "CArray":
    values = [_DEFAULTS[kind]] * count
    return _build(kind, values, bytes((count + 7) // 8), count) if is_null else _build(kind, values)


def _constant_column(kind: str, value: Any, count: int) -> "CArray":
    if kind == "JSON" and _is_null(value):
        return _default_column(kind, count, is_null=True)
    [_, data], _ = _BUILDERS[kind]([value])
    return _array(kind, count, [None, _even_offsets(len(data), count), data * count])


def _build(kind: str, values: Values, validity: bytes | None = None, nulls: int = 0) -> "CArray":
    """The array of values; where the bitmap `validity` has no bit, they are null. Raises `TypeError` if one is None."""
    buffers, children = _BUILDERS[kind](values)
    return _array(kind, len(values), [validity, *buffers], children, nulls)


def _is_null(value: Any) -> bool:
    """Whether a JSON value is null."""
    return len(value) == len(_NULL) and bytes(value) == _NULL


def _bitmap(bits: Sequence[Any]) -> bytes:
    """One bit for each value, the first in the lowest bit, as Arrow has them."""
    digits = "".join(["1" if bit else "0" for bit in bits])
    return int(digits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def _offsets(values: Iterable[Any]) -> "array[int]":
    """Where each value begins if they are put one after the other, and where the last one ends."""
    lengths = list(map(len, values))
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return _even_offsets(lengths[0], len(lengths))
    return array("i", list(accumulate(lengths, initial=0)))


@lru_cache(maxsize=256)
def _even_offsets(length: int, count: int) -> "array[int]":
    return array("i", range(0, length * count + 1, length) if length else bytes(4 * (count + 1)))


def _texts(values: Values) -> Parts:
    if all(map(str.isascii, values)):
        return [_offsets(values), "".join(values).encode()], []
    encoded = list(map(str.encode, values))
    return [_offsets(encoded), b"".join(encoded)], []


def _json(values: Values) -> Parts:
    """Raises `ValueError` if JSON is not UTF-8, or may have half of a surrogate pair."""
    data = b"".join(values)
    if not data.isascii():
        data.decode()
    if _SURROGATE.search(data):
        raise ValueError("Expected no escaped surrogates.")
    return [_offsets(values), data], []


def _floats(values: Values) -> Parts:
    try:
        return [array("d", values)], []
    except TypeError:  # numbers that are not finite are written as text
        return [array("d", [NON_FINITE[value] if type(value) is str else value for value in values])], []


def _booleans(values: Values) -> Parts:
    if None in values:
        raise TypeError("Expected no None.")
    return [_bitmap(values)], []


def _text_lists(values: Values) -> Parts:
    return [_offsets(values)], [_build("VARCHAR", list(chain.from_iterable(values)))]


def _maps(kind: str, values: Values) -> Parts:
    """Maps from names to numbers."""
    keys = _build("VARCHAR", list(chain.from_iterable(values)))
    numbers = _build(_item_kind(kind), list(chain.from_iterable([value.values() for value in values])))
    return [_offsets(values)], [_array(f"{kind} entry", len(keys), [None], [keys, numbers])]


def _item_kind(kind: str) -> str:
    """The type of the values of a map."""
    return kind.removeprefix("MAP(VARCHAR, ").partition(")")[0]


_BUILDERS: dict[str, Callable[[Values], Parts]] = {
    "VARCHAR": _texts,
    "JSON": _json,
    "BIGINT": lambda values: ([array("q", values)], []),
    "DOUBLE": _floats,
    "BOOLEAN": _booleans,
    "TIMESTAMP": lambda values: ([array("q", [(time - _EPOCH) // _MICROSECOND for time in values])], []),
    "VARCHAR[]": _text_lists,
    NUMBER_MAP: partial(_maps, NUMBER_MAP),
    COUNTS: partial(_maps, COUNTS),
}
"""By the SQL type of a column, what makes the buffers of its array, and the arrays in it."""
_NESTED = ("VARCHAR[]", NUMBER_MAP, COUNTS)
_DEFAULTS: dict[str, Any] = {
    "VARCHAR": "", "JSON": b"", "BIGINT": 0, "DOUBLE": 0.0, "BOOLEAN": False, "TIMESTAMP": _EPOCH,
    **{kind: {} for kind in _NESTED},
}  # fmt: skip
"""By type, what the array has where there is no value."""
