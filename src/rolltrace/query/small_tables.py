"""The rows of the small tables: runs, and the ledgers of their sessions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltrace.query.arrow_columns import ArrowTable
from rolltrace.query.part_writer import write_arrow_table
from rolltrace.query.run_state import needs_count, planned_episodes, run_state, settle_continued
from rolltrace.query.table_schema import SMALL_TABLES
from rolltrace.store.layout import RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.store.parts import ParquetPart, PartInfo, RowStats
from rolltrace.store.reader import RunReader
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.strict_json import json_encoder

if TYPE_CHECKING:
    import duckdb


def small_rows(reader: RunReader, table: str, count_finished: Callable[[], int]) -> list[dict[str, Any]]:
    """All rows of a small table of one run.

    `count_finished` returns how many episodes are finished; it is called only if the run's state depends on it.
    """
    ledgers = list(reader.ledgers().values())
    if table == "runs":
        planned = planned_episodes(reader.info)
        finished = count_finished() if needs_count(ledgers, planned) else None
        state = run_state(ledgers, planned, finished)
        return [{**_run_row(reader.path, reader.info), "planned": _in_64_bits(planned), "state": state.value}]
    return list(map(_ledger_row, ledgers, settle_continued(ledgers)))


def small_part(
    rows: Sequence[dict[str, Any]], table: str, path: Path, connection: "duckdb.DuckDBPyConnection"
) -> ParquetPart:
    """Write the rows of a small table to a Parquet file."""
    columns = ArrowTable(SMALL_TABLES[table])
    columns.append({name: [row[name] for row in rows] for name in SMALL_TABLES[table]})
    write_arrow_table(connection, columns, path)
    return ParquetPart(path, PartInfo(ranges={}, stats=RowStats(rows={table: len(rows)})))


def _run_row(path: Path, info: RunInfo) -> dict[str, Any]:
    return {
        "path": str(path).encode(errors="replace").decode(),
        "id": info.id,
        "created_at": info.created_at,
        "config": json_encoder.encode(to_json_mapping(info.config, "config", [])),
        "package_version": info.package_version,
        "code_revision": info.code_revision,
    }


def _ledger_row(ledger: Ledger, settled: Ledger) -> dict[str, Any]:
    """Every column is a field or property of the ledger; `lost` and `maybe_lost` are those of the settled ledger."""
    row = {name: _in_64_bits(getattr(ledger, name)) for name in SMALL_TABLES["ledger"]}
    return row | {name: _in_64_bits(getattr(settled, name)) for name in ("lost", "maybe_lost")}


def _in_64_bits(value: Any) -> Any:
    """The value, or None for an integer that does not fit in 64 bits."""
    if isinstance(value, dict):
        return {name: _in_64_bits(count) for name, count in value.items()}
    return None if type(value) is int and not -INT64_LIMIT <= value < INT64_LIMIT else value
