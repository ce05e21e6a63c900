"""The rows of the small tables: runs, and the ledgers of their sessions."""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rolltrace.query.parquet_parts import ParquetPart, PartMetadata
from rolltrace.query.parquet_writer import copy_to_parquet
from rolltrace.query.run_state import needs_count, planned_episodes, run_state, settle_continued
from rolltrace.query.table_rows import RowStats
from rolltrace.query.table_schema import SMALL_TABLES, sql_identifier, sql_literal
from rolltrace.store.layout import RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.store.reader import RunReader
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.trace.json_numbers import INT64_LIMIT

if TYPE_CHECKING:
    import duckdb


def small_rows(reader: RunReader, table: str, count_finished: Callable[[], int]) -> bytes:
    """All rows of a small table of one run, as lines of JSON.

    `count_finished` returns how many episodes are finished; it is called only if the run's state depends on it.
    """
    ledgers = list(reader.ledgers().values())
    if table == "runs":
        planned = planned_episodes(reader.info)
        finished = count_finished() if needs_count(ledgers, planned) else None
        state = run_state(ledgers, planned, finished)
        rows = [{**_run_row(reader.path, reader.info), "planned": _in_64_bits(planned), "state": state.value}]
    else:
        rows = list(map(_ledger_row, ledgers, settle_continued(ledgers)))
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def small_part(rows: bytes, table: str, path: Path, connection: "duckdb.DuckDBPyConnection") -> ParquetPart:
    """Write the rows of a small table to a Parquet file."""
    text = path.with_suffix(".ndjson")
    text.write_bytes(rows)
    columns = ", ".join(f"{sql_identifier(name)}: {sql_literal(kind)}" for name, kind in SMALL_TABLES[table].items())
    source = (
        f"read_json({sql_literal(text)}, format = 'newline_delimited', maximum_object_size = "
        f"{max(16 << 20, 2 * text.stat().st_size)}, columns = {{{columns}}})"
    )
    label = PartMetadata(table=table, ranges={}, facts=RowStats(rows=rows.count(b"\n")))
    copy_to_parquet(connection, f"select * from {source}", path, label)
    text.unlink()
    return ParquetPart(path, label)


def _run_row(path: Path, info: RunInfo) -> dict[str, Any]:
    return {
        "path": str(path).encode(errors="replace").decode(),
        "id": info.id,
        "created_at": info.created_at.astimezone(UTC).replace(tzinfo=None).isoformat(),
        "config": to_json_mapping(info.config, "config", []),
        "package_version": info.package_version,
        "code_revision": info.code_revision,
    }


def _ledger_row(ledger: Ledger, settled: Ledger) -> dict[str, Any]:
    """Every column is a field or property of the ledger; `lost` and `maybe_lost` are those of the settled ledger."""
    row = {name: _in_64_bits(getattr(ledger, name)) for name in SMALL_TABLES["ledger"] if name != "written_at"}
    row |= {name: _in_64_bits(getattr(settled, name)) for name in ("lost", "maybe_lost")}
    return row | {"written_at": ledger.written_at.astimezone(UTC).replace(tzinfo=None).isoformat()}


def _in_64_bits(value: Any) -> Any:
    """The value, or None for an integer that does not fit in 64 bits."""
    if isinstance(value, dict):
        return {name: _in_64_bits(count) for name, count in value.items()}
    return None if type(value) is int and not -INT64_LIMIT <= value < INT64_LIMIT else value
