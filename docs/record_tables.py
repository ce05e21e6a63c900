"""Writes the tables of `format.md` and `tables.md` from the records, so that a field is described once.

`make docs` runs it. What is between a heading and its table is written by hand.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import inspect

from rolltrace.query.table_schema import COLUMN_DOCS, TABLE_FIELDS, RecordColumns, sql_type, table_columns
from rolltrace.store.layout import RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call, Quote
from rolltrace.trace.failure import Failure
from rolltrace.trace.field_docs import field_docs
from rolltrace.trace.field_types import Field, FieldKind, field_by_name, record_fields
from rolltrace.trace.freeform import Note
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout import EndedBeforeFirstTurn, Rollout, Step
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens, Usage

DOCS = Path(__file__).parent
RECORDS: dict[str, type[msgspec.Struct]] = {
    "`run.json`": RunInfo, "A rollout": Rollout, "A step": Step, "A message": Message, "A part": Part,
    "A tool call": ToolCall, "A tool": ToolSpec, "Sampling": Sampling, "A grade": Grade, "A call": Call,
    "A quote": Quote, "Tokens": Tokens, "Ended before the first turn": EndedBeforeFirstTurn, "Usage": Usage,
    "A failure": Failure, "A note": Note, "A score": Score, "A group key": GroupKey, "A ledger line": Ledger,
}  # fmt: skip
"""By heading of `format.md`, the record that its table describes."""
CHOICES = {
    "status": Status, "stopped by": StoppedBy, "stop reason": StopReason, "termination": Termination, "layer": Layer,
    "env failure": EnvFailure,
}  # fmt: skip
"""By its name in `format.md`, each set of words."""
_NAMES: dict[type, str] = {
    **{record: re.sub("^An? ", "", title).lower() for title, record in RECORDS.items()},
    **{words: name for name, words in CHOICES.items()},
}
_SIMPLE = {
    inspect.StrType: "string", inspect.IntType: "integer", inspect.BoolType: "boolean", inspect.FloatType: "float",
    inspect.NoneType: "null", inspect.DateTimeType: "time",
}  # fmt: skip


def type_name(described: inspect.Type) -> str:
    """A type as `format.md` names it."""
    if isinstance(described, inspect.Metadata):
        return type_name(described.type)
    if type(described) in _SIMPLE:
        return _SIMPLE[type(described)]
    if isinstance(described, inspect.VarTupleType):
        return f"array of {type_name(described.item_type)}"
    if isinstance(described, inspect.TupleType):
        return "range"
    if isinstance(described, inspect.DictType):
        is_free = isinstance(described.value_type, inspect.AnyType)
        return "free-form" if is_free else f"map of {type_name(described.value_type)}"
    if isinstance(described, inspect.CustomType):
        return {FrozenMap: "free-form", Blob: "blob"}[described.cls]
    if isinstance(described, inspect.UnionType):
        return _union_name(described)
    assert isinstance(described, inspect.StructType | inspect.EnumType), described
    return _NAMES[described.cls]


def _union_name(described: inspect.UnionType) -> str:
    # The text of numbers that are not finite is part of the type `float`.
    parts = [part for part in described.types if not isinstance(part, inspect.LiteralType)]
    names = [type_name(part) for part in parts]
    if {"boolean", "integer", "float"} <= set(names):
        names = ["number", *(name for name in names if name not in ("boolean", "integer", "float"))]
    order = ["integer", "string", "number", "float"]
    names.sort(key=lambda name: (name == "null", order.index(name) if name in order else len(order)))
    return " or ".join(names)


def record_table(record: type[msgspec.Struct]) -> list[str]:
    """The table of a record's fields."""
    docs = field_docs(record)
    described = inspect.type_info(record)
    assert isinstance(described, inspect.StructType)
    rows = []
    for field, info in zip(record_fields(record), described.fields, strict=True):
        meaning = _for_json(docs.get(field.name, ""))
        if field.omits_default and not record.__struct_config__.omit_defaults:
            meaning = f"{meaning} Left out while it is {_default_name(field)}.".strip()
        rows.append((f"`{field.written_name}`", type_name(info.type), meaning))
    return _table(("field", "type", "meaning"), rows)


def _for_json(docstring: str) -> str:
    return re.sub(r"\bNone\b", "null", docstring)


def _default_name(field: Field) -> str:
    return "null" if field.default is None else "empty" if field.default in ((), {}) else repr(field.default)


