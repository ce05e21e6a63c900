"""The tables of one run, as far as they were read: parts from its cache, and parts of its newer lines."""

import contextlib
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import RecordError
from rolltrace.query.build import Batches, copy, earliest, finish, finished_rollouts, ranges_between, read_files
from rolltrace.query.parts import CACHE, Label, Part, Ranges, chain, find_parts, place_part
from rolltrace.query.rows import Facts
from rolltrace.query.tables import FOLDER_OF, RAW, quoted
from rolltrace.store.cursor import Cursor
from rolltrace.store.problems import Problem
from rolltrace.trace.draft import new_id

if TYPE_CHECKING:
    import duckdb

KEEP_BYTES = 32 << 20
"""A part made from so many bytes of lines is worth keeping in the run's cache."""

MOST_SMALL_PARTS = 8
"""More small parts of a table than this are made into one."""

OpenCursor = Callable[[str, dict[str, int]], Cursor]


class RunTables:
    """What is known of one run's tables; `refresh` reads what is new."""

    def __init__(
        self,
        run: Path,
        private: Path,
        connection: "duckdb.DuckDBPyConnection",
        open_cursor: OpenCursor,
        report: Callable[[Problem], None],
    ) -> None:
        self.run = run
        self.parts: dict[str, list[Part]] = {}
        self.covered: dict[str, dict[str, int]] = {}
        self.uses_cache = True
        self._private = private
        self._connection = connection
        self._open_cursor = open_cursor
        self._report = report
        self._numbers = itertools.count()
        private.mkdir(exist_ok=True)

    def forget(self, uses_cache: bool) -> None:
        """Begin anew, because a file of the cache vanished or is damaged."""
        self.parts.clear()
        self.covered.clear()
        self.uses_cache = uses_cache

    def refresh(self, tables: Iterable[str]) -> None:
        """Read what is new of these tables."""
        wanted = [table for table in tables if table in RAW]
        unknown = [table for table in wanted if table not in self.parts]
        found = find_parts(self.run, unknown, self._connection) if self.uses_cache and unknown else {}
        for table in unknown:
            sizes = segment_sizes(self.run, FOLDER_OF[table])
            self.parts[table], self.covered[table] = chain(found.get(table, []), sizes)
        for folder in sorted({FOLDER_OF[table] for table in wanted}):
            self._read(folder, [table for table in wanted if FOLDER_OF[table] == folder])
        for table in wanted:
            self._join_small_parts(table)

    def group_parts(self) -> list[Part]:
        """Groups that were made before, for whoever finds that they still fit."""
        if not self.uses_cache:
            return []
        if "groups" not in self.parts:
            self.parts |= find_parts(self.run, ["groups"], self._connection)
        return list(self.parts["groups"])

    def _read(self, folder: str, tables: list[str]) -> None:
        cursor = self._open_cursor(folder, earliest([self.covered[table] for table in tables]))
        batches = {table: Batches(table, self._private, self._connection) for table in tables}
        for place, line in cursor.read():
            for table in tables:
                if place.offset >= self.covered[table].get(place.file, 0):
                    try:
                        batches[table].add(line, place)
                    except RecordError as error:
                        self._report(Problem(f"{place.file}.jsonl", place.offset, str(error)))
        for table in tables:
            ranges = ranges_between(self.covered[table], cursor.covered)
            if batches[table].facts.rows:
                self.parts[table].append(self._finish(batches[table], table, ranges))
            self.covered[table] |= {file: last for file, (_, last) in ranges.items()}

    def _finish(self, batches: Batches, table: str, ranges: Ranges) -> Part:
        part = finish(self._connection, batches, table, self.private_path(table), ranges)
        return self.keep(part) if part.size >= KEEP_BYTES and self.uses_cache else part

    def keep(self, part: Part) -> Part:
        """Move a part into the run's cache; where that cannot be written to, it stays private."""
        table, name = part.label.table, new_id()
        unfinished = self.run / CACHE / f".{table}-{name}.parquet"
        try:
            unfinished.parent.mkdir(exist_ok=True)
            shutil.copyfile(part.path, unfinished)
            kept = place_part(unfinished, self.run, table, name)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return part
        part.path.unlink()
        return Part(kept, part.label)

    def merge(
        self,
        parts: list[Part],
        covered: dict[str, int] | None = None,
        scores: dict[str, int] | None = None,
        rewards: str | None = None,
    ) -> Part:
        """Parts as one, in the private folder.

        `covered` says what they cover, where that is all up to there; `rewards` is a table of the rewards that scores
        gave, and `scores` says how far scores were read for it.
        """
        table = parts[0].label.table
        facts = Facts()
        for part in parts:
            facts.absorb(part.label.facts)
        columns = ", ".join(map(quoted, RAW[table]))
        query = f"select {columns} from {read_files(part.path for part in parts)}"
        if table == "rollouts":
            query = finished_rollouts(self._connection, f"({query})", facts, rewards)
        ranges = _joined_ranges(parts) if covered is None else ranges_between({}, covered)
        label = Label(table=table, ranges=ranges, facts=facts, scores=scores or {})
        path = self.private_path(table)
        copy(self._connection, query, path, label)
        return Part(path, label)

    def private_path(self, table: str) -> Path:
        """A fresh place outside the run."""
        return self._private / f"{table}-part-{next(self._numbers)}.parquet"

    def _join_small_parts(self, table: str) -> None:
        small = [part for part in self.parts[table] if part.path.parent == self._private]
        if len(small) > MOST_SMALL_PARTS:
            others = [part for part in self.parts[table] if part.path.parent != self._private]
            self.parts[table] = [*others, self.merge(small)]
            # The files of `small` stay until the folder goes: a result that is still being read may need them.


def _joined_ranges(parts: Iterable[Part]) -> Ranges:
    ranges: Ranges = {}
    for part in parts:
        for file, (first, last) in part.label.ranges.items():
            before = ranges.get(file, (first, last))
            ranges[file] = (min(before[0], first), max(before[1], last))
    return ranges


def segment_sizes(run: Path, folder: str) -> dict[str, int]:
    """By file of a folder, how long it is; a sealed one counts as long enough, because it no longer changes."""
    sizes: dict[str, int] = {}
    try:
        paths = list((run / folder).iterdir())
        for path in paths:
            stem, _, ending = path.name.partition(".jsonl")
            if ending == "":
                sizes[f"{folder}/{stem}"] = max(path.stat().st_size, sizes.get(f"{folder}/{stem}", 0))
            elif ending == ".zst":
                sizes[f"{folder}/{stem}"] = sys.maxsize
    except OSError:
        pass
    return sizes
