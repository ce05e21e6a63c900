"""Index by id: the locations of each rollout's line and of its scores. Derived from the segments."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.id_index_file import (
    ByteRange,
    IdIndexFile,
    IdIndexWriter,
    find_files,
    is_damaged,
    is_intact,
    merge_ranges,
)
from rolltrace.store.layout import CACHE, PLAIN_SUFFIX, ROLLOUTS, SCORES, strip_extension
from rolltrace.store.read_errors import ReadError, ReadErrorKind, ReadErrors
from rolltrace.trace.field_types import FORMAT_VERSION

MAX_LINES_IN_MEMORY = 5000
MAX_BYTES_IN_MEMORY = 8 * 1024 * 1024
"""If more lines or bytes were scanned, their locations are written to an index file."""
_TRIES = 3
_MAX_NAME_CHARS = 200
_HEAD = b'{"v":%d,"id":"' % FORMAT_VERSION


_LOOKUP_BATCH = 500
"""How many ids one SQL statement looks up."""


class _IdOnly(msgspec.Struct):
    id: str


class _RolloutIdOnly(msgspec.Struct):
    rollout: str | None = None


def record_id(line: bytes) -> str | None:
    """The id of a line; None if it has none."""
    if line.startswith(_HEAD):  # fast path: the line starts as Rolltrace writes it
        name, quote, _ = line[len(_HEAD) : len(_HEAD) + _MAX_NAME_CHARS].partition(b'"')
        if quote and name.isascii() and b"\\" not in name:
            return name.decode()
    try:
        return msgspec.json.decode(line, type=_IdOnly).id
    except (ValueError, RecursionError):
        return None


def scored_rollout_id(line: bytes) -> str | None:
    """The id of the rollout that a score's line is about, or None."""
    try:
        return msgspec.json.decode(line, type=_RolloutIdOnly).rollout
    except (ValueError, RecursionError):
        return None


