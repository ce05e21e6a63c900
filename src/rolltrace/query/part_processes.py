"""Makes the parts of a long run in several processes, newest segments first, while the caller goes on."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import EnvError, WorkerError
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from rolltrace.query.duckdb_engine import EngineLimits, QueryDeadline, connect
from rolltrace.query.part_writer import BATCH_BYTES, PartBuilder, in_batches
from rolltrace.query.table_schema import FOLDER_OF_KIND
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import CACHE, ROLLOUTS
from rolltrace.store.parts import Part, PartInfo
from rolltrace.store.read_errors import ReadError
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import RunFiles
from rolltrace.store.safe_files import refuse_link
from rolltrace.store.segment_reader import SegmentEntry
from rolltrace.temp_folders import FileLock
from rolltrace.trace.ids import new_id

if TYPE_CHECKING:
    import duckdb

_POLL_SECONDS = 0.1
_NOT_MADE = (WorkerError, EnvError, OSError)
"""The errors of a process that was killed, or that did not start."""
Ends = Mapping[str, int]
"""By file, the byte up to which it was read, or is to be read."""
_Batch = dict[str, SegmentEntry]
"""Segments by file, for one part."""
_Built = tuple[dict[str, PartInfo], list[ReadError]]
"""What a process has made of some segments: parts by path, and errors."""


class PartProcesses:
    """Processes that make parts of some kinds from the lines of one folder."""

    def __init__(self, files: RunFiles, kinds: tuple[str, ...], private: Path) -> None:
        self._files = files
        self._kinds = kinds
        self._folder = FOLDER_OF_KIND[kinds[0]]
        self._private = private
        self._pool: ProcessPool | None = None
        self._batches: dict[Future[bytes], _Batch] = {}
        """By call, the segments that it reads."""
        self._tried: set[str] = set()
        """Segments that a process has read, or failed to read."""
        self._lock = FileLock(files.path / CACHE / f".{'-'.join(kinds)}.lock")
        """That of the process that makes these parts. Other processes use what it makes."""
        self._is_elsewhere = False
        """Whether another process had the lock when this one last tried to acquire it."""
        self.pending: _Batch = {}
        """The segments that are being read, or were left to another process or a later `start`."""

    def start(self, segments: Sequence[SegmentEntry], covered: Ends, limits: Ends | None = None) -> bool:
        """Start to read segments that were not read yet, up to `limits`, if they are enough for several parts.

        False if another process makes them, or did until now: the caller looks for its parts, and calls this again.
        `pending` has what is left to the other process.
        """
        if not self._batches:
            self.pending = {}
        batches = self.unread(segments, covered, limits)
        if not batches or (len(batches) == 1 and not self._is_elsewhere):
            if not self._batches:
                self._lock.release()
            return True
        was_elsewhere, self._is_elsewhere = self._is_elsewhere, not acquire_lock(self._lock)
        if was_elsewhere or self._is_elsewhere:
            self.pending |= {file: entry for batch in batches for file, entry in batch.items()}
            return False
        if self._pool is None:
            self._private.mkdir(exist_ok=True)
            self._pool = ProcessPool(ProcessSettings(memory_bytes=None))
        for batch in batches:
            ends = None if limits is None else {file: limits[file] for file in batch}
            self._tried |= batch.keys()
            with contextlib.suppress(*_NOT_MADE):  # the caller reads these segments itself
                entries = list(batch.values())[::-1]  # the oldest first
                call = self._pool.submit(_build, self._files, self._kinds, entries, ends, str(self._private / new_id()))
                self._batches[call] = batch
                self.pending |= batch
        return True

    def defer(self, segments: Sequence[SegmentEntry], covered: Ends) -> None:
        """Leave segments that were not read yet to a later `start`; they are pending, and so are those being read."""
        batches = [*self._batches.values(), *self.unread(segments, covered)]
        self.pending = {file: entry for batch in batches for file, entry in batch.items()}

    def _release_if_done(self, _: object) -> None:
        """Let another process have the lock when everything is made."""
        if all(call.done() for call in list(self._batches)):
            self._lock.release()

    def unread(self, segments: Sequence[SegmentEntry], covered: Ends, limits: Ends | None = None) -> list[_Batch]:
        """Segments that were not read yet, the newest first, in batches of the size of a part.

        They are sorted by time, not by session: then a part of many concurrent writers has rollouts of few iterations.
        """
        by_time = sorted(segments, key=lambda entry: (entry.changed, entry.stem), reverse=True)
        files = {f"{self._folder}/{entry.stem}": entry for entry in by_time if entry.is_regular}
        known = covered.keys() | self._tried
        unread = [file for file in files if file not in known and (limits is None or file in limits)]
        most = BATCH_BYTES if self._folder == ROLLOUTS else BATCH_BYTES // 2  # scores are short, and take more memory
        batches = in_batches(unread, lambda file: files[file].estimated_length, most)
        return [{file: files[file] for file in batch} for batch in batches]

    def finished(
        self, deadline: QueryDeadline, waits: Callable[[], bool]
    ) -> Iterator[tuple[list[Part], list[ReadError]]]:
        """The parts that were made by now, and their errors; more of them as long as `waits` is true."""
        try:
            while self._batches:
                deadline.check()
                done, _ = wait(self._batches, _POLL_SECONDS if waits() else 0, FIRST_COMPLETED)
                for call in done:
                    for file in self._batches.pop(call, {}):  # or it was closed by another thread
                        self.pending.pop(file, None)
                    with contextlib.suppress(*_NOT_MADE):  # the caller reads these segments itself
                        parts, errors = msgspec.json.decode(call.result(), type=_Built)
                        yield [Part(Path(path), info) for path, info in parts.items()], errors
                if self._batches and not waits():
                    return
        finally:
            for call in list(self._batches):  # the caller may never ask for the other parts
                call.add_done_callback(self._release_if_done)
        if self._pool is not None:
            self._pool.stop()
            self._pool = None
            self._lock.release()

    def close(self) -> None:
        """Kill the processes. Later ones may read all segments again."""
        self._batches, self.pending, self._tried = {}, {}, set()
        if self._pool is not None:
            self._pool.kill()
            self._pool = None
        self._lock.release()


def acquire_lock(lock: FileLock) -> bool:
    """Whether this process has the lock, and so does the work; without a file or without locks, every process does."""
    try:
        refuse_link(lock.path.parent).mkdir(exist_ok=True)
        return lock.acquire()
    except OSError:
        return True


@cache
def _worker_connection(private: Path) -> "duckdb.DuckDBPyConnection":
    """The engine of this worker process, which takes a while to start."""
    return connect(private, EngineLimits("512MB", threads=1))


def _build(
    run: RunFiles, kinds: Sequence[str], segments: list[SegmentEntry], limits: dict[str, int] | None, path: str
) -> bytes:
    """In a worker process: make a part of some segments, up to `limits`; returns a `_Built`, encoded."""
    gc.disable()  # looking for cycles takes long while lines are decoded
    reader, errors, folder = RunReader(run), list[ReadError](), FOLDER_OF_KIND[kinds[0]]
    run.prefetch(f"{folder}/{entry.file_name}" for entry in segments)
    cursor = Cursor(run, folder, errors.append, limits=limits, segments=segments)
    builder = PartBuilder(kinds, _worker_connection(Path(path).parent), errors, reader.decode_score)
    for location, line in cursor.read():
        builder.add(line, location)
    parts = builder.write(Path(path), {}, cursor)
    return msgspec.json.encode(({str(part.path): part.info for part in parts}, errors))
