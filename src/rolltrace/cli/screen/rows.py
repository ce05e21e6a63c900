"""The rows that a statement gave, for people as a table and for programs as JSON."""

import datetime
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.visible import compact, number
from rolltrace.query.result import unique_names
from rolltrace.trace.numbers import wire_number

Row = Sequence[Any]

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


def show_rows(console: Console, columns: Sequence[str], types: Sequence[str], rows: Sequence[Row]) -> None:
    """Print the rows as a table; numbers are as people like to read them."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, kind in zip(columns, types, strict=True):
        is_number = kind in _NUMBERS or kind.startswith("DECIMAL")
        table.add_column(Text(compact(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    console.print(table)


def json_row(columns: Sequence[str], types: Sequence[str], row: Row) -> bytes:
    """A row as a line of strict JSON: numbers that are not finite are spelt as in records, times are in UTC."""
    values = {
        name: msgspec.Raw(value.encode()) if kind == "JSON" and value is not None else _plain(value)
        for name, kind, value in zip(unique_names(columns), types, row, strict=True)
    }
    return _encoder.encode(values) + b"\n"


_NUMBERS = {
    "BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT", "UHUGEINT",
    "DOUBLE", "FLOAT",
}  # fmt: skip


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return number(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return compact(_plain(value))


def _plain(value: Any) -> Any:
    """A value of the engine as JSON has it."""
    if isinstance(value, float):
        return wire_number(value)
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.isoformat() + "Z"
    if isinstance(value, datetime.timedelta):
        return str(value)
    return value