class IdIndex:
    """The index of a run's rollouts and of their scores.

    Most of it is in immutable files under `cache/`, which any process may write, merge into larger ones or delete.
    Lines that they do not cover are scanned and indexed in memory, or in a new file if there are many.
    """

    def __init__(self, run: Path, problems: ReadErrors) -> None:
        self._run = run
        self._problems = problems
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._files: dict[str, IdIndexFile] = {}
        self._known: set[str] = set()  # index files that were opened or rejected
        self._verified: set[str] = set()
        self._recent: dict[str, list[LineLocation]] = {}
        self._recent_problems = ReadErrors()
        self._recent_bytes = 0
        self._unreadable: dict[str, int] = {}  # by file, the offset from which the disk could not be read
        self._covered_by_files: dict[str, int] = {}
        self._cursors: dict[str, Cursor] = {}

    def find(self, rollout: str) -> LineLocation | None:
        """The location of the first line with this id."""
        with self._guard():
            if not self._files:
                self._open_files()
            location = self._first(rollout)
            for look_further in (self._update, self._verify):
                if location is None:
                    look_further()
                    location = self._first(rollout)
            return location

    def find_scores(self, rollouts: Sequence[str]) -> dict[str, list[LineLocation]]:
        """Locations of the scores of each rollout, up to date."""
        with self._guard():
            self._update(SCORES)
            found = self._lookup(rollouts, SCORES)
            # A miss may be due to a damaged index file, if scores were ever written to one.
            if len(found) < len(set(rollouts)) and any(_is_in(one, SCORES) for one in self._covered_by_files):
                found = self._lookup(rollouts, SCORES) if self._verify(SCORES) else found
            return found

    def contains(self, rollout: str) -> bool:
        """Whether the index has it now, without scanning."""
        with self._guard():
            if not self._files:
                self._open_files()
            return self._first(rollout) is not None

    def invalidate(self, rollout: str) -> None:
        """Drop a wrong entry. The next lookup scans the segments."""
        with self._guard():
            for name, file in list(self._files.items()):
                with contextlib.suppress(sqlite3.Error):
                    if any(True for _ in _find(file, [rollout])):
                        self._drop(name)
            self._reset_scan()

    def update(self) -> None:
        """Update the index to what the segments hold."""
        with self._guard():
            self._update()

    def close(self) -> None:
        """Close open files. They are opened again when needed."""
        with self._guard():
            for file in self._files.values():
                file.close()
            self._forget()

    def _guard(self) -> threading.Lock:
        """The lock. A forked process gets a new one, because the holder of the old one may not exist in it."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._forget()
        return self._lock

    def _forget(self) -> None:
        self._files = {}
        self._known = set()
        self._verified = set()
        self._reset_scan()

    def _first(self, rollout: str) -> LineLocation | None:
        return min(self._lookup([rollout], ROLLOUTS).get(rollout, ()), default=None)

    def _lookup(self, rollouts: Sequence[str], folder: str) -> dict[str, list[LineLocation]]:
        """Locations of the lines of each rollout in this folder, as far as it was scanned."""
        found: dict[str, set[LineLocation]] = {}
        for name, file in list(self._files.items()):
            try:
                for rollout, location in _find(file, rollouts):
                    found.setdefault(rollout, set()).add(location)
            except sqlite3.Error:  # damaged or unreadable: scan what it covers
                self._drop(name, deletes=file.path is not None and is_damaged(file.path))
                self._reset_scan()
        for rollout in rollouts:
            found.setdefault(rollout, set()).update(self._recent.get(rollout, ()))
        own = {
            rollout: sorted(location for location in locations if _is_in(location.file, folder))
            for rollout, locations in found.items()
        }
        return {rollout: locations for rollout, locations in own.items() if locations}

    def _open_files(self) -> None:
        """Open new index files. Damaged ones are deleted."""
        for _ in range(_TRIES):  # a missing file was merged into one that was not listed yet
            new = [path for path in find_files(self._run / CACHE) if path.name not in self._known]
            opened = [self._open_file(path) for path in new]
            if all(opened):
                return

    def _open_file(self, path: Path) -> bool:
        self._known.add(path.name)
        try:
            file = IdIndexFile.open(path)
        except (sqlite3.Error, OSError, ValueError, TypeError):
            if is_damaged(path):
                _delete(path)
            return False
        self._files[path.name] = file
        for problem in file.problems:
            self._problems.report(problem)
        return True

    def _verify(self, folder: str = ROLLOUTS) -> bool:
        """Verify each index file once. If one is damaged, scan the segments again and return True."""
        damaged = [
            name
            for name, file in self._files.items()
            if name not in self._verified and file.path is not None and is_damaged(file.path)
        ]
        self._verified.update(self._files)
        for name in damaged:
            self._drop(name)
        if damaged:
            self._reset_scan()
            self._update(folder)
        return bool(damaged)

    def _drop(self, name: str, deletes: bool = True) -> None:
        file = self._files.pop(name)
        file.close()
        if file.path is not None and deletes:
            _delete(file.path)

    def _reset_scan(self) -> None:
        """Drop entries in memory and the positions of the scan."""
        self._cursors = {}
        self._recent = {}
        self._recent_problems = ReadErrors()
        self._recent_bytes = 0
        self._unreadable = {}

    def _update(self, folder: str = ROLLOUTS) -> None:
        for cache in (self._run / CACHE, None):
            try:
                self._scan(folder, cache)
            except (OSError, sqlite3.Error):  # the cache is not writable, or the disk is full
                self._reset_scan()
                if cache is None:
                    raise
            except BaseException:
                self._reset_scan()
                raise
            else:
                return

    def _scan(self, folder: str, cache: Path | None) -> None:
        """Scan what is new in a folder into memory, or into a new index file if it is much."""
        if not self._cursors:
            self._begin()
        writer: IdIndexWriter | None = None
        lines: list[tuple[str, LineLocation]] = []
        try:
            for location, line in self._cursors[folder].read():
                lines += self._named(folder, location, line)
                self._recent_bytes += location.length
                if len(lines) + len(self._recent) >= MAX_LINES_IN_MEMORY or self._recent_bytes >= MAX_BYTES_IN_MEMORY:
                    if writer is None:
                        writer = IdIndexWriter(cache)
                        writer.add(
                            [
                                (rollout, location)
                                for rollout, locations in self._recent.items()
                                for location in locations
                            ]
                        )
                        self._recent = {}
                    writer.add(lines)
                    lines = []
                    self._recent_bytes = 0
            if writer is None:
                for rollout, location in lines:
                    self._recent.setdefault(rollout, []).append(location)
            else:
                writer.add(lines)
                self._finish(writer)
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise

    def _named(self, folder: str, location: LineLocation, line: bytes) -> list[tuple[str, LineLocation]]:
        """The line and the rollout id to index it under; nothing for a score without a rollout."""
        rollout = record_id(line) if folder == ROLLOUTS else scored_rollout_id(line)
        if rollout is None and folder == ROLLOUTS:
            message = "Expected a rollout record with an id."
            self._report(
                ReadError(f"{location.file}{PLAIN_SUFFIX}", location.offset, message, kind=ReadErrorKind.INVALID)
            )
        return [] if rollout is None else [(rollout, location)]

    def _begin(self) -> None:
        """Create cursors that start where the index files end."""
        self._open_files()
        covered: dict[str, int] = {}
        for one in merge_ranges(one for file in self._files.values() for one in file.ranges):
            if one.first == 0:
                covered[one.file] = one.last
        self._covered_by_files = dict(covered)
        for folder in (ROLLOUTS, SCORES):
            own = {file: last for file, last in covered.items() if file.startswith(f"{folder}/")}
            self._cursors[folder] = Cursor(self._run, folder, self._report, own, self._problems.clear_transient)

    def _report(self, problem: ReadError) -> None:
        self._problems.report(problem)
        if problem.kind is ReadErrorKind.UNREADABLE and problem.offset is not None:
            self._unreadable.setdefault(strip_extension(problem.file), problem.offset)
        elif not problem.is_transient and problem.offset is not None:
            self._recent_problems.report(problem)

    def _finish(self, writer: IdIndexWriter) -> None:
        """Publish the new file, merged with all smaller ones, so that there are few files that grow by doubling."""
        # What could not be read is not covered, nor is what follows it. The next reader retries.
        read = {file: end for cursor in self._cursors.values() for file, end in cursor.covered.items()}
        covered = {file: min(end, self._unreadable.get(file, end)) for file, end in read.items()}
        ranges = [
            ByteRange(file, self._covered_by_files.get(file, 0), end)
            for file, end in covered.items()
            if end > self._covered_by_files.get(file, 0)
        ]
        writer.cover(ranges, self._recent_problems.all())
        absorbed = self._absorb_smaller(writer)
        file = writer.finish()
        name = file.path.name if file.path else f"private {len(self._files)}"
        self._files[name] = file
        self._known.add(name)
        for name in absorbed:
            self._drop(name)
        self._covered_by_files = covered
        self._recent_problems = ReadErrors()
        self._recent_bytes = 0

    def _absorb_smaller(self, writer: IdIndexWriter) -> list[str]:
        absorbed: list[str] = []
        for name, file in sorted(self._files.items(), key=lambda item: item[1].size):
            if file.size > 2 * writer.size or not writer.is_shared:
                break
            if file.path is not None and is_intact(file.path):
                writer.merge(file.path, file)
                absorbed.append(name)
        return absorbed


def _find(file: IdIndexFile, rollouts: Sequence[str]) -> Iterable[tuple[str, LineLocation]]:
    """Entries of a file for these ids. Ids that are not valid text have none."""
    for first in range(0, len(rollouts), _LOOKUP_BATCH):
        try:
            yield from file.find(rollouts[first : first + _LOOKUP_BATCH])
        except (ValueError, TypeError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError):
            continue


def _is_in(file: str, folder: str) -> bool:
    """Whether a file is really in this folder, and not a link out of it."""
    return file.count("/") == 1 and file.startswith(f"{folder}/")


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
