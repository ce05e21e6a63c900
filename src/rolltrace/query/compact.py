"""Compaction: compresses segments that no longer grow, and writes each table to one Parquet file."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import InputError, StorageError
from rolltrace.query.database import Database
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.parquet_parts import ParquetPart, PartMetadata, Ranges, parquet_files, remove_stale_parts
from rolltrace.query.parquet_writer import copy_to_parquet, parquet_source, ranges_between
from rolltrace.query.score_order import select_latest_rewards
from rolltrace.query.sql_check import sql_error
from rolltrace.query.table_cache import RunTables
from rolltrace.query.table_rows import RowStats
from rolltrace.query.table_schema import STORED_COLUMNS
from rolltrace.query.views import groups_query, unshared_rollouts_query
from rolltrace.store.compression import compress_segment
from rolltrace.store.layout import CACHE, ROLLOUTS, SCORES
from rolltrace.store.reader import RunReader
from rolltrace.store.safe_files import refuse_link
from rolltrace.store.segment_reader import SegmentEntry, scan_segments

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
    reader = RunReader(path)
    for folder in (ROLLOUTS, SCORES, CACHE):
        refuse_link(reader.path / folder)
    compressed = sum(map(_compress, closed_segments(reader)))
    existing = parquet_files(reader.path)
    database = Database([reader])
    try:
        parts = _Compactor(database.runs[0], database.connection).compact()
    finally:
        database.close()
    _check_published(parts, reader.path)
    remove_stale_parts([part.path for part in parts], existing)
    rows = {part.label.table: part.label.facts.rows for part in parts}
    return CompactionResult(compressed, rows, sum(map(_size, parts)))


def closed_segments(reader: RunReader) -> list[Path]:
    """Plain segments that no longer grow: of sessions that were closed, or that have started a later segment.

    Files of a session without a ledger are left alone: they may not belong to the run.
    """
    ledgers = reader.ledgers()
    closed = []
    for folder in (ROLLOUTS, SCORES):
        entries = [entry for entry in _segments(reader.path / folder) if entry.name is not None]
        last = {entry.name.session: entry.name.sequence for entry in entries if entry.name}  # they are in order
        closed += [
            entry.path
            for entry in entries
            if entry.name and entry.is_regular and not entry.is_compressed and entry.name.session in ledgers
            if ledgers[entry.name.session].closed or entry.name.sequence < last[entry.name.session]
        ]
    return closed


def _segments(folder: Path) -> list[SegmentEntry]:
    try:
        return scan_segments(folder)
    except OSError:
        return []


def _size(part: ParquetPart) -> int:
    try:
        return part.path.stat().st_size
    except FileNotFoundError:  # another compaction made a newer one
        return 0


def _compress(path: Path) -> bool:
    try:
        compress_segment(path)
    except (OSError, InputError):  # it stays uncompressed
        return False
    return True


def _check_published(parts: list[ParquetPart], run: Path) -> None:
    if any(part.path.parent != run / CACHE for part in parts):
        raise StorageError(f"Cannot write to {run / CACHE}: is it read-only, or the disk full?")


class _Compactor:
    def __init__(self, run: RunTables, connection: "duckdb.DuckDBPyConnection") -> None:
        self._run = run
        self._connection = connection

    def compact(self) -> list[ParquetPart]:
        """Write one part of each table; retries if another compaction has removed files that this one was reading."""
        import duckdb

        # Rows have no order of their own, and keeping one while copying needs memory for every row.
        self._connection.execute("set preserve_insertion_order = false")
        for _ in range(_MAX_TRIES):
            try:
                return self._compact_once()
            except duckdb.Error as error:
                if not self._run.drop_damaged():
                    raise sql_error(error) from error
        raise StorageError(f"Cannot compact {self._run.run}: files of its cache were deleted repeatedly. Retry.")

    def _compact_once(self) -> list[ParquetPart]:
        """One part of each table, in the run's cache; a table without rows has an empty part."""
        self._run.refresh(STORED_COLUMNS, QueryDeadline())
        if self._run.drop_damaged():
            self._run.refresh(STORED_COLUMNS, QueryDeadline())
        tables = [table for table in STORED_COLUMNS if self._run.covered[table]]
        parts = [self._compacted(table) for table in tables]
        return [*parts, *(self._grouped(part) for part in parts if part.label.table == "rollouts")]

    def _grouped(self, rollouts: ParquetPart) -> ParquetPart:
        """The groups of the compacted rollouts."""
        for part in self._run.group_parts():
            if (
                part.label.ranges == rollouts.label.ranges
                and part.label.scores_covered == rollouts.label.scores_covered
            ):
                return part
        query = groups_query(unshared_rollouts_query(rollouts))
        row = self._connection.execute(f"select count(*) from ({query})").fetchone()
        label = PartMetadata(
            table="groups",
            ranges=rollouts.label.ranges,
            facts=RowStats(rows=row[0] if row else 0),
            scores_covered=rollouts.label.scores_covered,
        )
        path = self._run.private_path("groups")
        copy_to_parquet(self._connection, query, path, label)
        return self._run.publish(ParquetPart(path, label))

    def _compacted(self, table: str) -> ParquetPart:
        parts = self._run.parts[table]
        if len(parts) == 1 and parts[0].path.parent == self._run.run / CACHE and self._is_current(parts[0]):
            return parts[0]
        if table == "rollouts":
            return self._run.publish(self._merged_rollouts(parts))
        return self._run.publish(self._run.merge(table, parts, self._ranges(table)))

    def _ranges(self, table: str) -> Ranges:
        return ranges_between({}, self._run.covered[table])

    def _is_current(self, part: ParquetPart) -> bool:
        """Whether it covers everything that was written."""
        covers_all = part.label.ranges == self._ranges(part.label.table)
        scores = self._run.covered["scores"]
        return covers_all and (part.label.table != "rollouts" or part.label.scores_covered == scores)

    def _merged_rollouts(self, parts: list[ParquetPart]) -> ParquetPart:
        """Merge the rollouts, with the rewards from their scores."""
        scores = [part for part in self._run.parts["scores"] if part.label.facts.rewards]
        covered = self._run.covered
        if not scores:
            return self._run.merge("rollouts", parts, self._ranges("rollouts"), covered["scores"])
        latest = select_latest_rewards(parquet_source(part.path for part in scores))
        self._connection.execute(f"create or replace temp table latest as {latest}")
        return self._run.merge("rollouts", parts, self._ranges("rollouts"), covered["scores"], "latest")
