"""Writes lines and blobs to disk, and the ledger that counts them. Used by one thread at a time."""

import _thread
import contextlib
import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rolltrace.errors import RolltraceError
from rolltrace.store.blobs import blob_path, write_blob
from rolltrace.store.compression import compress_segment
from rolltrace.store.layout import BLOBS, LEDGER, ROLLOUTS, SCORES, ledger_name, segment_name
from rolltrace.store.ledger import Ledger, LedgerCounter, encode_ledger
from rolltrace.store.safe_files import sync_path
from rolltrace.store.segment_writer import DescriptorRetry, SegmentWriter
from rolltrace.store.write_queue import QueuedLine, SignalSafeEvent
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import utc_now

logger = logging.getLogger(__name__)

LOGGING_SECONDS = 1.0
"""How long `flush` and `close` wait for warnings to be logged: a log handler may hang."""

SYNC_SECONDS = 1.0
"""How often lines and ledger are synced to disk (fsync) while lines arrive."""

HEARTBEAT_SECONDS = 9.0
"""How often the ledger is written while nothing arrives, so that readers can tell that the session is alive."""

_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

MAX_KNOWN_BLOBS = 10_000
"""How many blob names are remembered as written; a forgotten one is compared with its file when it comes again."""

_unlogged: deque[SignalSafeEvent] = deque()


# `threading.Thread.start` and `logging` take locks. A signal handler may have interrupted a thread that holds one; if
# it then waited for a thread that needs the same lock, both would wait without end. So threads are started with
# `_thread`, and the thread that writes to the disk never logs.


def start_thread(action: Callable[[], None]) -> bool:
    """Run an action in a daemon thread; returns False if no thread can be started."""
    try:
        _thread.start_new_thread(action, ())
    except RuntimeError:  # too many threads, or the interpreter is shutting down
        return False
    return True


def log_warning(message: str, *args: Any) -> None:
    """Log a warning in a separate thread."""
    logged = SignalSafeEvent()

    def log() -> None:
        with contextlib.suppress(BaseException):  # a log handler may raise anything
            logger.warning(message, *args)
        logged.set()

    _unlogged.append(logged)
    if not start_thread(log):
        log()


def wait_for_logging() -> None:
    """Wait a short time for warnings that are being logged."""
    deadline = time.monotonic() + LOGGING_SECONDS
    while _unlogged:
        with contextlib.suppress(IndexError):  # another thread was quicker
            _unlogged.popleft().wait(deadline - time.monotonic())


def forget_logging_after_fork() -> None:
    """Drop the parent's logging threads, which a forked process does not have."""
    _unlogged.clear()