_OUTSIDE_TYPES = {
    FieldKind.NAME: ("VARCHAR", "String", "string"),
    FieldKind.LABEL: ("VARCHAR", "String", "string"),
    FieldKind.TEXT: ("VARCHAR", "String", "string"),
    FieldKind.NAME_OR_INTEGER: ("VARCHAR", "String", "string"),
    FieldKind.CHOICE: ("VARCHAR", "String", "string"),
    FieldKind.INTEGER: ("BIGINT", "Int64", "Int64"),
    FieldKind.NUMBER: ("DOUBLE", "Float64", "float64"),
    FieldKind.DURATION: ("DOUBLE", "Float64", "float64"),
    FieldKind.BOOLEAN: ("BOOLEAN", "Boolean", "boolean"),
    FieldKind.TIMESTAMP: ("TIMESTAMP WITH TIME ZONE", 'Datetime("us", "UTC")', "datetime64[us, UTC]"),
}


def outside_columns() -> dict[str, tuple[str, str, str]]:
    """By field of a line, the types with which DuckDB, Polars and pandas read it."""
    columns = {}
    for field in record_fields(Rollout):
        types = _OUTSIDE_TYPES.get(field.kind, (sql_type(field), "String, of JSON", "object"))
        columns[field.written_name] = (sql_type(field), "String, of JSON", "object") if field.depth else types
    return {**columns, "crc": _OUTSIDE_TYPES[FieldKind.NAME]}


def outside_table() -> list[str]:
    """The table of these types."""
    rows = [(f"`{name}`", *types) for name, types in outside_columns().items()]
    return _table(("column", "DuckDB", "Polars", "pandas"), rows)


def columns_code() -> str:
    """The Python dict of the types for DuckDB."""
    lines, line = [], "   "
    for entry in (f'"{name}": "{types[0]}",' for name, types in outside_columns().items()):
        if len(line) + 1 + len(entry) > 120:
            lines.append(line)
            line = "   "
        line = f"{line} {entry}"
    return "\n".join(["COLUMNS = {", *lines, line, "}"])


def sql_table(table: str) -> list[str]:
    """The table of an SQL table's columns."""
    docs = {**_documented(TABLE_FIELDS[table]), **COLUMN_DOCS[table]} if table in TABLE_FIELDS else COLUMN_DOCS[table]
    rows = [(f"`{name}`", kind, _for_json(docs.get(name, ""))) for name, kind in table_columns(table).items()]
    return _table(("column", "type", "meaning"), rows)


def _documented(columns: RecordColumns) -> dict[str, str]:
    """By column, the docstring of the field that it shows."""
    docs = {field.name: _meaning(columns.record, field) for field in columns.fields}
    for name in columns.flattened:
        field = field_by_name(columns.record)[name]
        assert field.record is not None
        docs |= {column: _meaning(field.record, part) for column, part in columns.parts(field).items()}
    return docs


def _meaning(record: type[msgspec.Struct], field: Field) -> str:
    docstring = field_docs(record).get(field.name, "")
    words = f"One of {', '.join(f'`{word}`' for word in field.enum)}." if field.enum else ""
    return f"{docstring} {words}".strip()


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [tuple(heading), *map(tuple, rows)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row).rstrip() + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def with_tables(page: str, tables: Mapping[str, Callable[[], list[str]]]) -> str:
    """The page with the first table below each of these headings replaced."""
    lines: list[str] = []
    title, is_replaced, is_in_table = "", True, False
    for line in page.split("\n"):
        if line.startswith("#"):
            title = line.lstrip("# ")
            is_replaced = title not in tables
        if line.startswith("|") and not is_replaced and not is_in_table:
            lines += tables[title]()
            is_in_table = is_replaced = True
        is_in_table = is_in_table and line.startswith("|")
        if not is_in_table:
            lines.append(line)
    return "\n".join(lines)


def format_page() -> str:
    """`format.md` with its tables as the records are now."""
    tables: dict[str, Callable[[], list[str]]] = {
        title: (lambda record=record: record_table(record)) for title, record in RECORDS.items()
    }
    page = with_tables((DOCS / "format.md").read_text(), {**tables, "Columns": outside_table})
    return re.sub(r"COLUMNS = \{\n.*?\n\}", lambda _: columns_code(), page, count=1, flags=re.DOTALL)


def tables_page() -> str:
    """`tables.md` with its tables as they are now."""
    tables = {table: (lambda table=table: sql_table(table)) for table in COLUMN_DOCS}
    return with_tables((DOCS / "tables.md").read_text(), tables)


def main() -> None:
    """Write both pages."""
    for name, page in (("format.md", format_page()), ("tables.md", tables_page())):
        (DOCS / name).write_text(page)


if __name__ == "__main__":
    main()
