"""The tables of one run: parts from its cache, and parts made from newer lines."""

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.late_rewards import PARTS_AT_ONCE, ByScores, LateRewards
from rolltrace.query.part_processes import PartProcesses, acquire_lock
from rolltrace.query.part_writer import PartBuilder, index_ids, merge_parts
from rolltrace.query.table_schema import FOLDER_OF_KIND, KIND_OF_TABLE, KINDS_OF_FOLDER, LAYOUT_VERSION, TABLES_OF_KIND
from rolltrace.store.cache_key import cache_folders
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import CACHE, ROLLOUTS, SCORES
from rolltrace.store.parts import Bounds, ParquetPart, Part, covering_parts, find_parts, publish_part, remove_parts
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.store.segment_reader import SegmentEntry, existing_segments
from rolltrace.temp_folders import FileLock
from rolltrace.trace.ids import new_id

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

OnCoverage = Callable[[float], None]
"""It is called with the part of a run, from 0 to 1, that was read by now: 0 before its rollouts are read."""


class RunTables:
    """The parts of one run's tables; `refresh` reads new lines."""

    def __init__(
        self,
        reader: RunReader,
        private: Path,
        connection: "duckdb.DuckDBPyConnection",
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
        self._errors: list[ReadError] = []
        """Those of the lines that are being read."""
        self._segments: dict[str, list[SegmentEntry]] = {}
        """By folder, those that there were when it was last listed: `refresh` does that once."""
        self._dropped: dict[str, dict[str, int]] = {}
        """By folder, how far it was read before damaged parts were dropped."""
        self._discarded: set[Path] = set()
        """Parts in a cache that are damaged, or were replaced: those are deleted when no statement uses them."""
        self._rewards_lock = FileLock(run / CACHE / ".rewards.lock")
        self.late_rewards = LateRewards(connection, self.private_path)
        self._verified: set[Path] = set()
        self._writable_folders = list(self.cache_folders)
        self._is_partial = is_partial
        self._on_progress = on_progress or (lambda _: None)
        self._revision = revision
        self._read_revisions: dict[str, object] = {}
        self._is_changed = False
        """Whether something was read since late rewards were stored the last time."""
        self.lacks_rewards = False
        """Whether late rewards are left to be stored."""
        self.incomplete: set[str] = set()
        """The folders of which something could not be read the last time."""
        unfinished = private.with_name(f"{private.name}-unfinished")
        together = {(kind,) for kind in TABLES_OF_KIND} | set(KINDS_OF_FOLDER.values())
        self._processes = {kinds: PartProcesses(reader.files, kinds, unfinished) for kinds in together}
        private.mkdir()

    def refresh(
        self, tables: Collection[str], deadline: QueryDeadline, *, reads: bool = True, iterations: Bounds | None = None
    ) -> None:
        """Read new lines of the folders of these tables. What was read before the deadline is not read again.

        With `iterations`, the files of parts that have none of them are not read. Without `reads`, or if the revision
        is that of the last time, only folders are read that were not read before, and nothing is stored.
        """
        revision = self._revision()
        self._segments.clear()
        for folder, kinds in KINDS_OF_FOLDER.items():
            wanted = {KIND_OF_TABLE[table] for table in tables} & {*kinds}
            if not wanted:
                continue
            is_new = folder not in self.parts
            if is_new:
                for kind in kinds:
                    self._start(kind, self._find(kind))
            for kind in wanted:
                self._verify(kind, tables, iterations)
            is_read = is_new or (reads and self._read_revisions.get(folder) != revision)
            self._read_folder(folder, wanted, deadline, is_new=is_new, reads=is_read)
            self._read_revisions[folder] = revision
            self._is_changed |= is_read
        if self._is_changed and ROLLOUTS in tables and SCORES in self.parts and iterations is None:
            self._store_rewards(deadline)
        for kind, parts in self.parts.items():
            # Merge the newest while they are private, so that there are few and each row is rewritten seldom.
            if newest := parts_to_merge(parts, self._is_private):
                deadline.check()
                merged = merge_parts(self._connection, self.private_path(kind), newest)
                parts[-len(newest) :] = self._publish_if_large([merged])

    def _read_folder(
        self, folder: str, wanted: Collection[str], deadline: QueryDeadline, *, is_new: bool, reads: bool
    ) -> None:
        """Read new lines for the kinds that are wanted; those of a long run that was never read, for all kinds at once.

        Another kind follows as far as that of the folder's name was read, so that the tables fit together.
        """
        kinds, failures = KINDS_OF_FOLDER[folder], self._reader.errors.failures
        processes = self._processes[kinds]
        if self._is_partial and folder == SCORES and ROLLOUTS in self.pending_tables:  # those are read first
            processes.defer(self._list(folder), self.covered[folder])
            return
        limits = None if reads else self._dropped.get(folder)  # read the same lines again, and no others
        is_level = not self._processes[folder,].pending
        is_level = is_level and all(self.covered[kind] == self.covered[folder] for kind in kinds)
        is_long = is_new and len(processes.unread(self._list(folder), self.covered[folder])) > 1
        is_together = is_level and (is_long or bool(processes.pending) or len(wanted) == len(kinds))
        if reads or limits is not None:
            self._read(kinds if is_together else (folder,), deadline, limits)
        self._dropped.pop(folder, None)
        for kind in kinds:
            if kind in wanted and self.covered[kind] != self.covered[folder] and not is_together:
                self._read((kind,), deadline, self.covered[folder])
        if self._reader.errors.failures > failures:
            self.incomplete.add(folder)
        elif reads:
            self.incomplete.discard(folder)

    @property
    def coverage(self) -> float:
        """About which part of the run the tables cover, from 0 to 1."""
        if self._is_partial and ROLLOUTS not in self.parts:
            return 0.0
        pending = [entry for processes in self._processes.values() for entry in list(processes.pending.values())]
        everything = [entry for folder in KINDS_OF_FOLDER for entry in self._list(folder)] if pending else ()
        unread, total = (sum(entry.estimated_length for entry in entries) for entries in (pending, everything))
        return max(0.0, 1.0 - unread / max(total, 1))

    @property
    def pending_tables(self) -> set[str]:
        """Tables of which processes still read lines, those of texts only if they read these alone."""
        return {table for kind, _ in self.pending_files for table in TABLES_OF_KIND[kind]}

    @property
    def pending_files(self) -> set[tuple[str, str]]:
        """The files that processes still read, each with the first of the kinds of tables."""
        return {(kinds[0], file) for kinds, processes in self._processes.items() for file in list(processes.pending)}

    def close(self) -> None:
        """End the processes that make parts, and delete parts that were discarded."""
        for processes in self._processes.values():
            processes.close()
        remove_parts(self._discarded)

    def table_parts(self, table: str, iterations: Bounds | None = None) -> list[ParquetPart]:
        """The parts of one table that have rows, and may have rows of these iterations."""
        parts = [part for part in self.parts[KIND_OF_TABLE[table]] if part.info.may_have(iterations)]
        return [part.table(table) for part in parts if table in part.tables]

    def expect_changes(self) -> None:
        """Let the next refresh read new lines although the revision may be the same."""
        self._read_revisions.clear()

    def line_counts(self) -> Counter[str]:
        """By file, how many lines have rows."""
        counts: Counter[str] = Counter()
        for part in [part for folder in KINDS_OF_FOLDER for part in self.parts.get(folder, ())]:
            counts.update(part.info.stats.lines)
        return counts

    def drop_damaged(self) -> bool:
        """Drop parts of which a file was deleted or damaged; returns whether there were any."""
        self._verified.clear()
        return sum(self._verify(kind, TABLES_OF_KIND[kind]) for kind in list(self.parts)) > 0  # not `any`: verify all

    def publish(self, part: Part) -> Part:
        """Move a private part to the run's cache, or to the user's; if neither is writable, the part stays private."""
        index_ids(self._connection, part)
        for folder in list(self._writable_folders):
            with contextlib.suppress(OSError):
                published = publish_part(part, folder, self._reader.info.id)
                self._verified |= {published.table(table).path for table in published.tables}
                remove_parts([part.path])
                return published
            self._writable_folders.remove(folder)
        return part

    def _store_rewards(self, deadline: QueryDeadline) -> None:
        """Store the rewards from late scores with the rollouts, once everything is read.

        If statements do not wait until all of it is done, they are stored for some parts at a time. Nothing is stored
        while another process does it.
        """
        self._is_changed = False
        self.lacks_rewards = bool(self._missing_rewards())
        if not self.lacks_rewards or self.pending_tables or not acquire_lock(self._rewards_lock):
            return
        try:
            self._add_published((ROLLOUTS,), of_same_lines=True)  # another process may just have done it
            parts = self.parts[ROLLOUTS]
            stored = self.late_rewards.store(self._missing_rewards(), self.covered[SCORES])
            for part, changed in islice(stored, PARTS_AT_ONCE if self._is_partial else None):
                deadline.check()
                new = changed if self._is_private(part) else self.publish(changed)
                parts[parts.index(part)] = new
                if not self._is_private(new):
                    self._discarded.add(part.path)
        finally:
            self._rewards_lock.release()
            self.lacks_rewards = bool(self._missing_rewards())

    def _missing_rewards(self) -> ByScores:
        return self.late_rewards.missing(self.parts[ROLLOUTS], self.table_parts("scores"), self.covered[SCORES])

    def _list(self, folder: str) -> list[SegmentEntry]:
        segments = self._segments.get(folder)  # another thread may clear them at any time
        if segments is None:
            segments = self._segments[folder] = existing_segments(self._reader.files, folder)
        return segments

    def private_path(self, name: str) -> Path:
        """A new path outside the run."""
        return self._private / f"{name}-{new_id()}"

    def remove_unused(self, used: set[Path]) -> None:
        """Delete private parts that are neither current nor used elsewhere; `used` are paths of files and folders."""
        used = used | {part.path for parts in self.parts.values() for part in parts}
        for path in set(self._private.iterdir()) - used:
            path.unlink() if path.is_file() else shutil.rmtree(path)
        remove_parts(self._discarded - used)

    def _find(self, kind: str, own: Sequence[Part] = ()) -> list[Part]:
        """These parts, and those in the caches that were not discarded."""
        known = {part.path for part in own} | self._discarded
        found = find_parts(self.run, self._reader.info.id, kind)
        return [*own, *(part for part in found if part.info.layout == LAYOUT_VERSION and part.path not in known)]

    def _start(self, kind: str, parts: Sequence[Part]) -> None:
        """Continue from these parts, as far as they fit together and to the files that there are."""
        folder = FOLDER_OF_KIND[kind]
        self.parts[kind], self.covered[kind] = covering_parts(parts, folder, self._list(folder))
        for error in (error for part in self.parts[kind] for error in part.info.errors):
            self._reader.errors.report(error)

    def _verify(self, kind: str, tables: Collection[str], iterations: Bounds | None = None) -> bool:
        """Drop parts of which a file of these tables is damaged; returns whether there were any.

        What a dropped part covered is read again, unless another process has made a part of it.
        """
        bad = self._discard_damaged([part for part in self.parts[kind] if part.info.may_have(iterations)], tables)
        if bad:
            self.expect_changes()
            self._segments.clear()
            for kinds, processes in self._processes.items():
                if kind in kinds:
                    processes.close()
            if kind in KINDS_OF_FOLDER:
                self._dropped.setdefault(kind, self.covered[kind])
            self._start(kind, self._find(kind, [part for part in self.parts[kind] if part not in bad]))
        return bool(bad)

    def _discard_damaged(self, parts: Iterable[Part], tables: Collection[str]) -> list[Part]:
        """Delete those of these parts of which a file of these tables is damaged, and return them.

        Each file is verified once.
        """
        files = [(part, part.table(table)) for part in parts for table in part.tables if table in tables]
        bad = [part for part, file in files if file.path not in self._verified and not file.is_intact]
        self._verified |= {file.path for _, file in files}  # also those that are deleted: they are not used again
        self._discarded |= {part.path for part in bad}
        remove_parts(part.path for part in bad)
        return bad

    def _read(self, kinds: tuple[str, ...], deadline: QueryDeadline, limits: Mapping[str, int] | None = None) -> None:
        """Read new lines, up to `limits`, for kinds that cover the same lines: many in processes, the rest here."""
        [kind, *_] = kinds
        processes, folder = self._processes[kinds], FOLDER_OF_KIND[kind]
        while not processes.start(self._list(folder), self.covered[kind], limits):  # another process makes its parts
            self._add_published(kinds)
            if not self._must_wait(kind):
                break
            deadline.check()
            time.sleep(_WAIT_SECONDS)
        for parts, errors in processes.finished(deadline, partial(self._must_wait, kind)):
            self._add([Part(part.path.rename(self.private_path(part.info.kind)), part.info) for part in parts])
            for error in errors:
                self._reader.errors.report(error)
            self._on_progress(self.coverage if ROLLOUTS in self.parts else 0.0)
        cursor = self._cursor(kinds, limits)
        lines = cursor.read()
        is_full = True
        while is_full:
            self._errors.clear()
            builder = PartBuilder(kinds, self._connection, self._errors, self._reader.decode_score)
            is_full = False
            for location, line in lines:
                deadline.check()
                if is_full := builder.add(line, location):
                    break
            self._add(builder.write(self.private_path("lines"), self.covered[kind], cursor))

    def _must_wait(self, kind: str) -> bool:
        """Whether statements wait for more parts of this kind: not if they have some, or rollouts without scores."""
        return not self._is_partial or not (self.parts[kind] or (kind == SCORES and self.parts.get(ROLLOUTS)))

    def _cursor(self, kinds: tuple[str, ...], limits: Mapping[str, int] | None) -> Cursor:
        """A cursor for the lines that are left to this process: the last one, unless parts do not reach as far as it.

        That is so if a statement timed out before it had made a part of what it read, or if a part was dropped.
        """
        cursor, covered = self._cursors.get(kinds), self.covered[kinds[0]]
        if limits is None and cursor is not None and cursor.covered == covered:
            return cursor
        folder, processes = FOLDER_OF_KIND[kinds[0]], self._processes[kinds]
        finished = {file: size for part in self.parts[kinds[0]] for file, size in part.info.finished.items()}
        cursor = self._reader.cursor(
            folder, covered, lambda file: file not in processes.pending, limits, self._errors.append, finished
        )
        if limits is None:
            self._cursors[kinds] = cursor
        return cursor

    def _add_published(self, kinds: tuple[str, ...], *, of_same_lines: bool = False) -> None:
        """Use parts that another process has made since the last look, unless they are damaged.

        They are used if they cover as much as before, and the same lines for all kinds: no line may be read twice.
        """
        self._segments.clear()
        folder = FOLDER_OF_KIND[kinds[0]]
        segments = self._list(folder)
        parts = {}
        for kind in kinds:
            found = self._find(kind, self.parts[kind])
            bad = self._discard_damaged([part for part in found if part not in self.parts[kind]], TABLES_OF_KIND[kind])
            parts[kind] = [part for part in found if part not in bad]
        reached = [covering_parts(own, folder, segments)[1] for own in parts.values()]
        before = self.covered[kinds[0]]
        if any(covered != reached[0] for covered in reached) or (of_same_lines and reached[0] != before):
            return
        if all(reached[0].get(file, 0) >= end for file, end in before.items()):
            for kind, own in parts.items():
                self._start(kind, own)
        self._on_progress(self.coverage if ROLLOUTS in self.parts else 0.0)

    def _add(self, parts: list[Part]) -> None:
        """Use new parts."""
        for part in self._publish_if_large(parts):
            self.parts[part.info.kind].append(part)
            self.covered[part.info.kind] |= {file: last for file, (_, last) in part.info.ranges.items()}
            for error in part.info.errors:
                self._reader.errors.report(error)

    def _publish_if_large(self, parts: list[Part]) -> list[Part]:
        """Publish all of these parts, which cover the same lines, or none; never if the disk could not be read."""
        if any(error.kind is ReadErrorKind.UNREADABLE for part in parts for error in part.info.errors):
            return parts
        return [self.publish(part) for part in parts] if any(is_large([part]) for part in parts) else parts

    def _is_private(self, part: Part) -> bool:
        return part.path.parent not in self.cache_folders


def parts_to_merge(parts: Sequence[Part], is_private: Callable[[Part], bool]) -> list[Part]:
    """The newest parts, if they are to be merged: none is much larger than those after it together."""
    newest: list[Part] = []
    size = 0
    for part in reversed(parts):
        if (newest and part.size > 2 * size) or part.size + size > MERGE_BYTES or not is_private(part):
            break
        newest.insert(0, part)
        size += part.size
    is_due = len(newest) > _MAX_SMALL_PARTS or (len(newest) > 1 and is_large(newest))
    return newest if is_due else []


def is_large(parts: Sequence[Part]) -> bool:
    """Whether these parts together are to be stored in the run's cache."""
    rows = sum((Counter(part.info.stats.rows) for part in parts), Counter[str]())
    return max(rows.values(), default=0) >= MIN_CACHED_ROWS or sum(part.size for part in parts) >= MIN_CACHED_BYTES
