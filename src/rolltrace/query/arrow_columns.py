"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from rolltrace.query.table_schema import COUNTS, NUMBER_MAP
from rolltrace.trace.json_numbers import NON_FINITE

if TYPE_CHECKING:
    from nanoarrow import Schema
    from nanoarrow._array import CArray

Values = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NESTED = ("VARCHAR[]", NUMBER_MAP, COUNTS)
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
        """Rows to be added; None if there are none."""
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


def _array(kind: str, count: int, *buffers: Any, nulls: int = 0, children: Iterable[Any] = ()) -> "CArray":
    import nanoarrow

    return nanoarrow.c_array_from_buffers(
        _arrow_type(kind), count, buffers, null_count=nulls, children=children, validation_level="none"
    )


def _column(kind: str, values: Values) -> "CArray":
    """The array of a column. Those in which all rows have the same text, or no value, take next to no time."""
    nulls = values.count(None)
    if nulls == len(values):
        return _default_column(kind, nulls, is_null=True)
    if kind in _NESTED and not nulls and not any(values):
        return _default_column(kind, len(values), is_null=False)
    if kind in ("VARCHAR", "JSON") and values[0] == values[-1] and values.count(values[0]) == len(values):
        return _constant_column(kind, values[0], len(values))
    if kind == "JSON":
        values = [None if value is None or _is_null(value) else value for value in values]
        nulls = values.count(None)
    validity = None
    if nulls:
        validity = _bitmap([value is not None for value in values])
        values = [_DEFAULTS[kind] if value is None else value for value in values]
    return _BUILDERS[kind](kind, values, validity, nulls)


@lru_cache(maxsize=256)
def _default_column(kind: str, count: int, *, is_null: bool) -> "CArray":
    validity = bytes((count + 7) // 8) if is_null else None
    return _BUILDERS[kind](kind, [_DEFAULTS[kind]] * count, validity, count if is_null else 0)


def _constant_column(kind: str, value: Any, count: int) -> "CArray":
    if kind == "VARCHAR":
        data = value.encode()
    elif _is_null(value):
        return _default_column(kind, count, is_null=True)
    else:
        data = bytes(value)
        _check_text(data)
    return _array(kind, count, None, _even_offsets(len(data), count), data * count)


def _is_null(value: Any) -> bool:
    """Whether a JSON value is null."""
    return len(value) == len(_NULL) and bytes(value) == _NULL


def _bitmap(bits: Sequence[Any]) -> bytes:
    """One bit for each value, the first in the lowest bit, as Arrow has them."""
    digits = "".join(["1" if bit else "0" for bit in bits])
    return int(digits[::-1], 2).to_bytes((len(bits) + 7) // 8, "little")


def _texts(kind: str, values: Values, validity: bytes | None = None, nulls: int = 0) -> "CArray":
    if all(map(str.isascii, values)):
        return _array(kind, len(values), validity, _offsets(values), "".join(values).encode(), nulls=nulls)
    encoded = [value.encode() for value in values]
    return _array(kind, len(values), validity, _offsets(encoded), b"".join(encoded), nulls=nulls)


def _json(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    data = b"".join(values)
    _check_text(data)
    return _array(kind, len(values), validity, _offsets(values), data, nulls=nulls)


def _check_text(data: bytes) -> None:
    """Raise `ValueError` if JSON is not UTF-8, or may have half of a surrogate pair."""
    if not data.isascii():
        data.decode()
    if _SURROGATE.search(data):
        raise ValueError("Expected no escaped surrogates.")


def _offsets(values: Iterable[Any]) -> "array[int]":
    """Where each value begins if they are put one after the other, and where the last one ends."""
    lengths = list(map(len, values))
    if lengths and lengths.count(lengths[0]) == len(lengths):
        return _even_offsets(lengths[0], len(lengths))
    return array("i", list(accumulate(lengths, initial=0)))


@lru_cache(maxsize=256)
def _even_offsets(length: int, count: int) -> "array[int]":
    return array("i", range(0, length * count + 1, length) if length else bytes(4 * (count + 1)))


def _integers(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    return _array(kind, len(values), validity, array("q", values), nulls=nulls)


def _floats(kind: str, values: Values, validity: bytes | None = None, nulls: int = 0) -> "CArray":
    try:
        numbers = array("d", values)
    except TypeError:  # numbers that are not finite are written as text
        numbers = array("d", [NON_FINITE[value] if type(value) is str else value for value in values])
    return _array(kind, len(values), validity, numbers, nulls=nulls)


def _booleans(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    return _array(kind, len(values), validity, _bitmap(values), nulls=nulls)


def _timestamps(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    numbers = array("q", [(time - _EPOCH) // _MICROSECOND for time in values])
    return _array(kind, len(values), validity, numbers, nulls=nulls)


def _text_lists(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    texts = _texts("VARCHAR", list(chain.from_iterable(values)))
    return _array(kind, len(values), validity, _offsets(values), nulls=nulls, children=[texts])


def _maps(kind: str, values: Values, validity: bytes | None, nulls: int) -> "CArray":
    """Maps from names to numbers."""
    keys = _texts("VARCHAR", list(chain.from_iterable(values)))
    item = _item_kind(kind)
    numbers = _BUILDERS[item](item, list(chain.from_iterable([value.values() for value in values])), None, 0)
    entries = _array(f"{kind} entry", len(keys), None, children=[keys, numbers])
    return _array(kind, len(values), validity, _offsets(values), nulls=nulls, children=[entries])


def _item_kind(kind: str) -> str:
    """The type of the values of a map."""
    return kind.removeprefix("MAP(VARCHAR, ").partition(")")[0]


_BUILDERS: dict[str, Callable[[str, Values, bytes | None, int], "CArray"]] = {
    "VARCHAR": _texts,
    "JSON": _json,
    "BIGINT": _integers,
    "DOUBLE": _floats,
    "BOOLEAN": _booleans,
    "TIMESTAMP": _timestamps,
    "VARCHAR[]": _text_lists,
    NUMBER_MAP: _maps,
    COUNTS: _maps,
}
"""By the SQL type of a column, what makes its array: from its type, values without None, the bitmap of those that are
not None (no bitmap if that is all of them), and the number of the others."""
_DEFAULTS: dict[str, Any] = {
    "VARCHAR": "", "JSON": b"", "BIGINT": 0, "DOUBLE": 0.0, "BOOLEAN": False, "TIMESTAMP": _EPOCH, "VARCHAR[]": (),
    NUMBER_MAP: {}, COUNTS: {},
}  # fmt: skip
"""By type, what stands in the array where there is no value."""
