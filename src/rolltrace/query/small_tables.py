"""The rows of the small tables: runs, and the ledgers of their sessions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltrace.query.arrow_columns import ArrowTable
from rolltrace.query.part_writer import copy_to_parquet
from rolltrace.query.run_state import needs_count, planned_episodes, run_state, settle_continued
from rolltrace.query.table_schema import RUN_FIELDS, SMALL_TABLES
from rolltrace.store.parts import ParquetPart, PartInfo, RowStats
from rolltrace.store.reader import RunReader
from rolltrace.trace.freeform import to_json_mapping
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
        path = str(reader.path).encode(errors="replace").decode()
        row = {name: getattr(reader.info, name) for name in RUN_FIELDS.sql_types}
        config = json_encoder.encode(to_json_mapping(reader.info.config, "config", []))
        return [{**row, "config": config, "path": path, "planned": planned, "state": state.value}]
    rows = [{name: getattr(ledger, name) for name in SMALL_TABLES[table]} for ledger in ledgers]
    for row, settled in zip(rows, settle_continued(ledgers), strict=True):
        row |= {"lost": settled.lost, "maybe_lost": settled.maybe_lost}
    return rows


def small_part(
    rows: Sequence[dict[str, Any]], table: str, path: Path, connection: "duckdb.DuckDBPyConnection"
) -> ParquetPart:
    """Write the rows of a small table to a Parquet file."""
    columns = ArrowTable(SMALL_TABLES[table])
    if rows:
        columns.append({name: [row[name] for row in rows] for name in SMALL_TABLES[table]})
    with columns.registered(connection) as source:
        copy_to_parquet(connection, f"from {source}", path)
    return ParquetPart(path, PartInfo(ranges={}, stats=RowStats(rows={table: len(rows)})))
