"""Records a run in an object store: lines are written to a local spool, and its files are uploaded."""

import contextlib
import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from rolltrace.errors import RolltraceError
from rolltrace.store.cache_key import user_cache_folder
from rolltrace.store.compression import compress_segment
from rolltrace.store.disk_writer import HEARTBEAT_SECONDS, SYNC_SECONDS, DiskWriter, log_warning
from rolltrace.store.layout import (
    BLOBS,
    COMPRESSED_SUFFIX,
    FOLDERS,
    LEDGER,
    PLAIN_SUFFIX,
    ROLLOUTS,
    SCORES,
    ledger_name,
    strip_extension,
)
from rolltrace.store.ledger import Ledger, LedgerCounter, encode_ledger
from rolltrace.store.object_files import ObjectFiles
from rolltrace.store.write_queue import QueuedLine
from rolltrace.temp_folders import FileLock

CLOSE_BYTES = 1 << 20
"""A segment of this size is closed when it is uploaded; a smaller one grows, and is uploaded again."""
MAX_UPLOAD_RATIO = 3
"""How many bytes are uploaded at most for each byte that is recorded: segments are closed early to ensure it."""
UPLOAD_SECONDS = 2.0
"""How often files are uploaded while lines arrive."""
MAX_UPLOAD_SECONDS = 10.0
"""How often in a session that is old, or one of many, so that a run has fewer objects, and they can be listed."""
AGE_FRACTION = 1 / 600
"""A session that is older waits for this fraction of its age."""
UPLOADS_PER_SECOND = 50
"""How many sessions may upload in one second; if there are more, each waits longer."""
COUNT_SECONDS = 60.0
"""How long after its start a session counts the others, and then after twice that, and so on."""
RETRY_SECONDS = 30.0
"""How long after a failure only `flush` and `close` upload; lines wait in the spool."""
SPOOL_BYTES = 4 << 30
"""How many bytes may wait in the spool; further lines are dropped, and counted."""

_LOCK = "lock"


