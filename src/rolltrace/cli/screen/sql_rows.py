"""Formats rows of an SQL result: a table for people, JSON for programs."""

import datetime
import decimal
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
from rolltrace.trace.strict_json import encode_json, to_json_types

SqlRow = Sequence[Any]
_CELL = 2_000
"""How many characters of a value the table shows; JSON is not truncated."""


def show_rows(console: Console, columns: Sequence[str], types: Sequence[str], rows: Sequence[SqlRow]) -> None:
    """Print the rows as a table, with numbers rounded."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, kind in zip(columns, types, strict=True):
        is_number = kind in _NUMBERS or kind.startswith("DECIMAL")
        table.add_column(Text(to_one_line(name)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(table_cell(_format_cell(value), most=_CELL) for value in row))
    console.print(table)


def encode_row(columns: Sequence[str], types: Sequence[str], row: SqlRow) -> bytes:
    """Encode a row as a line of strict JSON; columns of the type JSON are embedded."""
    values = {
        name: msgspec.Raw(value.encode()) if kind == "JSON" and value is not None else value
        for name, kind, value in zip(unique_names(columns), types, row, strict=True)
    }
    return encode_json(values) + b"\n"


_NUMBERS = {
    "BIGINT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT", "UBIGINT", "UINTEGER", "USMALLINT", "UTINYINT", "UHUGEINT",
    "DOUBLE", "FLOAT",
}  # fmt: skip


def _format_cell(value: Any) -> str:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return short_number(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dict | list | tuple):
        return escape_json(encode_json(value).decode())
    return to_one_line(to_json_types(value))
