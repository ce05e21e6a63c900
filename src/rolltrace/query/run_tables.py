"""The tables of one run: parts from its cache, and parts made from newer lines."""

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import StorageError
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.late_rewards import LateRewards
from rolltrace.query.part_processes import MakerLock, PartProcesses, add_errors, estimated_length
from rolltrace.query.part_writer import (
    PartBuilder,
    index_ids,
    merge_parts,
    ranges_between,
)
from rolltrace.query.table_schema import FOLDER_OF_KIND, KIND_OF_TABLE, KINDS_OF_FOLDER, LAYOUT_VERSION, TABLES_OF_KIND
from rolltrace.store.cache_key import cache_folders
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.parts import (
    ParquetPart,
    Part,
    Ranges,
    covering_parts,
    find_parts,
    finished_segments,
    joined_ranges,
    publish_part,
    remove_parts,
    segment_sizes,
)
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.store.segment_reader import existing_segments

if TYPE_CHECKING:
    import duckdb

MIN_CACHED_BYTES = 32 << 20
MIN_CACHED_ROWS = 10_000
"""A part made from at least so many bytes of lines, or with so many rows, is stored in the run's cache."""

MERGE_BYTES = 256 << 20
"""Parts are merged only up to so many bytes of lines, so that no query waits long for it."""
_MAX_SMALL_PARTS = 7
"""So many small neighbours are not merged, unless they are large enough together for the cache."""

_WAIT_SECONDS = 0.2
"""How often to look for parts that another process makes."""
_PROCESSES = "processes"
"""Below the private folder, where processes make parts."""

OnCoverage = Callable[[float], None]
"""It is called with the part of a run, from 0 to 1, that was read by now."""


