"""Compaction: compresses segments that no longer grow, and merges the parts of each kind into one."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from rolltrace.errors import InputError, StorageError
from rolltrace.query.database import Database
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.part_writer import in_batches, merge_parts, parquet_source
from rolltrace.query.run_tables import RunTables
from rolltrace.query.table_schema import STORED_COLUMNS, TABLES_OF_KIND
from rolltrace.store.compression import compress_segment
from rolltrace.store.layout import CACHE, ROLLOUTS, SCORES
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.parts import MAX_INFO_BYTES, Part, part_folders, remove_parts
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.safe_files import refuse_link
from rolltrace.store.segment_reader import existing_segments

MAX_DESCRIPTION_BYTES = MAX_INFO_BYTES // 2
"""How large the descriptions of parts are at most that are merged into one."""
_ID_BYTES_PER_ROW = 0.34
"""How much the index by id adds to it."""


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
    compressed = 0
    for segment in closed_segments(reader):
        with suppress(OSError, InputError):  # it stays uncompressed
            compress_segment(segment)
            compressed += 1
    existing = set(part_folders(reader.path / CACHE))
    with closing(Database([reader])) as database:
        parts = _merge_all(database)
        rows = _count_rows(parts, database)
    if any(part.path.parent != reader.path / CACHE for part in parts):
        raise StorageError(f"Cannot write to {reader.path / CACHE}: is it read-only, or the disk full?")
    remove_parts(existing - {part.path for part in parts})
    size = sum(file.size for part in parts for file in LocalFiles(part.path).existing(""))
    return CompactionResult(compressed, rows, size)


def closed_segments(reader: RunReader) -> list[Path]:
    """Plain segments that no longer grow: of sessions that were closed, or that have started a later segment.

    Files of a session without a ledger are left alone: they may not belong to the run.
    """
    ledgers = reader.ledgers()
    closed = []
    for folder in (ROLLOUTS, SCORES):
        entries = existing_segments(reader.files, folder)
        last = {entry.name.session: entry.name.sequence for entry in entries if entry.name}  # they are in order
        closed += [
            reader.path / folder / entry.name.plain
            for entry in entries
            if entry.name and entry.is_regular and not entry.is_compressed and entry.name.session in ledgers
            if ledgers[entry.name.session].closed or entry.name.sequence < last[entry.name.session]
        ]
    return closed


def _count_rows(parts: Sequence[Part], database: Database) -> dict[str, int]:
    """The number of rows of each table; messages that are responses are stored with their steps."""
    rows = sum((Counter(part.info.stats.rows) for part in parts), Counter[str]())
    messages = rows.pop("other_messages", 0)
    if steps := [part.table("steps").path for part in parts if "steps" in part.tables]:
        counted = database.connection.execute(f"select count(_position) from {parquet_source(steps)}")
        messages += counted.fetchall()[0][0]
    return {**rows, "messages": messages} if messages else dict(rows)


def _merge_all(database: Database) -> list[Part]:
    """Merge the parts of each kind; again if another compaction has removed files that this one was reading."""
    # Rows have no order of their own, and keeping one while copying needs memory for every row.
    database.connection.execute("set preserve_insertion_order = false")
    [run] = database.runs
    run.late_rewards.min_share = 0.0  # other programs that read the tables join none
    deadline = QueryDeadline()

    def merge() -> list[Part]:
        run.refresh(STORED_COLUMNS, deadline)
        return [
            _merge_parts(database, run, parts)
            for kind in TABLES_OF_KIND
            for parts in in_batches(run.parts[kind], _description_bytes, MAX_DESCRIPTION_BYTES)
        ]

    return database.retry_damaged(merge, deadline)


def _description_bytes(part: Part) -> float:
    """About how large the description of a part will be, with its index."""
    return len(msgspec.json.encode(part.info)) + part.info.stats.rows.get(part.info.kind, 0) * _ID_BYTES_PER_ROW


def _merge_parts(database: Database, run: RunTables, parts: Sequence[Part]) -> Part:
    """One part with the rows of some of one kind, in the run's cache."""
    if len(parts) == 1 and parts[0].path.parent == run.run / CACHE:
        return parts[0]
    return run.publish(merge_parts(database.connection, run.private_path(parts[0].info.kind), parts))
