"""The tables of one run: Parquet parts from its cache, and parts made from newer lines."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.parquet_parts import (
    ParquetPart,
    PartMetadata,
    Ranges,
    covering_parts,
    find_parts,
    is_intact,
    publish_part,
)
from rolltrace.query.parquet_writer import (
    ParquetBatch,
    copy_to_parquet,
    empty_query,
    parquet_source,
    ranges_between,
    rollouts_query,
)
from rolltrace.query.table_rows import DecodeScore, RowStats
from rolltrace.query.table_schema import FOLDER_OF, STORED_COLUMNS, sql_identifier
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import CACHE
from rolltrace.store.read_errors import ReadError
from rolltrace.store.segment_reader import scan_segments

if TYPE_CHECKING:
    import duckdb

MIN_CACHED_BYTES = 32 << 20
"""A part made from at least so many bytes of lines is stored in the run's cache."""

MERGE_BYTES = 256 << 20
"""Parts are merged only up to so many bytes of lines, so that no query waits long for it."""

OpenCursor = Callable[[str, dict[str, int]], Cursor]


class RunTables:
    """The parts of one run's tables; `refresh` reads new lines."""

    def __init__(
        self,
        run: Path,
        private: Path,
        connection: "duckdb.DuckDBPyConnection",
        open_cursor: OpenCursor,
        report: Callable[[ReadError], None],
        decode_score: DecodeScore,
    ) -> None:
        self.run = run
        self.parts: dict[str, list[ParquetPart]] = {}
        """By table, in the order in which they were made."""
        self.covered: dict[str, dict[str, int]] = {}
        """By table, how far each file was read."""
        self._private = private
        self._connection = connection
        self._open_cursor = open_cursor
        self._cursors: dict[str, Cursor] = {}
        self._report = report
        self._decode_score = decode_score
        self._numbers = itertools.count()
        self._damaged: set[Path] = set()
        self._is_cache_writable = True
        private.mkdir(parents=True, exist_ok=True)

    def refresh(self, tables: Iterable[str], deadline: QueryDeadline) -> None:
        """Read new lines into these tables. What was read before the deadline is not read again."""
        stored = [table for table in tables if table in STORED_COLUMNS]
        self._begin([table for table in stored if table not in self.parts])
        for folder in sorted({FOLDER_OF[table] for table in stored}):
            for group in self._with_same_coverage([table for table in stored if FOLDER_OF[table] == folder]):
                self._read(folder, group, deadline)
        for table in stored:
            self._merge_small_parts(table, deadline)
            self.parts[table] = [self._publish_if_large(part) for part in self.parts[table]]

    def group_parts(self) -> list[ParquetPart]:
        """Groups that were made before; the caller checks whether they are up to date."""
        if "groups" not in self.parts:
            self.parts |= self._find(["groups"])
        return list(self.parts["groups"])

    def drop_damaged(self) -> bool:
        """Drop parts that were deleted or damaged; returns whether there were any."""
        bad = {part.path for parts in self.parts.values() for part in parts if not is_intact(part.path)}
        self._damaged |= bad
        for path in bad:
            with contextlib.suppress(OSError):
                path.unlink()
        for table, parts in self.parts.items():
            if bad & {part.path for part in parts}:
                self._start(table, [part for part in parts if part.path not in bad])
        return bool(bad)

    def publish(self, part: ParquetPart) -> ParquetPart:
        """Copy a part to the run's cache; if the cache is not writable, the part stays private."""
        if self._is_private(part) and self._is_cache_writable:
            try:
                return publish_part(part, self.run)
            except OSError:
                self._is_cache_writable = False
        return part

    def merge(
        self,
        table: str,
        parts: Sequence[ParquetPart],
        ranges: Ranges | None = None,
        scores: dict[str, int] | None = None,
        rewards: str | None = None,
    ) -> ParquetPart:
        """Merge parts into one, in the private folder.

        `ranges` are the ranges of lines that it covers, if that includes lines without rows. `rewards` is a table of
        the rewards from scores, and `scores` says how far scores were read for it.
        """
        facts = RowStats()
        for part in parts:
            facts.merge(part.label.facts)
        query = empty_query(STORED_COLUMNS[table])
        if parts:
            columns = ", ".join(map(sql_identifier, STORED_COLUMNS[table]))
            query = f"select {columns} from {parquet_source(part.path for part in parts)}"
        if table == "rollouts":
            query = rollouts_query(self._connection, f"({query})", facts, rewards)
        ranges = _joined_ranges(parts) if ranges is None else ranges
        label = PartMetadata(table=table, ranges=ranges, facts=facts, scores_covered=scores or {})
        path = self.private_path(table)
        copy_to_parquet(self._connection, query, path, label)
        return ParquetPart(path, label)

    def private_path(self, table: str) -> Path:
        """A new path outside the run."""
        return self._private / f"{table}-part-{next(self._numbers)}.parquet"

    def remove_unused(self, used: set[Path]) -> None:
        """Delete private files that are neither used elsewhere nor current parts."""
        used = used | {part.path for parts in self.parts.values() for part in parts}
        for path in self._private.glob("*.parquet"):
            if path not in used:
                path.unlink(missing_ok=True)

    def _begin(self, tables: Sequence[str]) -> None:
        parts = self._find(tables) if tables else {}
        for table in tables:
            self._start(table, parts[table])

    def _find(self, tables: Sequence[str]) -> dict[str, list[ParquetPart]]:
        cached = find_parts(self.run, tables, self._connection)
        return {table: [part for part in parts if part.path not in self._damaged] for table, parts in cached.items()}

    def _start(self, table: str, parts: Sequence[ParquetPart]) -> None:
        """Continue from these parts, as far as they fit together."""
        if table not in STORED_COLUMNS:
            self.parts[table] = list(parts)
        else:
            self.parts[table], self.covered[table] = covering_parts(parts, segment_sizes(self.run, FOLDER_OF[table]))

    def _with_same_coverage(self, tables: Sequence[str]) -> list[list[str]]:
        """The tables of one folder, grouped by how far they were read."""
        groups: list[list[str]] = []
        for table in tables:
            group = next((group for group in groups if self.covered[group[0]] == self.covered[table]), None)
            if group is None:
                groups.append([table])
            else:
                group.append(table)
        return groups

    def _batch(self, table: str) -> ParquetBatch:
        return ParquetBatch(table, self._private, self._connection, self._report, self._decode_score)

    def _read(self, folder: str, tables: Sequence[str], deadline: QueryDeadline) -> None:
        """Read new lines, once for all these tables, which were read equally far."""
        cursor = self._cursor(folder, tables)
        lines = cursor.read()
        is_over = False
        while not is_over:
            batches = {table: self._batch(table) for table in tables}
            try:
                is_over = True
                for location, line in lines:
                    deadline.check()
                    for batch in batches.values():
                        batch.add(line, location)
                    if any(batch.is_full for batch in batches.values()):
                        is_over = False
                        break
                parts = {table: self._finish(batch, table, cursor.covered) for table, batch in batches.items()}
            finally:
                for batch in batches.values():
                    batch.discard()
            for table in tables:
                self.parts[table] += parts[table]
                self.covered[table] = dict(cursor.covered)

    def _cursor(self, folder: str, tables: Sequence[str]) -> Cursor:
        """The cursor that read these tables last, which knows what is finished; a new one if it has read further."""
        covered = self.covered[tables[0]]
        cursors = [self._cursors[table] for table in tables if table in self._cursors]
        current = next((cursor for cursor in cursors if cursor.covered == covered), None)
        cursor = current or self._open_cursor(folder, dict(covered))
        self._cursors |= dict.fromkeys(tables, cursor)
        return cursor

    def _finish(self, batch: ParquetBatch, table: str, covered: dict[str, int]) -> list[ParquetPart]:
        """The part of a batch, if it has rows, or if so many lines gave no rows that it saves time to know that."""
        before = {file: last for file, (_, last) in _joined_ranges(self.parts[table]).items()}
        ranges = ranges_between(before, covered)
        part = batch.finish(self.private_path(table), ranges)
        if part is None and sum(last - first for first, last in ranges.values()) >= MIN_CACHED_BYTES:
            part = self.merge(table, (), ranges)
        return [] if part is None else [part]

    def _merge_small_parts(self, table: str, deadline: QueryDeadline) -> None:
        """Merge small neighbours, so that there are few parts and each row is rewritten only a few times."""
        for group in self._neighbours(table):
            deadline.check()
            merged = self.merge(table, group)
            first = self.parts[table].index(group[0])
            self.parts[table][first : first + len(group)] = [merged]

    def _neighbours(self, table: str) -> list[list[ParquetPart]]:
        """Runs of consecutive private parts, from the newest on, each not much larger than those after it together."""
        groups: list[list[ParquetPart]] = []
        size = 0
        for part in reversed(self.parts[table]):
            if not self._is_private(part):
                groups.append([])
            elif groups and groups[-1] and part.size <= 2 * size and part.size + size <= MERGE_BYTES:
                groups[-1].insert(0, part)
                size += part.size
            else:
                groups.append([part])
                size = part.size
        return [group for group in groups if len(group) > 1]

    def _publish_if_large(self, part: ParquetPart) -> ParquetPart:
        return self.publish(part) if part.size >= MIN_CACHED_BYTES else part

    def _is_private(self, part: ParquetPart) -> bool:
        return part.path.parent != self.run / CACHE


def _joined_ranges(parts: Iterable[ParquetPart]) -> Ranges:
    ranges: Ranges = {}
    for part in parts:
        for file, (first, last) in part.label.ranges.items():
            before = ranges.get(file, (first, last))
            ranges[file] = (min(before[0], first), max(before[1], last))
    return ranges


def segment_sizes(run: Path, folder: str) -> dict[str, int]:
    """By file of a folder, its size; a compressed one counts as unlimited, because it no longer changes."""
    try:
        entries = scan_segments(run / folder)
    except OSError:
        return {}
    return {f"{folder}/{entry.stem}": sys.maxsize if entry.is_compressed else entry.size for entry in entries}