class RunTables:
    """The parts of one run's tables; `refresh` reads new lines."""

    def __init__(
        self,
        reader: RunReader,
        private: Path,
        connection: "duckdb.DuckDBPyConnection",
        report: Callable[[ReadError], None],
        is_partial: bool = False,
        on_progress: OnCoverage | None = None,
        revision: Callable[[], object] = object,
    ) -> None:
        run = self.run = reader.path
        self._reader = reader
        self.cache_folders = cache_folders(run, reader.info.id)
        self.parts: dict[str, list[Part]] = {}
        """By kind, in the order in which they were made."""
        self.covered: dict[str, dict[str, int]] = {}
        """By kind, how far each file was read."""
        self._private = private
        self._connection = connection
        self._cursors: dict[tuple[str, ...], Cursor] = {}
        self._on_error = report
        self._errors: list[ReadError] = []
        """Those of the lines that are being read."""
        self._numbers = itertools.count()
        self._damaged: set[Path] = set()
        self._dropped: dict[str, dict[str, int]] = {}
        """By folder, how far it was read before damaged parts were dropped."""
        self._replaced: set[Path] = set()
        """Parts in a cache that are deleted when no statement uses them."""
        self._rewards_lock = MakerLock(run, "rewards")
        self._late_rewards = LateRewards(connection, self.private_path)
        self._verified: set[Path] = set()
        self._writable_folders = list(self.cache_folders)
        self._is_partial = is_partial
        self._on_progress = on_progress
        self._revision = revision
        self._read_revisions: dict[str, object] = {}
        together = {(kind,) for kind in TABLES_OF_KIND} | set(KINDS_OF_FOLDER.values())
        self._processes = {kinds: PartProcesses(reader.files, kinds, private / _PROCESSES) for kinds in together}
        (private / _PROCESSES).mkdir(parents=True, exist_ok=True)

    def refresh(self, tables: Iterable[str], deadline: QueryDeadline, *, reads: bool = True) -> None:
        """Read new lines of the folders of these tables. What was read before the deadline is not read again.

        Without `reads`, or if the revision is that of the last time, only folders are read that were not read before.
        """
        revision = self._revision()
        stored = [table for table in tables if table in KIND_OF_TABLE]
        for folder, kinds in KINDS_OF_FOLDER.items():
            wanted = {KIND_OF_TABLE[table] for table in stored} & {*kinds}
            if not wanted:
                continue
            is_new = folder not in self.parts
            if is_new:
                sizes = segment_sizes(self._reader.files, folder)
                for kind in kinds:
                    self._start(kind, self._find(kind), sizes)
            for kind in wanted:
                self._drop(self._damaged_parts(kind, [table for table in stored if KIND_OF_TABLE[table] == kind]))
            is_pending = any(processes.pending for processes in self._processes.values())
            is_changed = is_pending or self._read_revisions.get(folder) != revision
            self._read_folder(folder, wanted, deadline, is_new=is_new, reads=reads and is_changed)
            self._read_revisions[folder] = revision
        if ROLLOUTS in stored and SCORES in self.parts:
            self.store_rewards(deadline)
        for kind in self.parts:
            self._merge_small_parts(kind, deadline)

    def _read_folder(
        self, folder: str, wanted: Collection[str], deadline: QueryDeadline, *, is_new: bool, reads: bool
    ) -> None:
        """Read new lines for the kinds that are wanted; those of a long run that was never read, for all kinds at once.

        Another kind follows as far as that of the folder's name was read, so that the tables fit together.
        """
        kinds = KINDS_OF_FOLDER[folder]
        processes = self._processes[kinds]
        before = self._dropped.pop(folder, None)
        if before is not None and not reads:  # read the same lines again, and no others
            self._read((folder,), deadline, before)
        is_level = all(self.covered[kind] == self.covered[folder] for kind in kinds)
        is_level = is_level and (len(kinds) == 1 or not self._processes[folder,].pending)
        is_long = bool(processes.pending) or (is_new and processes.is_long(self.covered[folder]))
        is_together = is_level and (is_long or len(wanted) == len(kinds))
        if is_new or reads:
            self._read(kinds if is_together else (folder,), deadline)
        for kind in kinds:
            if kind in wanted and self.covered[kind] != self.covered[folder] and not is_together:
                self._read((kind,), deadline, self.covered[folder])

    @property
    def coverage(self) -> float:
        """About which part of the run the tables cover, from 0 to 1."""
        if self._is_partial and ROLLOUTS not in self.parts:
            return 0.0
        pending = sum(sum(one.pending.values()) for one in self._processes.values())
        if not pending:
            return 1.0
        total = sum(
            estimated_length(entry)
            for folder in KINDS_OF_FOLDER
            for entry in existing_segments(self._reader.files, folder)
        )
        return max(0.0, 1.0 - pending / max(total, 1))

    def close(self) -> None:
        """End the processes that make parts, and delete parts that were replaced."""
        for processes in self._processes.values():
            processes.close()
        remove_parts(self._replaced)

    def table_parts(self, table: str) -> list[ParquetPart]:
        """The parts of one table that have rows."""
        return [part.table(table) for part in self.parts[KIND_OF_TABLE[table]] if part.info.stats.rows.get(table)]

    def group_parts(self) -> list[ParquetPart]:
        """Groups that compaction has stored; views check whether they are up to date."""
        return [part.table("groups") for part in self.parts[ROLLOUTS] if "groups" in part.info.stats.rows]

    def expect_changes(self) -> None:
        """Let the next refresh read new lines although the revision may be the same."""
        self._read_revisions.clear()

    def line_counts(self) -> Counter[str]:
        """By file, how many lines have rows."""
        counts: Counter[str] = Counter()
        for folder in KINDS_OF_FOLDER:
            for part in self.parts.get(folder, ()):
                counts.update(part.info.stats.lines)
        return counts

    def drop_damaged(self) -> bool:
        """Drop parts of which a file was deleted or damaged; returns whether there were any."""
        bad = [part for parts in self.parts.values() for part in parts if not part.is_intact(part.tables)]
        self._drop(bad)
        return bool(bad)

    def publish(self, part: Part) -> Part:
        """Move a part to the run's cache, or to the user's; if neither is writable, the part stays private."""
        if self._is_private(part):
            index_ids(self._connection, part)
        while self._is_private(part) and self._writable_folders:
            try:
                published = publish_part(part, self._writable_folders[0], self._reader.info.id)
            except (OSError, StorageError):
                del self._writable_folders[0]
            else:
                self._verified |= {published.table(table).path for table in published.tables}
                remove_parts([part.path])
                return published
        return part

    def merge(self, kind: str, parts: Sequence[Part], ranges: Ranges | None = None) -> Part:
        """Merge some parts of one kind into one, in the private folder; see `merge_parts`."""
        return merge_parts(self._connection, self.private_path(kind), kind, parts, ranges)

    def store_rewards(self, deadline: QueryDeadline, *, also_few: bool = False) -> None:
        """Store the rewards from late scores with the rollouts, unless another process is about it."""
        if not self._missing_rewards(also_few) or not self._rewards_lock.acquire():
            return
        try:
            self._add_published((ROLLOUTS,), of_same_lines=True)  # another process may just have done it
            missing, parts = self._missing_rewards(also_few), self.parts[ROLLOUTS]
            for part, changed in self._late_rewards.store(missing, self.covered[SCORES], also_few=also_few):
                deadline.check()
                new = changed if self._is_private(part) else self.publish(changed)
                parts[parts.index(part)] = new
                if not self._is_private(new):
                    self._replaced.add(part.path)
        finally:
            self._rewards_lock.release()

    def _missing_rewards(self, also_few: bool) -> dict[tuple[Path, ...], list[Part]]:
        scores, covered = self.table_parts("scores"), self.covered[SCORES]
        return self._late_rewards.missing(self.parts[ROLLOUTS], scores, covered, also_few=also_few)

    def private_path(self, name: str) -> Path:
        """A new path outside the run."""
        return self._private / f"{name}-{next(self._numbers)}"

    def remove_unused(self, used: set[Path]) -> None:
        """Delete private parts that are neither current nor used elsewhere; `used` are paths of files."""
        folders = {path.parent for path in used} | used | {part.path for parts in self.parts.values() for part in parts}
        for path in self._private.iterdir():
            if path not in folders and path.name != _PROCESSES:
                path.unlink() if path.is_file() else shutil.rmtree(path)
        unused = self._replaced - folders
        self._replaced -= unused
        remove_parts(unused)

    def _find(self, kind: str) -> list[Part]:
        """The parts in the caches that are neither known to be damaged nor replaced."""
        not_used = self._damaged | self._replaced
        parts = find_parts(self.run, self._reader.info.id, kind)
        return [part for part in parts if part.info.layout == LAYOUT_VERSION and part.path not in not_used]

    def _start(self, kind: str, parts: Sequence[Part], sizes: Mapping[str, int]) -> None:
        """Continue from these parts, as far as they fit together and to files of these sizes."""
        self.parts[kind], self.covered[kind] = covering_parts(parts, sizes)
        for error in (error for part in self.parts[kind] for error in part.info.errors):
            self._on_error(error)
        self._cursors = {kinds: cursor for kinds, cursor in self._cursors.items() if kind not in kinds}

    def _damaged_parts(self, kind: str, tables: Sequence[str]) -> list[Part]:
        """The parts of which a file of these tables is damaged. Each file is verified once."""
        damaged = []
        for part in self.parts[kind]:
            paths = {table: part.table(table).path for table in tables}
            new = [table for table, path in paths.items() if path not in self._verified]
            if part.is_intact(new):
                self._verified |= {paths[table] for table in new}
            else:
                damaged.append(part)
        return damaged

    def _drop(self, bad: Sequence[Part]) -> None:
        """Delete damaged parts; what they covered is read again, unless another process has made a part of it."""
        if not bad:
            return
        self.expect_changes()
        self._damaged |= {part.path for part in bad}
        remove_parts(part.path for part in bad)
        for kind in {part.info.kind for part in bad}:
            for kinds, processes in self._processes.items():
                if kind in kinds:
                    processes.close()
            if kind in KINDS_OF_FOLDER:
                self._dropped.setdefault(kind, self.covered[kind])
            rest = [part for part in self.parts[kind] if part not in bad]
            known = {part.path for part in rest}
            found = [part for part in self._find(kind) if part.path not in known]
            self._start(kind, [*rest, *found], segment_sizes(self._reader.files, FOLDER_OF_KIND[kind]))

    def _read(self, kinds: tuple[str, ...], deadline: QueryDeadline, limits: Mapping[str, int] | None = None) -> None:
        """Read new lines, up to `limits`, into parts of these kinds, which have covered the same lines by now.

        Many segments are read in several processes, and then the rest here.
        """
        [kind, *_] = kinds
        processes = self._processes[kinds]
        while not processes.start(self.covered[kind], limits):  # another process makes its parts: use them
            self._add_published(kinds)
            if self._is_partial and self.parts[kind]:
                break
            deadline.check()
            time.sleep(_WAIT_SECONDS)
        is_partial = self._is_partial and bool(self.parts[kind])
        for built in processes.finished(deadline, waits=not is_partial):
            for error in built.errors:
                self._report(error)
            parts = [Part(part.path.rename(self.private_path(part.info.kind)), part.info) for part in built.parts]
            self._add(kinds, parts, self.covered[kind] | built.covered)
            if self._on_progress is not None:
                self._on_progress(self.coverage)
            if self._is_partial and processes.pending:
                break
        cursor = self._cursor(kinds, limits)
        lines = cursor.read()
        self._errors.clear()
        is_over = False
        while not is_over:
            builder = PartBuilder(kinds, self._connection, self._report, self._reader.decode_score)
            is_over = True
            for location, line in lines:
                deadline.check()
                builder.add(line, location)
                if builder.is_full:
                    is_over = False
                    break
            parts = self._write(kinds, builder, cursor)
            add_errors(parts, self._errors)
            self._errors.clear()
            self._add(kinds, parts, cursor.covered)

    def _report(self, error: ReadError) -> None:
        self._errors.append(error)
        self._on_error(error)

    def _cursor(self, kinds: tuple[str, ...], limits: Mapping[str, int] | None) -> Cursor:
        """Reads the lines that are left to this process."""
        cursor, covered = self._cursors.get(kinds), self.covered[kinds[0]]
        if limits is None and cursor is not None and cursor.covered == covered:  # or the last statement timed out
            return cursor
        processes = self._processes[kinds]

        def reads(file: str) -> bool:
            return file not in processes.pending and (limits is None or covered.get(file, 0) < limits.get(file, 0))

        finished = finished_segments(self.parts[kinds[0]])
        cursor = self._reader.cursor(FOLDER_OF_KIND[kinds[0]], covered, reads, limits, self._errors.append, finished)
        if limits is None:
            self._cursors[kinds] = cursor
        return cursor

    def _add_published(self, kinds: tuple[str, ...], *, of_same_lines: bool = False) -> None:
        """Use parts that another process has made since the last look.

        They are used if they cover as much as before, and the same lines for all kinds: no line may be read twice.
        """
        sizes = segment_sizes(self._reader.files, FOLDER_OF_KIND[kinds[0]])
        parts = {kind: [*self.parts[kind]] for kind in kinds}
        for kind, own in parts.items():
            known = {part.path for part in own}
            own += [part for part in self._find(kind) if part.path not in known]
        reached = [covering_parts(own, sizes)[1] for own in parts.values()]
        before = self.covered[kinds[0]]
        if any(covered != reached[0] for covered in reached) or (of_same_lines and reached[0] != before):
            return
        if all(reached[0].get(file, 0) >= end for file, end in before.items()):
            for kind, own in parts.items():
                self._start(kind, own, sizes)
                self._drop(self._damaged_parts(kind, TABLES_OF_KIND[kind]))
        if self._on_progress is not None:
            self._on_progress(self.coverage)

    def _add(self, kinds: tuple[str, ...], parts: Iterable[Part], covered: Mapping[str, int]) -> None:
        """Use new parts of these kinds, which cover the same lines."""
        for part in self._publish_if_large([*parts]):
            self.parts[part.info.kind].append(part)
        for kind in kinds:
            self.covered[kind] = dict(covered)

    def _write(self, kinds: tuple[str, ...], builder: PartBuilder, cursor: Cursor) -> list[Part]:
        """The parts of some lines, if they have rows, or if there are so many that it saves time to know that."""
        before = {file: last for file, (_, last) in joined_ranges(self.parts[kinds[0]]).items()}
        ranges = ranges_between(before, cursor.covered)
        parts = builder.write(self.private_path("lines"), ranges)
        if not parts and sum(last - first for first, last in ranges.values()) >= MIN_CACHED_BYTES:
            parts = [self.merge(kind, (), ranges) for kind in kinds]
        for part in parts:
            part.info.finished = {file: size for file, size in cursor.finished.items() if file in ranges}
        return parts

    def _merge_small_parts(self, kind: str, deadline: QueryDeadline) -> None:
        """Merge small neighbours, so that there are few parts and each row is rewritten only a few times."""
        for group in self._neighbours(kind):
            if len(group) <= _MAX_SMALL_PARTS and not _is_large(group):
                continue
            deadline.check()
            [merged] = self._publish_if_large([self.merge(kind, group)])
            first = self.parts[kind].index(group[0])
            self.parts[kind][first : first + len(group)] = [merged]

    def _neighbours(self, kind: str) -> list[list[Part]]:
        """Runs of consecutive private parts, from the newest on, each not much larger than those after it together."""
        groups: list[list[Part]] = []
        size = 0
        for part in reversed(self.parts[kind]):
            if not self._is_private(part):
                groups.append([])
            elif groups and groups[-1] and part.size <= 2 * size and part.size + size <= MERGE_BYTES:
                groups[-1].insert(0, part)
                size += part.size
            else:
                groups.append([part])
                size = part.size
        return [group for group in groups if len(group) > 1]

    def _publish_if_large(self, parts: list[Part]) -> list[Part]:
        """Publish all of these parts, which cover the same lines, or none; never if the disk could not be read."""
        if any(error.kind is ReadErrorKind.UNREADABLE for part in parts for error in part.info.errors):
            return parts
        return [self.publish(part) for part in parts] if any(_is_large([part]) for part in parts) else parts

    def _is_private(self, part: Part) -> bool:
        return part.path.parent not in self.cache_folders


def _is_large(parts: Sequence[Part]) -> bool:
    """Whether these parts together are to be stored in the run's cache."""
    rows = Counter[str]()
    for part in parts:
        rows.update(part.info.stats.rows)
    return max(rows.values(), default=0) >= MIN_CACHED_ROWS or sum(part.size for part in parts) >= MIN_CACHED_BYTES
