"""The tables of one run: parts from its cache, and parts made from newer lines."""

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import StorageError
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.part_processes import BuiltPart, PartProcesses, estimated_length
from rolltrace.query.part_writer import (
    PartBuilder,
    add_line_stats,
    copy_to_parquet,
    parquet_source,
    ranges_between,
    rollouts_query,
)
from rolltrace.query.parts import (
    ParquetPart,
    Part,
    PartInfo,
    Ranges,
    covering_parts,
    find_parts,
    publish_part,
    remove_parts,
)
from rolltrace.query.table_columns import DecodeScore, RowStats
from rolltrace.query.table_schema import FOLDER_OF, STORED_COLUMNS, TABLES_OF, sql_identifier
from rolltrace.store.cache_key import cache_folders
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import ROLLOUTS
from rolltrace.store.read_errors import ReadError
from rolltrace.store.run_files import RunFiles
from rolltrace.store.segment_reader import existing_segments

if TYPE_CHECKING:
    import duckdb

MIN_CACHED_BYTES = 32 << 20
"""A part made from at least so many bytes of lines is stored in the run's cache."""

MERGE_BYTES = 256 << 20
"""Parts are merged only up to so many bytes of lines, so that no query waits long for it."""

_WAIT_SECONDS = 0.2
"""How often to look for parts that another process makes."""
_PROCESSES = "processes"
"""Below the private folder, where processes make parts."""

OnCoverage = Callable[[float], None]
"""It is called with the part of a run, from 0 to 1, that was read by now."""
OpenCursor = Callable[[str, dict[str, int], Callable[[str], bool]], Cursor]


