"""Where each rollout's line is, by id: an index that is derived from the segments and grows with them."""

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import msgspec

from rolltrace.store.cursor import Cursor, Place
from rolltrace.store.layout import CACHE, PLAIN, ROLLOUTS
from rolltrace.store.offsets_file import (
    OffsetsFile,
    OffsetsWriter,
    Range,
    find_files,
    is_damaged,
    is_sound,
    merge_ranges,
)
from rolltrace.store.problems import Kind, Problem, Problems, without_ending
from rolltrace.trace.rollout import FORMAT_VERSION

__all__ = ["CACHE", "Offsets", "id_of"]

_MOST_LINES = 5000
_MOST_BYTES = 8 * 1024 * 1024
_TRIES = 3
_LONGEST_NAME = 200
_HEAD = b'{"v":%d,"id":"' % FORMAT_VERSION


class _Named(msgspec.Struct):
    id: str


def id_of(line: bytes) -> str | None:
    """The id of a line; None if it has none."""
    if line.startswith(_HEAD):  # as Rolltrace writes it; reading on would take longer than all the rest
        name, quote, _ = line[len(_HEAD) : len(_HEAD) + _LONGEST_NAME].partition(b'"')
        if quote and name.isascii() and b"\\" not in name:
            return name.decode()
    try:
        return msgspec.json.decode(line, type=_Named).id
    except (ValueError, RecursionError):
        return None


