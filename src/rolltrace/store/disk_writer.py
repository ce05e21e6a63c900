"""Brings lines to the disk, and keeps the ledger of what became of them; one thread at a time."""

import errno
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from rolltrace.errors import RolltraceError
from rolltrace.store.background import SegmentCompressor, log_in_thread
from rolltrace.store.blobs import blob_path, write_blob
from rolltrace.store.descriptors import DescriptorRetry
from rolltrace.store.layout import BLOBS, LEDGER, ROLLOUTS, SCORES, ledger_name, segment_name
from rolltrace.store.ledger import Ledger, LedgerCounter, encode_ledger
from rolltrace.store.segment_writer import SegmentWriter, sync_file, sync_folder
from rolltrace.store.write_queue import QueuedLine
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import utc_now

logger = logging.getLogger(__name__)

SYNC_SECONDS = 1.0
"""How old the ledger on disk, and what was not yet brought to the disk, may grow while lines come."""

HEARTBEAT_SECONDS = 9.0
"""How old the ledger on disk may grow while nothing comes, so that readers can tell a session that is alive."""

_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_KNOWN_BLOBS = 10_000
"""How many names of blobs are remembered as kept; one that is forgotten is compared again when it comes again."""


class DiskWriter:
    """The files of one session. Nothing that goes wrong with a file raises: it is counted by reason, and told once."""

    def __init__(self, path: Path, run: str, session: str, tally: LedgerCounter, segment_bytes: int) -> None:
        self._path = path
        self._run = run
        self._session = session
        self._tally = tally
        self._unsealed_told: set[str] = set()
        self._sealer = SegmentCompressor(self._log_compression_failure)
        self._retry = DescriptorRetry()
        self._segments = {
            folder: SegmentWriter(path / folder, session, segment_name, segment_bytes, self._sealer.seal, self._retry)
            for folder in (ROLLOUTS, SCORES)
        }
        self._ledger = SegmentWriter(path / LEDGER, session, ledger_name, retry=self._retry)
        self.is_closing = False
        """Whether the writer ends as it should; else nobody has closed it."""
        self._last_ledger: Ledger | None = None
        self._closed_at: datetime | None = None
        self._ledger_written_at = 0.0
        self.ledger_is_missing = False
        """Whether the last ledger could not be written."""
        self._due = 0.0
        self._written_blobs: dict[str, None] = {}
        self._unsynced_blobs: set[str] = set()

    def write(self, jobs: Sequence[QueuedLine]) -> None:
        """Write lines; those of one folder in one go."""
        jobs = self._without_duplicates(jobs)
        for job in jobs:
            for blob in job.blobs:
                self._write_blob(blob)
        for folder in (ROLLOUTS, SCORES):
            self._append(folder, [job for job in jobs if job.folder == folder])

    def sync_if_due(self) -> None:
        """Bring to the disk what has waited long enough."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + SYNC_SECONDS
            self.sync()
            if now - self._ledger_written_at >= HEARTBEAT_SECONDS:
                self._write_ledger(even_if_same=True)

    def sync(self) -> None:
        """Bring everything to the disk, the ledger last, so that it never speaks of lines that are not there yet."""
        self._sync_blobs()  # before the lines that name them
        for segment in self._segments.values():
            self._sync_segment(segment)
        self._write_ledger()
        self._sync_segment(self._ledger)

    def close(self) -> None:
        """Write the final ledger, give back the files, and wait for segments that are being sealed."""
        self._tally.closed = self.is_closing
        self._closed_at = utc_now()  # what is lost later does not make the session longer
        self.sync()
        if self.ledger_is_missing:
            self._tell_missing_ledger()
        for segment in (*self._segments.values(), self._ledger):
            segment.close()
        self._sealer.wait()

    def write_late_ledger(self) -> None:
        """Write the ledger after `close`, with what was lost since, and give back its file."""
        self._write_ledger()
        self._sync_segment(self._ledger)
        self._ledger.close()

    def close_inherited(self) -> None:
        """Forget files that belong to another process, from which this one was forked."""
        for segment in (*self._segments.values(), self._ledger):
            segment.close_inherited()

    def report_loss(self, reason: str, what: str, error: BaseException | None = None) -> str:
        """Tell of a loss, once for each reason; returns the reason."""
        if self._tally.count_loss(reason):
            log_in_thread(
                logger,
                "Could not record %s in %s: %s. Further losses of this kind are counted in the ledger.",
                what, self._path, reason if error is None else f"{reason}, {error}",
            )  # fmt: skip
        return reason

    def _without_duplicates(self, jobs: Sequence[QueuedLine]) -> list[QueuedLine]:
        """The jobs without those of a rollout that was handed in before; an interrupted caller may try again."""
        once, seen = [], set()
        for job in jobs:
            if not job.is_from_other_session:
                if job.rollout in seen or not self._tally.is_open(job.rollout):
                    continue
                seen.add(job.rollout)
            once.append(job)
        return once

    def _append(self, folder: str, jobs: Sequence[QueuedLine]) -> None:
        if not jobs:
            return
        try:
            self._segments[folder].append([job.data for job in jobs])
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            if len(jobs) == 1:
                self._drop(jobs[0], self.report_loss(_reason(error), _what(folder), error))
            else:  # some of them may still fit
                for job in jobs:
                    self._append(folder, [job])
        else:
            for job in jobs:
                self._tally.record(job.rollout) if folder == ROLLOUTS else self._tally.count_score()

    def _drop(self, job: QueuedLine, reason: str) -> None:
        if job.folder == ROLLOUTS:
            self._tally.drop(job.rollout, reason)
        else:
            self._tally.drop_score(reason)

    def _write_blob(self, blob: Blob) -> None:
        if blob.name in self._written_blobs:
            self._written_blobs[blob.name] = self._written_blobs.pop(blob.name)  # the last to be forgotten
            return
        try:
            if blob.data is not None:
                self._retry(partial(write_blob, self._path / BLOBS, blob.name, blob.data, self._session))
            elif not blob_path(self._path / BLOBS, blob.name).is_file():
                self._tally.drop_blob(self.report_loss("no data", "a blob"))
                return
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.drop_blob(self.report_loss(_reason(error), "a blob", error))
        else:
            self._unsynced_blobs.add(blob.name)  # also one of another writer, who may not have brought it to the disk
            self._written_blobs[blob.name] = None
            if len(self._written_blobs) > _KNOWN_BLOBS:
                del self._written_blobs[next(iter(self._written_blobs))]

    def _sync_blobs(self) -> None:
        """Bring new blobs to the disk, then their names, all at once; those that fail are tried again."""
        folder = self._path / BLOBS
        unsafe, self._unsynced_blobs = self._unsynced_blobs, set()
        for name in unsafe:
            try:
                self._retry(partial(sync_file, blob_path(folder, name)))
            except FileNotFoundError as error:  # deleted meanwhile
                self._tally.drop_blob(self.report_loss(_reason(error), "a blob", error))
                self._written_blobs.pop(name, None)
            except OSError as error:
                self._unsynced_blobs.add(name)
                self._miss_sync(error)
        try:
            if unsafe:
                self._retry(partial(sync_folder, folder))
        except OSError as error:
            self._unsynced_blobs |= unsafe
            self._miss_sync(error)

    def _write_ledger(self, even_if_same: bool = False) -> None:
        ledger = self._tally.ledger(self._run, self._session)
        if self._closed_at is not None:
            ledger = replace(ledger, at=self._closed_at)
        last = self._last_ledger
        if last is not None and not even_if_same and replace(ledger, at=last.at) == last:
            return
        try:
            self._append_ledger(encode_ledger(ledger))
        except OSError as error:
            self.ledger_is_missing = True
            self.report_loss(_reason(error), "a line of the ledger", error)
        else:
            self.ledger_is_missing = False
            self._last_ledger = ledger
            self._ledger_written_at = time.monotonic()

    def _append_ledger(self, line: bytes) -> None:
        try:
            self._ledger.append([line])
        except OSError as error:
            # The last line is all that counts, and the room of those before it is there even on a full disk.
            if error.errno not in _DISK_FULL_ERRNOS or not self._ledger.overwrite(line):
                raise

    def _tell_missing_ledger(self) -> None:
        ledger = self._tally.ledger(self._run, self._session)
        log_in_thread(
            logger,
            "Could not write the ledger of %s: %d of %d rollouts are not recorded, and nothing on the disk says so.",
            self._path, ledger.lost, ledger.dispatched,
        )  # fmt: skip

    def _sync_segment(self, segment: SegmentWriter) -> None:
        try:
            segment.sync()
        except OSError as error:
            self._miss_sync(error)

    def _miss_sync(self, error: OSError) -> None:
        self._tally.count_unsynced(self.report_loss(_reason(error), "what was written since the last flush", error))

    def _log_compression_failure(self, error: Exception) -> None:
        """Nothing is lost: the plain segment stands, and `rolltrace compact` will try again."""
        if _reason(error) not in self._unsealed_told:
            self._unsealed_told.add(_reason(error))
            log_in_thread(logger, "Could not seal a segment of %s: %s. It stays as it is.", self._path, error)


def _what(folder: str) -> str:
    return "a rollout" if folder == ROLLOUTS else "a score"


def _reason(error: Exception) -> str:
    """A stable name for what went wrong, such as `ENOSPC`."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno {error.errno}")
    return "bad name" if isinstance(error, RolltraceError) else type(error).__name__