class RunTables:
    """The parts of one run's tables; `refresh` reads new lines."""

    def __init__(
        self,
        files: RunFiles,
        run_id: str,
        private: Path,
        connection: "duckdb.DuckDBPyConnection",
        open_cursor: OpenCursor,
        report: Callable[[ReadError], None],
        decode_score: DecodeScore,
        is_partial: bool = False,
        on_progress: OnCoverage | None = None,
    ) -> None:
        self._files = files
        self.run = run = files.path
        self._run_id = run_id
        self._cache_folders = cache_folders(run, run_id)
        self.parts: dict[str, list[Part]] = {}
        """By folder, in the order in which they were made."""
        self.covered: dict[str, dict[str, int]] = {}
        """By folder, how far each file was read."""
        self._private = private
        self._connection = connection
        self._open_cursor = open_cursor
        self._cursors: dict[str, Cursor] = {}
        self._report = report
        self._decode_score = decode_score
        self._numbers = itertools.count()
        self._damaged: set[Path] = set()
        self._verified: set[Path] = set()
        self._writable_folders = list(self._cache_folders)
        self._is_partial = is_partial
        self._on_progress = on_progress
        self._processes = {
            folder: PartProcesses(files, folder, private / _PROCESSES, is_partial) for folder in TABLES_OF
        }
        (private / _PROCESSES).mkdir(parents=True, exist_ok=True)

    def refresh(self, tables: Iterable[str], deadline: QueryDeadline, *, reads: bool = True) -> None:
        """Read new lines of the folders of these tables. What was read before the deadline is not read again.

        Without `reads`, only folders are read that were not read before.
        """
        stored = [table for table in tables if table in FOLDER_OF]
        for folder in sorted({FOLDER_OF[table] for table in stored}):
            is_new = folder not in self.parts
            if is_new:
                found = find_parts(self.run, self._run_id, folder)
                self._start(folder, [part for part in found if part.path not in self._damaged])
            self._drop(self._damaged_parts(folder, [table for table in stored if FOLDER_OF[table] == folder]))
            if is_new or reads:
                self._read(folder, deadline)
                self._merge_small_parts(folder, deadline)

    @property
    def coverage(self) -> float:
        """About which part of the run the tables cover, from 0 to 1."""
        if self._is_partial and ROLLOUTS not in self.parts:
            return 0.0
        pending = sum(sum(one.pending.values()) for one in self._processes.values())
        if not pending:
            return 1.0
        total = sum(estimated_length(entry) for folder in TABLES_OF for entry in existing_segments(self._files, folder))
        return max(0.0, 1.0 - pending / max(total, 1))

    def close(self) -> None:
        """End the processes that make parts."""
        for processes in self._processes.values():
            processes.close()

    def table_parts(self, table: str) -> list[ParquetPart]:
        """The parts of one table that have rows."""
        return [part.table(table) for part in self.parts[FOLDER_OF[table]] if part.info.stats.rows.get(table)]

    def group_parts(self) -> list[ParquetPart]:
        """Groups that compaction has stored; views check whether they are up to date."""
        return [part.table("groups") for part in self.parts[ROLLOUTS] if "groups" in part.info.stats.rows]

    def drop_damaged(self) -> bool:
        """Drop parts of which a file was deleted or damaged; returns whether there were any."""
        bad = [part for parts in self.parts.values() for part in parts if not part.is_intact(part.tables)]
        self._drop(bad)
        return bool(bad)

    def publish(self, part: Part) -> Part:
        """Copy a part to the run's cache, or to the user's; if neither is writable, the part stays private."""
        while self._is_private(part) and self._writable_folders:
            try:
                published = publish_part(part, self._writable_folders[0], self._run_id)
            except (OSError, StorageError):
                del self._writable_folders[0]
            else:
                self._verified |= {published.table(table).path for table in published.tables}
                remove_parts([part.path])
                return published
        return part

    def merge(
        self,
        folder: str,
        parts: Sequence[Part],
        ranges: Ranges | None = None,
        scores: dict[str, int] | None = None,
        rewards: str | None = None,
    ) -> Part:
        """Merge parts into one, in the private folder.

        `ranges` are the ranges of lines that it covers, if that includes lines without rows. `rewards` is a table of
        the rewards from scores, and `scores` says how far scores were read for it.
        """
        stats = RowStats(rows={})
        for part in parts:
            stats.merge(part.info.stats)
        stats.rows = {table: rows for table, rows in stats.rows.items() if table in TABLES_OF[folder]}
        path = self.private_path(folder)
        path.mkdir()
        for table in stats.rows:
            columns = ", ".join(map(sql_identifier, STORED_COLUMNS[table]))
            sources = [part.table(table).path for part in parts if part.info.stats.rows.get(table)]
            query = f"select {columns} from {parquet_source(sources)}"
            if table == "rollouts":
                query = rollouts_query(self._connection, f"({query})", stats, rewards)
            copy_to_parquet(self._connection, query, path / f"{table}.parquet")
        if stats.rows:
            add_line_stats(self._connection, path / f"{folder}.parquet", stats)
        ranges = _joined_ranges(parts) if ranges is None else ranges
        return Part(path, PartInfo(folder=folder, ranges=ranges, stats=stats, scores_covered=scores or {}))

    def private_path(self, name: str) -> Path:
        """A new path outside the run."""
        return self._private / f"{name}-{next(self._numbers)}"

    def remove_unused(self, used: set[Path]) -> None:
        """Delete private parts that are neither current nor used elsewhere; `used` are paths of files."""
        folders = {path.parent for path in used} | used | {part.path for parts in self.parts.values() for part in parts}
        for path in self._private.iterdir():
            if path not in folders and path.name != _PROCESSES:
                path.unlink() if path.is_file() else shutil.rmtree(path)

    def _start(self, folder: str, parts: Sequence[Part]) -> None:
        """Continue from these parts, as far as they fit together."""
        self.parts[folder], self.covered[folder] = covering_parts(parts, segment_sizes(self._files, folder))
        self._cursors.pop(folder, None)

    def _damaged_parts(self, folder: str, tables: Sequence[str]) -> list[Part]:
        """The parts of which a file of these tables is damaged. Each file is verified once."""
        damaged = []
        for part in self.parts[folder]:
            paths = {table: part.table(table).path for table in tables}
            new = [table for table, path in paths.items() if path not in self._verified]
            if part.is_intact(new):
                self._verified |= {paths[table] for table in new}
            else:
                damaged.append(part)
        return damaged

    def _drop(self, bad: Sequence[Part]) -> None:
        """Delete damaged parts; what they covered is read again."""
        self._damaged |= {part.path for part in bad}
        remove_parts(part.path for part in bad)
        for folder in {part.info.folder for part in bad}:
            self._processes[folder].forget()
            self._start(folder, [part for part in self.parts[folder] if part not in bad])

    def _read(self, folder: str, deadline: QueryDeadline) -> None:
        """Read new lines into parts: many segments in several processes, and then the rest here."""
        processes = self._processes[folder]
        while not processes.start(self.covered[folder]):  # another process makes its parts: use them
            self._add_published(folder)
            if self._is_partial and self.parts[folder]:
                break
            deadline.check()
            time.sleep(_WAIT_SECONDS)
        is_partial = self._is_partial and bool(self.parts[folder])
        for built in processes.finished(deadline, waits=not is_partial):
            self._add(folder, built)
            if self._on_progress is not None:
                self._on_progress(self.coverage)
            if self._is_partial and processes.pending:
                break
        cursor = self._cursors.get(folder)
        if cursor is None or cursor.covered != self.covered[folder]:  # or the last statement timed out
            cursor = self._open_cursor(folder, self.covered[folder], lambda file: file not in processes.pending)
            self._cursors[folder] = cursor
        lines = cursor.read()
        is_over = False
        while not is_over:
            builder = PartBuilder(folder, self._connection, self._report, self._decode_score)
            is_over = True
            for location, line in lines:
                deadline.check()
                builder.add(line, location)
                if builder.is_full:
                    is_over = False
                    break
            part = self._write(folder, builder, cursor.covered)
            self.parts[folder] += [] if part is None else [self._publish_if_large(part)]
            self.covered[folder] = dict(cursor.covered)

    def _add_published(self, folder: str) -> None:
        """Use parts that another process has made since the last look."""
        known = self._damaged | {part.path for part in self.parts[folder]}
        new = [part for part in find_parts(self.run, self._run_id, folder) if part.path not in known]
        if new:
            self._start(folder, [*self.parts[folder], *new])
            self._drop(self._damaged_parts(folder, TABLES_OF[folder]))
        if self._on_progress is not None:
            self._on_progress(self.coverage)

    def _add(self, folder: str, built: BuiltPart) -> None:
        for error in built.errors:
            self._report(error)
        self.parts[folder] += [] if built.part is None else [self._publish_if_large(built.part)]
        self.covered[folder] |= built.covered

    def _write(self, folder: str, builder: PartBuilder, covered: dict[str, int]) -> Part | None:
        """The part of some lines, if it has rows, or if so many lines gave no rows that it saves time to know that."""
        before = {file: last for file, (_, last) in _joined_ranges(self.parts[folder]).items()}
        ranges = ranges_between(before, covered)
        part = builder.write(self.private_path(folder), ranges)
        if part is None and sum(last - first for first, last in ranges.values()) >= MIN_CACHED_BYTES:
            part = self.merge(folder, (), ranges)
        return part

    def _merge_small_parts(self, folder: str, deadline: QueryDeadline) -> None:
        """Merge small neighbours, so that there are few parts and each row is rewritten only a few times."""
        for group in self._neighbours(folder):
            deadline.check()
            merged = self._publish_if_large(self.merge(folder, group))
            first = self.parts[folder].index(group[0])
            self.parts[folder][first : first + len(group)] = [merged]

    def _neighbours(self, folder: str) -> list[list[Part]]:
        """Runs of consecutive private parts, from the newest on, each not much larger than those after it together."""
        groups: list[list[Part]] = []
        size = 0
        for part in reversed(self.parts[folder]):
            if not self._is_private(part):
                groups.append([])
            elif groups and groups[-1] and part.size <= 2 * size and part.size + size <= MERGE_BYTES:
                groups[-1].insert(0, part)
                size += part.size
            else:
                groups.append([part])
                size = part.size
        return [group for group in groups if len(group) > 1]

    def _publish_if_large(self, part: Part) -> Part:
        return self.publish(part) if part.size >= MIN_CACHED_BYTES else part

    def _is_private(self, part: Part) -> bool:
        return part.path.parent not in self._cache_folders


def _joined_ranges(parts: Iterable[Part]) -> Ranges:
    ranges: Ranges = {}
    for part in parts:
        for file, (first, last) in part.info.ranges.items():
            before = ranges.get(file, (first, last))
            ranges[file] = (min(before[0], first), max(before[1], last))
    return ranges


def segment_sizes(files: RunFiles, folder: str) -> dict[str, int]:
    """By file of a folder, its size; a compressed one counts as unlimited, because it no longer changes."""
    entries = existing_segments(files, folder)
    return {f"{folder}/{entry.stem}": sys.maxsize if entry.is_compressed else entry.size for entry in entries}