class Offsets:
    """The index of a run's rollouts.

    Most of it is in immutable files under `cache/`, which any process may make, absorb into larger ones or delete.
    What they do not cover is looked through and kept in memory, or in a new file where it is much.
    """

    def __init__(self, run: Path, problems: Problems) -> None:
        self._run = run
        self._problems = problems
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._files: dict[str, OffsetsFile] = {}
        self._known: set[str] = set()  # index files that were opened, or that are not to be opened again
        self._verified: set[str] = set()
        self._recent: dict[str, Place] = {}
        self._recent_problems = Problems()
        self._recent_bytes = 0
        self._unreadable: dict[str, int] = {}  # by file, from where on the disk gave no answer
        self._covered_by_files: dict[str, int] = {}
        self._cursor: Cursor | None = None

    def find(self, rollout: str) -> Place | None:
        """Where the first line with this id is."""
        with self._guard():
            if not self._files:
                self._open_files()
            place = self._look(rollout)
            for look_further in (self._update, self._verify):
                if place is None:
                    look_further()
                    place = self._look(rollout)
            return place

    def knows(self, rollout: str) -> bool:
        """Whether what was looked through before says where it is; nothing is looked through for it."""
        with self._guard():
            if not self._files:
                self._open_files()
            return self._look(rollout) is not None

    def distrust(self, rollout: str) -> None:
        """Drop what says where this rollout is, because it is not there; the next search looks at the segments."""
        with self._guard():
            for name, file in list(self._files.items()):
                with contextlib.suppress(sqlite3.Error):
                    if _find(file, rollout) is not None:
                        self._drop(name)
            self._start_over()

    def update(self) -> None:
        """Bring the index up to what is in the segments."""
        with self._guard():
            self._update()

    def close(self) -> None:
        """Give back the files; whoever asks again has them opened again."""
        with self._guard():
            for file in self._files.values():
                file.close()
            self._forget()

    def _guard(self) -> threading.Lock:
        """The lock; in a process that was forked from the one before, another, for nobody may be left to release it."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._forget()
        return self._lock

    def _forget(self) -> None:
        self._files = {}
        self._known = set()
        self._verified = set()
        self._start_over()

    def _look(self, rollout: str) -> Place | None:
        places = []
        for name, file in list(self._files.items()):
            try:
                place = _find(file, rollout)
            except sqlite3.Error:  # damaged, or cannot be read now: what it covers is looked through
                self._drop(name, deletes=file.path is not None and is_damaged(file.path))
                self._start_over()
            else:
                places += [] if place is None else [place]
        if rollout in self._recent:
            places.append(self._recent[rollout])
        return min(places, default=None)

    def _open_files(self) -> None:
        """Open the index files that came since; a damaged one is deleted."""
        for _ in range(_TRIES):  # one that is gone was absorbed into one that was not there yet
            new = [path for path in find_files(self._run / CACHE) if path.name not in self._known]
            opened = [self._open_file(path) for path in new]
            if all(opened):
                return

    def _open_file(self, path: Path) -> bool:
        self._known.add(path.name)
        try:
            file = OffsetsFile.open(path)
        except (sqlite3.Error, OSError, ValueError, TypeError):
            if is_damaged(path):
                _delete(path)
            return False
        self._files[path.name] = file
        for problem in file.problems:
            self._problems.report(problem)
        return True

    def _verify(self) -> None:
        """Read each index file whole, once; where one is damaged, look at the segments again."""
        unsound = [
            name
            for name, file in self._files.items()
            if name not in self._verified and file.path is not None and is_damaged(file.path)
        ]
        self._verified.update(self._files)
        for name in unsound:
            self._drop(name)
        if unsound:
            self._start_over()
            self._update()

    def _drop(self, name: str, deletes: bool = True) -> None:
        file = self._files.pop(name)
        file.close()
        if file.path is not None and deletes:
            _delete(file.path)

    def _start_over(self) -> None:
        """Forget what is not in files, and how far the segments were read."""
        self._cursor = None
        self._recent = {}
        self._recent_problems = Problems()
        self._recent_bytes = 0
        self._unreadable = {}

    def _update(self) -> None:
        for folder in (self._run / CACHE, None):
            try:
                self._scan(folder)
            except (OSError, sqlite3.Error):  # the folder cannot be written to, or the disk is full
                self._start_over()
                if folder is None:
                    raise
            except BaseException:
                self._start_over()
                raise
            else:
                return

    def _scan(self, folder: Path | None) -> None:
        """Look through what is new, into memory or, from where it is much, into a new file."""
        cursor = self._cursor or self._begin()
        writer: OffsetsWriter | None = None
        lines: list[tuple[str, Place]] = []
        try:
            for place, line in cursor.read():
                rollout = id_of(line)
                if rollout is None:
                    message = "Expected a rollout record with an id."
                    self._report(Problem(f"{place.file}{PLAIN}", place.offset, message, kind=Kind.INVALID))
                    continue
                lines.append((rollout, place))
                self._recent_bytes += place.length
                if len(lines) + len(self._recent) >= _MOST_LINES or self._recent_bytes >= _MOST_BYTES:
                    if writer is None:
                        writer = OffsetsWriter(folder)
                        writer.add(list(self._recent.items()))
                        self._recent = {}
                    writer.add(lines)
                    lines = []
                    self._recent_bytes = 0
            if writer is None:
                for rollout, place in lines:
                    self._recent.setdefault(rollout, place)
            else:
                writer.add(lines)
                self._finish(writer, cursor)
        except BaseException:
            if writer is not None:
                writer.abandon()
            raise

    def _begin(self) -> Cursor:
        """A cursor that starts where the index files end."""
        self._open_files()
        covered: dict[str, int] = {}
        for stretch in merge_ranges(stretch for file in self._files.values() for stretch in file.ranges):
            if stretch.first == 0:
                covered[stretch.file] = stretch.last
        self._covered_by_files = dict(covered)
        self._cursor = Cursor(self._run, ROLLOUTS, self._report, covered, self._problems.settle)
        return self._cursor

    def _report(self, problem: Problem) -> None:
        self._problems.report(problem)
        if problem.kind is Kind.UNREADABLE and problem.offset is not None:
            self._unreadable.setdefault(without_ending(problem.file), problem.offset)
        elif not problem.passing and problem.offset is not None:
            self._recent_problems.report(problem)

    def _finish(self, writer: OffsetsWriter, cursor: Cursor) -> None:
        """Put the new file in place, together with all smaller ones: so there are few, and each grows by doubling."""
        # What the disk did not give is not covered, nor is what follows it: the next reader tries again.
        covered = {file: min(end, self._unreadable.get(file, end)) for file, end in cursor.covered.items()}
        ranges = [
            Range(file, self._covered_by_files.get(file, 0), end)
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
        self._recent_problems = Problems()
        self._recent_bytes = 0

    def _absorb_smaller(self, writer: OffsetsWriter) -> list[str]:
        absorbed: list[str] = []
        for name, file in sorted(self._files.items(), key=lambda item: item[1].size):
            if file.size > 2 * writer.size or not writer.is_shared:
                break
            if file.path is not None and is_sound(file.path):
                writer.absorb(file.path, file)
                absorbed.append(name)
        return absorbed


def _find(file: OffsetsFile, rollout: str) -> Place | None:
    """Where a file says that a line is; nowhere, where the id is no text that could be written."""
    try:
        place = file.find(rollout)
    except (ValueError, TypeError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError):
        return None
    return place if place is not None and place.file.count("/") == 1 and place.file.startswith(f"{ROLLOUTS}/") else None


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
