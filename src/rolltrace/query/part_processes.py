"""Makes the parts of a long run in several processes, newest segments first, while the caller goes on."""

import contextlib
import fcntl
import gc
import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import StorageError, WorkerError
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from rolltrace.query.duckdb_engine import EngineLimits, QueryDeadline, connect
from rolltrace.query.part_writer import BATCH_BYTES, PartBuilder, ranges_between
from rolltrace.query.parts import Part, PartInfo
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import CACHE
from rolltrace.store.read_errors import ReadError
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import RunFiles
from rolltrace.store.safe_files import refuse_link
from rolltrace.store.segment_reader import SegmentEntry, existing_segments

if TYPE_CHECKING:
    import duckdb

_COMPRESSION = 4
"""About how many times smaller a compressed segment is."""
_LIMITS = EngineLimits("512MB", threads=1)
_POLL_SECONDS = 0.1


class BuiltPart(msgspec.Struct):
    """What a process has made of some segments."""

    path: str
    info: PartInfo | None
    """None if no line has rows."""
    covered: dict[str, int]
    errors: list[ReadError]

    @property
    def part(self) -> Part | None:
        """The part, which is private."""
        return None if self.info is None else Part(Path(self.path), self.info)


class PartProcesses:
    """Processes that make the parts of one folder."""

    def __init__(self, files: RunFiles, folder: str, private: Path, is_partial: bool) -> None:
        self._files = files
        self._folder = folder
        self._private = private
        self._is_partial = is_partial
        self._pool: ProcessPool | None = None
        self._batches: dict[Future[bytes], dict[str, int]] = {}
        """By call, the segments that it reads and their lengths."""
        self._tried: set[str] = set()
        """Segments that a process has read, or failed to read."""
        self._count = 0
        self._waits = False
        """Whether another process had the lock at the last look."""
        self._lock = FileLock(files.path / CACHE / f".{folder}.lock")
        self.pending: dict[str, int] = {}
        """The segments that are being read, and their lengths."""

    def start(self, covered: dict[str, int]) -> bool:
        """Start to read the segments that were not read yet, if they are enough for several parts.

        False if another process is making parts of this run, or was until now: the caller looks for them, and calls
        this again. `pending` has what is left to the other process.
        """
        if not self._batches:
            self.pending = {}
        batches = self._unread(covered)
        if not batches or (len(batches) == 1 and not self._waits):
            if not self._batches:
                self._lock.release()
            return True
        waited, self._waits = self._waits, not self._lock.acquire()
        if waited or self._waits:
            self.pending = {file: length for batch in batches for file, length in batch.items()}
            return False
        if self._pool is None:
            self._pool = ProcessPool(ProcessSettings(memory_bytes=None))
        for batch in batches:
            path = self._private / f"{self._folder}-batch-{self._count}"
            self._count += 1
            call = self._pool.submit(_build, self._files, self._folder, list(batch), str(path))
            self._batches[call] = batch
            self._tried |= batch.keys()
            self.pending |= batch
        if self._is_partial:  # the caller may never ask for the parts
            for call in self._batches:
                call.add_done_callback(self._release_if_done)
        return True

    def _release_if_done(self, _: object) -> None:
        """Let another process have the lock when everything is made."""
        if all(call.done() for call in self._batches):
            self._lock.release()

    def forget(self) -> None:
        """Let processes read segments again that they have read before, because a part was damaged."""
        self._tried = set(self.pending)

    def _unread(self, covered: dict[str, int]) -> list[dict[str, int]]:
        return _batches(self._folder, existing_segments(self._files, self._folder), {*covered, *self._tried})

    def finished(self, deadline: QueryDeadline, *, waits: bool) -> Iterator[BuiltPart]:
        """What was made since the last call; with `waits`, until everything is made."""
        while self._batches:
            deadline.check()
            done, _ = wait(self._batches, _POLL_SECONDS if waits else 0, FIRST_COMPLETED)
            for call in done:
                for file in self._batches.pop(call):
                    del self.pending[file]
                with contextlib.suppress(WorkerError):  # it was killed: the caller reads these segments itself
                    yield msgspec.json.decode(call.result(), type=BuiltPart)
            if not done and not waits:
                return
        if self._pool is not None:
            self._pool.stop()
            self._pool = None
            self._lock.release()

    def close(self) -> None:
        """Kill the processes."""
        self._batches, self.pending = {}, {}
        if self._pool is not None:
            self._pool.kill()
            self._pool = None
        self._lock.release()


class FileLock:
    """A lock that one process holds, until it releases it or dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Whether this process has the lock now. Where no file can be made, it always has."""
        if self._descriptor is not None:
            return True
        try:
            refuse_link(self._path.parent).mkdir(exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except (OSError, StorageError):
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return not isinstance(error, BlockingIOError)  # some file systems have no locks
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let another process have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _batches(folder: str, entries: list[SegmentEntry], known: set[str]) -> list[dict[str, int]]:
    """The segments that are not known, the newest first, in batches of the size of a part, with their lengths."""
    batches: list[dict[str, int]] = []
    length = 0
    for entry in reversed(entries):
        file = f"{folder}/{entry.stem}"
        if entry.is_regular and file not in known:
            added = estimated_length(entry)
            if not batches or length + added > BATCH_BYTES:
                batches.append({})
                length = 0
            batches[-1][file] = added
            length += added
    return batches


def estimated_length(segment: SegmentEntry) -> int:
    """About how many bytes a segment has, uncompressed."""
    return segment.size * _COMPRESSION if segment.is_compressed else segment.size


@cache
def _worker_connection(private: Path) -> "duckdb.DuckDBPyConnection":
    """The engine of this worker process, which takes a while to start."""
    return connect(private, _LIMITS)


def _build(run: RunFiles, folder: str, files: list[str], path: str) -> bytes:
    """In a worker process: make a part of some segments; returns a `BuiltPart`, encoded."""
    gc.disable()  # nothing here has cycles, and looking for them takes long
    reader, errors = RunReader(run), list[ReadError]()
    cursor = Cursor(run, folder, errors.append, reads=frozenset(files).__contains__)
    private = Path(path)
    builder = PartBuilder(folder, _worker_connection(private.parent), errors.append, reader.decode_score)
    for location, line in cursor.read():
        builder.add(line, location)
    part = builder.write(private, ranges_between({}, cursor.covered))
    return msgspec.json.encode(BuiltPart(path, None if part is None else part.info, cursor.covered, errors))
