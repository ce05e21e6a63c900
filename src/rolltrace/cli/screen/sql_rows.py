"""The rows that a statement gave, for people as a table and for programs as JSON."""

import datetime
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.console import table_cell
from rolltrace.cli.screen.number_format import short_number, to_one_line
from rolltrace.query.result import unique_names
from rolltrace.terminal_text import escape_json
from rolltrace.trace.json_numbers import json_number

SqlRow = Sequence[Any]
_CELL = 2_000
"""How many characters of a value the table shows; JSON has all of it."""

_encoder = msgspec.json.Encoder(enc_hook=str, decimal_format="number")


def show_rows(console: Console, columns: Sequence[str], types: Sequence[str], rows: Sequence[SqlRow]) -> None:
    """Print the rows as a table; numbers are as people like to read them."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, kind in zip(columns, types, strict=True):
        is_number = kind in _NUMBERS or kind.startswith("DECIMAL")
        table.add_column(Text(to_one_line(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(table_cell(_shown(value), most=_CELL) for value in row))
    console.print(table)


def encode_row(columns: Sequence[str], types: Sequence[str], row: SqlRow) -> bytes:
    """A row as a line of strict JSON: numbers that are not finite are spelt as in records, times are in UTC.

    What JSON has no type for is the text that SQL writes for it.
    """
    values = {
        name: msgspec.Raw(value.encode()) if kind == "JSON" and value is not None else _plain(value)
        for name, kind, value in zip(unique_names(columns), types, row, strict=True)
    }
    return _encoder.encode(values) + b"\n"


_NUMBERS = {
    "BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT", "UHUGEINT",
    "DOUBLE", "FLOAT",
}  # fmt: skip


_PLAIN_BYTES = frozenset(range(0x20, 0x7F)) - frozenset(b"\\\"'")


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return short_number(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    plain = _plain(value)
    return escape_json(_encoder.encode(plain).decode()) if isinstance(plain, dict | list) else to_one_line(plain)


def _plain(value: Any) -> Any:
    """A value of the engine as JSON has it."""
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.isoformat() + "Z"
    if isinstance(value, datetime.timedelta):
        return _interval(value)
    if isinstance(value, datetime.date | datetime.time | uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return "".join(chr(byte) if byte in _PLAIN_BYTES else f"\\x{byte:02X}" for byte in value)
    return value


def _interval(value: datetime.timedelta) -> str:
    """A stretch of time as SQL writes it: `1 day 03:00:00`."""
    sign = "-" if value < datetime.timedelta() else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    clock = f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    if value.microseconds:
        clock += f".{value.microseconds:06}".rstrip("0")
    days = f"{sign}{value.days} day{'' if value.days == 1 else 's'}" if value.days else ""
    return days if days and not value.seconds and not value.microseconds else f"{days} {clock}".lstrip()