class UploadingDiskWriter(DiskWriter):
    """The files of one session of a run in an object store.

    Each file is uploaded under its own name, and deleted from the spool when it is closed and uploaded. A file that is
    uploaded again, by this process or after it was killed, replaces an object with the same or fewer lines.
    """

    def __init__(self, address: Path, run: str, session: str, counter: LedgerCounter, segment_bytes: int) -> None:
        self._files = ObjectFiles(address)
        self._spool = user_cache_folder() / "spool" / f"{run}-{session}"
        self._lock = FileLock(self._spool / _LOCK)
        self._has_spool = False
        super().__init__(self._spool, run, session, counter, segment_bytes, shown=address)
        self._sizes: dict[Path, int] = {}
        """By file that was uploaded and may grow, its size then."""
        self._recorded_bytes = 0
        self._uploaded_bytes = 0
        self._waiting_bytes = 0
        """How much was recorded since the last upload."""
        self._uploaded_rollouts = 0
        self._deleted_rollouts = 0
        """Rollouts that were in the spool when it was deleted."""
        self._uploaded_ledger: Ledger | None = None
        self._ledger_uploaded_at = 0.0
        self._next_upload = 0.0
        self._sessions = 1
        """How many sessions write the run, when they were counted last."""
        self._count_seconds = COUNT_SECONDS
        self._opened_at = self.clock()
        self._next_count = self._opened_at + COUNT_SECONDS

    def write(self, lines: Sequence[QueuedLine]) -> None:
        """Append lines to the spool, unless too much waits there."""
        size = sum(len(line.data) + sum(len(blob.data or b"") for blob in line.blobs) for line in lines)
        if self._waiting_bytes + size > SPOOL_BYTES or not self._make_spool():
            for line in self._without_duplicates(lines):
                self.drop(line, "spool full" if self._has_spool else "no spool")
            return
        self._recorded_bytes += size
        self._waiting_bytes += size
        super().write(lines)

    def sync_if_due(self) -> None:
        """Sync the spool every second, and upload every few seconds."""
        now = self.clock()
        if now >= self._due:
            self._due = now + SYNC_SECONDS
            if self._make_spool():
                super().sync()
            if now >= self._next_upload:
                self._upload()

    def sync(self) -> None:
        """Sync the spool, and upload everything; a failure is counted."""
        if self._make_spool():
            super().sync()
        self._upload()

    @property
    def has_ledger(self) -> bool:
        """Whether a ledger was uploaded, so that others know of the session."""
        return self._uploaded_ledger is not None

    def close(self) -> None:
        """Upload everything with the final ledger, and remove the spool; what cannot be uploaded stays in it."""
        super().close()
        self._lock.release()
        if self._waiting_bytes or self.ledger_is_missing:
            log_warning(
                "What could not be uploaded to %s is in %s: the next session of this run on this machine uploads it.",
                self._files.path, self._spool,
            )  # fmt: skip
        else:
            shutil.rmtree(self._spool, ignore_errors=True)
            with contextlib.suppress(OSError, RolltraceError):  # of forked and killed processes
                upload_leftovers(self._files, self._run)

    def write_late_ledger(self) -> None:
        """Upload the ledger again after `close`, with the losses since."""
        self._upload_ledger()

    def _make_spool(self) -> bool:
        """Whether there is a spool, which is made when it is first needed, and again if it was deleted."""
        if self._has_spool and not self._lock.path.exists():
            self._handle_deleted_spool()
        while not self._has_spool:
            try:
                for folder in FOLDERS:
                    (self._spool / folder).mkdir(parents=True, exist_ok=True, mode=0o700)
                self._lock.acquire(waits=True)
                self._has_spool = self._lock.path.exists()  # else another process took it for a leftover
                if not self._has_spool:
                    self._lock.release()
            except OSError as error:
                self._count_sync_failure(error)
                break
        return self._has_spool

    def _handle_deleted_spool(self) -> None:
        """Count what waited there as never uploaded: other code has deleted the cache directory."""
        self._lock.release()
        self._has_spool = False
        self._sizes.clear()
        self._deleted_rollouts = self._counter.ledger(self._run, self._session).recorded - self._uploaded_rollouts
        if self._waiting_bytes:
            self._count_sync_failure(FileNotFoundError(errno.ENOENT, "The spool was deleted", str(self._spool)))

    def _close_segment(self, path: Path) -> None:
        """It is compressed when it is uploaded."""

    def _has_blob(self, name: str) -> bool:
        try:
            return super()._has_blob(name) or self._files.size(f"{BLOBS}/{name}") >= 0
        except FileNotFoundError:
            return False

    def _sync_blobs(self) -> None:
        """Sync those of the spool. Others that lines name are in the store already."""
        with contextlib.suppress(OSError):  # the spool was deleted, as the sync itself finds
            self._unsynced_blobs &= {path.name for path in (self._spool / BLOBS).iterdir()}
        super()._sync_blobs()

    def _upload(self) -> None:
        """Upload what is new: blobs before the lines that refer to them, and the ledger last."""
        recorded = self._counter.ledger(self._run, self._session).recorded
        try:
            for path in _in_order(self._spool / BLOBS):
                self._put(path, BLOBS)
                path.unlink()
            for folder in (ROLLOUTS, SCORES):
                self._upload_segments(folder)
        except OSError as error:
            self._count_sync_failure(error)
            self._next_upload = self.clock() + RETRY_SECONDS
        else:
            self._uploaded_rollouts = recorded - self._deleted_rollouts
            self._waiting_bytes = 0
            self._next_upload = self.clock() + self._upload_seconds()
        self._upload_ledger()

    def _upload_seconds(self) -> float:
        """How long to wait until the next upload: longer if the session is old, or one of many."""
        now = self.clock()
        if now >= self._next_count:
            self._count_seconds *= 2
            self._next_count = now + self._count_seconds
            ledgers = [file.changed for file in self._files.existing(LEDGER)]
            alive = max(ledgers, default=0) - COUNT_SECONDS * 1e9
            self._sessions = sum(changed >= alive for changed in ledgers)
        seconds = max(self._sessions / UPLOADS_PER_SECOND, (now - self._opened_at) * AGE_FRACTION, UPLOAD_SECONDS)
        return min(seconds, MAX_UPLOAD_SECONDS)

    def _upload_segments(self, folder: str) -> None:
        """Upload the segments of a folder in order, and close the open one if it is large or cost too many bytes."""
        segment = self._segments[folder]
        if (size := segment.open_size) >= CLOSE_BYTES:
            segment.rotate()
        for path in _in_order(self._spool / folder):
            if path != segment.open_path:
                self._upload_closed(path, folder)
            elif size and self._sizes.get(path) != size:
                self._put(path, folder)
                self._sizes[path] = size
                if self._uploaded_bytes + size > MAX_UPLOAD_RATIO * self._recorded_bytes:
                    segment.rotate()  # the next upload need not repeat its lines

    def _upload_closed(self, path: Path, folder: str) -> None:
        size = path.stat().st_size
        if size and self._sizes.get(path) != size:
            # An object with the plain file would be read instead of a compressed one.
            if size >= CLOSE_BYTES and path not in self._sizes and path.name.endswith(PLAIN_SUFFIX):
                path = compress_segment(path)
            self._put(path, folder)
        path.unlink()
        self._sizes.pop(path, None)

    def _put(self, path: Path, folder: str) -> None:
        size = path.stat().st_size
        self._uploaded_bytes += size
        self._files.put(f"{folder}/{path.name}", path if size > CLOSE_BYTES else path.read_bytes())

    def _upload_ledger(self) -> None:
        """Upload the last line of the ledger, which is the only one that counts."""
        ledger = self._current_ledger()
        ledger = replace(ledger, not_uploaded=ledger.recorded - self._uploaded_rollouts)
        last, now = self._uploaded_ledger, self.clock()
        is_changed = last is None or replace(ledger, written_at=last.written_at) != last
        if not is_changed and now - self._ledger_uploaded_at < HEARTBEAT_SECONDS:
            return
        try:
            self._files.put(f"{LEDGER}/{ledger_name(self._session, 0)}", encode_ledger(ledger))
        except OSError as error:
            self.ledger_is_missing = True
            self._count_sync_failure(error)
        else:
            self.ledger_is_missing = False
            self._uploaded_ledger, self._ledger_uploaded_at = ledger, now


