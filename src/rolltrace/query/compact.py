"""Compaction: compresses segments that no longer grow, and merges the parts of each kind into one."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import InputError, StorageError
from rolltrace.query.database import Database
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.late_rewards import add_groups
from rolltrace.query.part_writer import ranges_between
from rolltrace.query.run_tables import RunTables
from rolltrace.query.sql_check import sql_error
from rolltrace.query.table_schema import STORED_COLUMNS, TABLES_OF_KIND
from rolltrace.store.compression import compress_segment
from rolltrace.store.layout import CACHE, ROLLOUTS, SCORES
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.parts import Part, part_folders, remove_parts
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.safe_files import refuse_link
from rolltrace.store.segment_reader import existing_segments

if TYPE_CHECKING:
    import duckdb


_MAX_TRIES = 5


class CompactionResult(msgspec.Struct, frozen=True):
    """The result of a compaction."""

    compressed: int
    """How many segments were compressed."""
    rows: dict[str, int]
    """The number of rows of each table."""
    bytes: int
    """The size of the Parquet files."""


def compact(path: str | Path) -> CompactionResult:
    """Compress segments that no longer grow, and write each table to one Parquet file, so that queries are fast."""
    if is_address(path):
        raise InputError(f"Expected a run in a directory, got {as_path(path)}: copy it to this machine to compact it.")
    reader = RunReader(path)
    for folder in (ROLLOUTS, SCORES, CACHE):
        refuse_link(reader.path / folder)
    compressed = sum(map(_compress, closed_segments(reader)))
    existing = part_folders(reader.path / CACHE)
    database = Database([reader])
    try:
        parts = _merge_all(database.runs[0], database.connection)
    finally:
        database.close()
    if any(part.path.parent != reader.path / CACHE for part in parts):
        raise StorageError(f"Cannot write to {reader.path / CACHE}: is it read-only, or the disk full?")
    current = {part.path for part in parts}
    remove_parts(path for path in existing if path not in current)
    rows = {table: count for part in parts for table, count in part.info.stats.rows.items()}
    messages = rows.pop("other_messages", 0) + sum(part.info.stats.responses for part in parts)
    rows |= {"messages": messages} if messages else {}
    return CompactionResult(compressed, rows, sum(map(_size, parts)))


def closed_segments(reader: RunReader) -> list[Path]:
    """Plain segments that no longer grow: of sessions that were closed, or that have started a later segment.

    Files of a session without a ledger are left alone: they may not belong to the run.
    """
    ledgers = reader.ledgers()
    closed = []
    for folder in (ROLLOUTS, SCORES):
        entries = [entry for entry in existing_segments(reader.files, folder) if entry.name is not None]
        last = {entry.name.session: entry.name.sequence for entry in entries if entry.name}  # they are in order
        closed += [
            reader.path / folder / entry.name.plain
            for entry in entries
            if entry.name and entry.is_regular and not entry.is_compressed and entry.name.session in ledgers
            if ledgers[entry.name.session].closed or entry.name.sequence < last[entry.name.session]
        ]
    return closed


def _size(part: Part) -> int:
    return sum(file.size for file in LocalFiles(part.path).existing(""))


def _compress(path: Path) -> bool:
    try:
        compress_segment(path)
    except (OSError, InputError):  # it stays uncompressed
        return False
    return True


def _merge_all(run: RunTables, connection: "duckdb.DuckDBPyConnection") -> list[Part]:
    """Merge the parts of each kind; retries if another compaction has removed files that this one was reading."""
    import duckdb

    # Rows have no order of their own, and keeping one while copying needs memory for every row.
    connection.execute("set preserve_insertion_order = false")
    for _ in range(_MAX_TRIES):
        try:
            run.refresh(STORED_COLUMNS, QueryDeadline())
            if run.drop_damaged():
                run.refresh(STORED_COLUMNS, QueryDeadline())
            run.store_rewards(QueryDeadline(), also_few=True)
            return [_merge_kind(run, connection, kind) for kind in TABLES_OF_KIND if run.covered[kind]]
        except duckdb.Error as error:
            if not run.drop_damaged():
                raise sql_error(error) from error
    raise StorageError(f"Cannot compact {run.run}: files of its cache were deleted repeatedly. Retry.")


def _merge_kind(run: RunTables, connection: "duckdb.DuckDBPyConnection", kind: str) -> Part:
    """One part of this kind, in the run's cache."""
    parts, ranges = run.parts[kind], ranges_between({}, run.covered[kind])
    if len(parts) == 1 and parts[0].path.parent == run.run / CACHE:
        [part] = parts
        if part.info.ranges == ranges and ("groups" in part.info.stats.rows or kind != ROLLOUTS):
            return part
    merged = run.merge(kind, parts, ranges)
    if kind == ROLLOUTS:
        add_groups(connection, merged)
    return run.publish(merged)
