"""Temporary folders. Those that a killed process leaves behind are removed by the next process that makes one."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rolltrace.errors import StorageError, TempFolderError

PREFIX = "rolltrace-"
_LOCK = "lock"
_TRIES = 10
_EMPTY_SECONDS = 3600.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_held: "dict[Path, FileLock]" = {}
"""For each folder, its lock."""
_cleaned: set[str] = set()
"""The parent folders in which abandoned folders were removed."""


class FileLock:
    """A lock that one process holds, until it releases it or dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, flags: int = os.O_CREAT, *, waits: bool = False) -> bool:
        """Whether this process has the lock now; with `waits`, it waits for that. Raises `OSError` without a file."""
        if self._descriptor is None:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let another process have it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked process may still have the descriptor
                os.close(self._descriptor)
            self._descriptor = None


def make_folder() -> Path:
    """Make a folder for this process, to be removed with `remove_folder`, and remove folders of dead processes."""
    try:
        parent = tempfile.gettempdir()
        if parent not in _cleaned:
            _cleaned.add(parent)
            remove_abandoned(Path(parent))
        for _ in range(_TRIES):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            lock = FileLock(folder / _LOCK)
            with contextlib.suppress(FileNotFoundError):  # another process has removed the folder as abandoned
                lock.acquire(os.O_CREAT | os.O_EXCL, waits=True)
                if lock.path.exists():
                    _held[folder] = lock
                    return folder
            lock.release()
    except OSError as error:
        raise temp_folder_error(error) from error
    raise StorageError(f"Expected a temporary folder in {parent}, but each was removed at once by another process.")


def remove_folder(folder: Path) -> None:
    """Remove a folder of `make_folder` and everything in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _held.pop(folder, None)) is not None:
        lock.release()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end of the block."""
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose processes are dead, so that their locks are free."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in [entry for entry in entries if entry.name.startswith(PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_if_abandoned(Path(entry.path), entry.stat(follow_symlinks=False))


@contextlib.contextmanager
def explain_full_disk() -> Iterator[None]:
    """A block in which an error for a full disk becomes a `TempFolderError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise temp_folder_error(error) from error


def is_full_disk(message: str) -> bool:
    """Whether the message of another library's error says that the disk is full."""
    return any(os.strerror(code) in message for code in _FULL)


def temp_folder_error(error: Exception) -> TempFolderError:
    """The error for a temporary folder that is full or cannot be written to."""
    reason = getattr(error, "strerror", None) or str(error)
    where = os.environ.get("TMPDIR") or "the temporary folder"
    return TempFolderError(f"Cannot write to {where}: {reason}. Free space there, or set TMPDIR to another folder.")


def _remove_if_abandoned(folder: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = FileLock(folder / _LOCK)
    try:
        if lock.acquire(flags=0):
            # While this holds the lock, a process that has just made the folder waits for it, and then makes another.
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:  # its process was killed before it made the lock, or is about to make it
        if status.st_mtime < time.time() - _EMPTY_SECONDS:
            folder.rmdir()  # fails if it is not empty
    finally:
        lock.release()