class SegmentCompressor:
    """Compresses full segments in the background, one at a time, so that the next lines need not wait."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._paths: deque[Path] = deque()
        self._work_lock = _thread.allocate_lock()
        """Held by the one thread that compresses."""

    def compress(self, path: Path) -> None:
        """Compress a segment in the background. If no thread can be started, it stays uncompressed."""
        self._paths.append(path)
        if not start_thread(self.wait):
            with contextlib.suppress(ValueError):  # another thread has taken it
                self._paths.remove(path)

    def wait(self) -> None:
        """Return when all are compressed; the calling thread compresses those that no other has started."""
        with self._work_lock, contextlib.suppress(IndexError):  # until none is left
            while True:
                self._compress(self._paths.popleft())

    def _compress(self, path: Path) -> None:
        try:
            compress_segment(path)
        except Exception as error:  # noqa: BLE001 - the plain segment is still there, and can be compressed later
            self._on_failure(error)


class DiskWriter:
    """The files of one session. File errors do not raise: they are counted by reason and logged once."""

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        path: Path,
        run: str,
        session: str,
        counter: LedgerCounter,
        segment_bytes: int,
        shown: Path | None = None,
    ) -> None:
        self._path = path
        self._shown = shown or path
        """Names the run in messages."""
        self._run = run
        self._session = session
        self._counter = counter
        self._reported_compression_failures: set[str] = set()
        self._compressor = SegmentCompressor(self._log_compression_failure)
        self._retry = DescriptorRetry()
        self._segments = {
            folder: SegmentWriter(path / folder, session, segment_name, segment_bytes, self._close_segment, self._retry)
            for folder in (ROLLOUTS, SCORES)
        }
        self._ledger = SegmentWriter(path / LEDGER, session, ledger_name, retry=self._retry)
        self.is_closing = False
        """Whether `close` was called; otherwise the ledger says that the session was not closed."""
        self._last_ledger: Ledger | None = None
        self._closed_at: datetime | None = None
        self._ledger_written_at = 0.0
        self.ledger_is_missing = False
        """Whether the last ledger could not be written."""
        self._due = 0.0
        self._written_blobs: dict[str, None] = {}
        self._unsynced_blobs: set[str] = set()

    def write(self, lines: Sequence[QueuedLine]) -> None:
        """Append lines, those of one folder together."""
        lines = self._without_duplicates(lines)
        for line in lines:
            for blob in line.blobs:
                self._write_blob(blob)
        for folder in (ROLLOUTS, SCORES):
            self._append(folder, [line for line in lines if line.folder == folder])

    def sync_if_due(self) -> None:
        """Sync if the last sync was long enough ago."""
        now = self.clock()
        if now >= self._due:
            self._due = now + SYNC_SECONDS
            self.sync()
            if now - self._ledger_written_at >= HEARTBEAT_SECONDS:
                self._write_ledger(even_if_unchanged=True)

    def sync(self) -> None:
        """Sync everything to disk, the ledger last, so that it never counts lines that are not there yet."""
        self._sync_blobs()  # before the lines that refer to them
        for segment in self._segments.values():
            self._sync_segment(segment)
        self._write_ledger()
        self._sync_segment(self._ledger)

    @property
    def has_ledger(self) -> bool:
        """Whether a ledger was stored, so that others know of the session."""
        return self._last_ledger is not None

    def close(self) -> None:
        """Write the final ledger, close the files, and wait for segments that are being compressed."""
        self._counter.closed = self.is_closing
        self._closed_at = utc_now()  # later losses must not extend the session
        self.sync()
        if self.ledger_is_missing:
            self._log_missing_ledger()
        for segment in (*self._segments.values(), self._ledger):
            segment.close()
        self._compressor.wait()

    def write_late_ledger(self) -> None:
        """Write the ledger again after `close`, with the losses since, and close its file."""
        self._write_ledger()
        self._sync_segment(self._ledger)
        self._ledger.close()

    def close_inherited(self) -> None:
        """Close the inherited files of the parent process after a fork, without writing to them."""
        for segment in (*self._segments.values(), self._ledger):
            segment.close_descriptor()

    def count_loss(
        self, field: str, reason: str, what: str, error: Exception | None = None, rollout: str | None = None
    ) -> None:
        """Count a loss under a field of the ledger, and log it; with `rollout`, that one is no longer in flight."""
        self.report_loss(reason, what, error)
        if rollout is None:
            self._counter.count(field, reason)
        else:
            self._counter.settle(rollout, field, reason)

    def drop(self, line: QueuedLine, reason: str, error: Exception | None = None) -> None:
        """Count a line that will not be written, unless it is a duplicate."""
        if line.folder != ROLLOUTS:
            self.count_loss("scores_dropped", reason, "a score", error)
        elif line.is_from_other_session or self._counter.is_open(line.rollout):
            self.count_loss("dropped", reason, "a rollout", error, line.rollout)

    def report_loss(self, reason: str, what: str, error: BaseException | None = None) -> None:
        """Log a loss, once for each reason."""
        if self._counter.count_loss(reason):
            log_warning(
                "Could not record %s in %s: %s. Further losses of this kind are counted in the ledger.",
                what, self._shown, reason if error is None else f"{reason}, {error}",
            )  # fmt: skip

    def _close_segment(self, path: Path) -> None:
        """A segment is full: compress it."""
        self._compressor.compress(path)

    def _without_duplicates(self, lines: Sequence[QueuedLine]) -> list[QueuedLine]:
        """The lines without duplicates: an interrupted caller may hand in a rollout twice."""
        unique, seen = [], set()
        for line in lines:
            if not line.is_from_other_session:
                if line.rollout in seen or not self._counter.is_open(line.rollout):
                    continue
                seen.add(line.rollout)
            unique.append(line)
        return unique

    def _append(self, folder: str, lines: Sequence[QueuedLine]) -> None:
        if not lines:
            return
        try:
            self._segments[folder].append([line.data for line in lines])
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            if len(lines) == 1:
                self.drop(lines[0], _reason(error), error)
            else:  # a smaller line may still fit
                for line in lines:
                    self._append(folder, [line])
        else:
            for line in lines:
                if folder == ROLLOUTS:
                    self._counter.settle(line.rollout, "recorded")
                else:
                    self._counter.count("scores_recorded")

    def _write_blob(self, blob: Blob) -> None:
        if blob.name in self._written_blobs:
            self._written_blobs[blob.name] = self._written_blobs.pop(blob.name)  # most recently used
            return
        try:
            if blob.data is not None:
                self._retry(partial(write_blob, self._path / BLOBS, blob.name, blob.data, self._session))
            elif not self._has_blob(blob.name):
                self.count_loss("blobs_dropped", "no data", "a blob")
                return
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self.count_loss("blobs_dropped", _reason(error), "a blob", error)
        else:
            self._unsynced_blobs.add(blob.name)  # even if another writer wrote it: that one may not have synced it
            self._written_blobs[blob.name] = None
            if len(self._written_blobs) > MAX_KNOWN_BLOBS:
                del self._written_blobs[next(iter(self._written_blobs))]

    def _has_blob(self, name: str) -> bool:
        return blob_path(self._path / BLOBS, name).is_file()

    def _sync_blobs(self) -> None:
        """Sync new blobs, then their folder. Those that fail are retried at the next sync."""
        folder = self._path / BLOBS
        unsynced, self._unsynced_blobs = self._unsynced_blobs, set()
        for name in unsynced:
            try:
                self._retry(partial(sync_path, blob_path(folder, name)))
            except FileNotFoundError as error:  # deleted meanwhile
                self.count_loss("blobs_dropped", _reason(error), "a blob", error)
                self._written_blobs.pop(name, None)
            except OSError as error:
                self._unsynced_blobs.add(name)
                self._count_sync_failure(error)
        try:
            if unsynced:
                self._retry(partial(sync_path, folder))
        except OSError as error:
            self._unsynced_blobs |= unsynced
            self._count_sync_failure(error)

    def _current_ledger(self) -> Ledger:
        ledger = self._counter.ledger(self._run, self._session)
        return ledger if self._closed_at is None else replace(ledger, written_at=self._closed_at)

    def _write_ledger(self, even_if_unchanged: bool = False) -> None:
        ledger = self._current_ledger()
        last = self._last_ledger
        if last is not None and not even_if_unchanged and replace(ledger, written_at=last.written_at) == last:
            return
        try:
            self._append_ledger(encode_ledger(ledger))
        except OSError as error:
            self.ledger_is_missing = True
            self.report_loss(_reason(error), "a line of the ledger", error)
        else:
            self.ledger_is_missing = False
            self._last_ledger = ledger
            self._ledger_written_at = self.clock()

    def _append_ledger(self, line: bytes) -> None:
        try:
            self._ledger.append([line])
        except OSError as error:
            # Only the last line counts, so on a full disk it can overwrite the lines before it.
            if error.errno not in _DISK_FULL_ERRNOS or not self._ledger.overwrite(line):
                raise

    def _log_missing_ledger(self) -> None:
        ledger = self._counter.ledger(self._run, self._session)
        log_warning(
            "Could not write the ledger of %s: %d of %d rollouts are not recorded, and nothing on the disk says so.",
            self._shown, ledger.lost, ledger.dispatched,
        )  # fmt: skip

    def _sync_segment(self, segment: SegmentWriter) -> None:
        try:
            segment.sync()
        except OSError as error:
            self._count_sync_failure(error)

    def _count_sync_failure(self, error: OSError) -> None:
        self.count_loss("sync_failed", _reason(error), "what was written since the last flush", error)

    def _log_compression_failure(self, error: Exception) -> None:
        """Log that a segment could not be compressed. Nothing is lost, and `rolltrace compact` will retry."""
        if _reason(error) not in self._reported_compression_failures:
            self._reported_compression_failures.add(_reason(error))
            log_warning(
                "Could not compress a segment of %s: %s. It stays uncompressed; `rolltrace compact` retries.",
                self._shown, error,
            )  # fmt: skip


def _reason(error: Exception) -> str:
    """A stable name of the error, such as `ENOSPC`."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno {error.errno}")
    return "bad name" if isinstance(error, RolltraceError) else type(error).__name__
