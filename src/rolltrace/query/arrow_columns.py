"""Columns of Python values as Arrow arrays, which DuckDB reads without parsing text."""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from rolltrace.query.table_schema import COUNTS, NUMBER_MAP
from rolltrace.trace.json_numbers import NON_FINITE

if TYPE_CHECKING:
    from nanoarrow import Schema
    from nanoarrow._array import CArray

Values = Sequence[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
        import nanoarrow

        count = len(next(iter(columns.values())))
        if not count:
            return
        arrays = [_BUILDERS[kind](columns[name]) for name, kind in self._types.items()]
        self._chunks.append(
            nanoarrow.c_array_from_buffers(self._schema, count, [None], children=arrays, validation_level="none")
        )
        self.rows += count

    def extend(self, other: "ArrowTable") -> None:
        """Add the rows of another table with the same columns."""
        self._chunks += other._chunks
        self.rows += other.rows

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


def _bitmap(bits: Iterable[Any], count: int) -> bytes:
    """One bit for each value, the first in the lowest bit, as Arrow has them."""
    digits = "".join(["1" if bit else "0" for bit in bits])
    return int(digits[::-1], 2).to_bytes((count + 7) // 8, "little")


def _validity(values: Values) -> tuple[bytes | None, int]:
    """The bitmap of the values that are not None, and how many are None."""
    nulls = values.count(None)
    if not nulls:
        return None, 0
    if nulls == len(values):
        return bytes((nulls + 7) // 8), nulls
    return _bitmap([value is not None for value in values], len(values)), nulls


def _texts(values: Values, kind: str = "VARCHAR") -> "CArray":
    validity, nulls = _validity(values)
    if nulls:
        values = ["" if value is None else value for value in values]
    text = "".join(values)
    if text.isascii():
        return _array(kind, len(values), validity, _offsets(map(len, values)), text.encode(), nulls=nulls)
    return _bytes([value.encode() for value in values], validity, nulls, kind)


def _json(values: Values) -> "CArray":
    data = [None if value is None else bytes(value) for value in values]
    data = [None if value == _NULL else value for value in data]
    validity, nulls = _validity(data)
    present = [value or b"" for value in data]
    _check_text(b"".join(present))
    return _bytes(present, validity, nulls, "JSON")


def _check_text(data: bytes) -> None:
    """Raise `ValueError` if JSON is not UTF-8, or may have half of a surrogate pair."""
    if not data.isascii():
        data.decode()
    if _SURROGATE.search(data):
        raise ValueError("Expected no escaped surrogates.")


def _bytes(values: Sequence[bytes], validity: bytes | None, nulls: int, kind: str) -> "CArray":
    return _array(kind, len(values), validity, _offsets(map(len, values)), b"".join(values), nulls=nulls)


def _offsets(lengths: Iterable[int]) -> "array[int]":
    return array("i", accumulate(lengths, initial=0))


def _integers(values: Values) -> "CArray":
    validity, nulls = _validity(values)
    numbers = array("q", [0 if value is None else value for value in values] if nulls else values)
    return _array("BIGINT", len(values), validity, numbers, nulls=nulls)


def _floats(values: Values) -> "CArray":
    validity, nulls = _validity(values)
    if nulls:
        values = [0.0 if value is None else value for value in values]
    try:
        numbers = array("d", values)
    except TypeError:  # numbers that are not finite are written as text
        numbers = array("d", [NON_FINITE[value] if type(value) is str else value for value in values])
    return _array("DOUBLE", len(values), validity, numbers, nulls=nulls)


def _booleans(values: Values) -> "CArray":
    validity, nulls = _validity(values)
    return _array("BOOLEAN", len(values), validity, _bitmap(values, len(values)), nulls=nulls)


def _timestamps(values: Values) -> "CArray":
    validity, nulls = _validity(values)
    numbers = array("q", [0 if value is None else _microseconds(value) for value in values])
    return _array("TIMESTAMP", len(values), validity, numbers, nulls=nulls)


def _microseconds(time: datetime) -> int:
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _text_lists(values: Values) -> "CArray":
    items = list(chain.from_iterable(value or () for value in values))
    validity, nulls = _validity(values)
    offsets = _offsets(0 if value is None else len(value) for value in values)
    return _array("VARCHAR[]", len(values), validity, offsets, nulls=nulls, children=[_texts(items)])


def _maps(kind: str, values: Values) -> "CArray":
    """Maps from names to numbers."""
    validity, nulls = _validity(values)
    maps = [value or {} for value in values]
    keys = _texts(list(chain.from_iterable(maps)))
    numbers = _BUILDERS[_item_kind(kind)](list(chain.from_iterable(value.values() for value in maps)))
    entries = _array(f"{kind} entry", len(keys), None, children=[keys, numbers])
    return _array(kind, len(values), validity, _offsets(map(len, maps)), nulls=nulls, children=[entries])


def _item_kind(kind: str) -> str:
    """The type of the values of a map."""
    return kind.removeprefix("MAP(VARCHAR, ").partition(")")[0]


_BUILDERS: dict[str, Callable[[Values], "CArray"]] = {
    "VARCHAR": _texts,
    "JSON": _json,
    "BIGINT": _integers,
    "DOUBLE": _floats,
    "BOOLEAN": _booleans,
    "TIMESTAMP": _timestamps,
    "VARCHAR[]": _text_lists,
    NUMBER_MAP: partial(_maps, NUMBER_MAP),
    COUNTS: partial(_maps, COUNTS),
}
"""By the SQL type of a column, what makes its array."""