def upload_leftovers(files: ObjectFiles, run: str) -> None:
    """Upload what sessions of this run on this machine left in the spool when they were killed; raises `OSError`."""
    for session in sorted((user_cache_folder() / "spool").glob(f"{run}-*")):
        lock = FileLock(session / _LOCK)
        with contextlib.suppress(FileNotFoundError):  # another process has just uploaded it
            if not lock.acquire(flags=0):
                continue  # it is alive
            try:
                _upload_session(files, session)
                shutil.rmtree(session, ignore_errors=True)
            finally:
                lock.release()


def _upload_session(files: ObjectFiles, spool: Path) -> None:
    for folder in (BLOBS, ROLLOUTS, SCORES):
        paths = _in_order(spool / folder)
        names = {path.name for path in paths}
        for path in paths:
            compressed = f"{strip_extension(path.name)}{COMPRESSED_SUFFIX}"
            if folder == BLOBS or path.name == compressed or compressed not in names:
                files.put(f"{folder}/{path.name}", path)
    for path in _in_order(spool / LEDGER):
        lines = path.read_bytes().splitlines(keepends=True)
        if whole := [line for line in lines if line.endswith(b"\n")]:
            files.put(f"{LEDGER}/{path.name}", whole[-1])


def _in_order(folder: Path) -> list[Path]:
    """The files of a folder in the order in which they were written, without those that are being written."""
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(paths, key=lambda path: (len(strip_extension(path.name)), path.name))
