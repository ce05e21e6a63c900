"""Temporary folders that do not outlive their process for good: the next command removes those of dead ones."""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rolltrace.errors import StorageError

PREFIX = "rolltrace-"
_LOCK = "lock"
_TRIES = 10
_EMPTY_SECONDS = 3600.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_FULL_IN_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
_held: dict[Path, int] = {}
"""By folder, the descriptor whose lock says that its process is alive; the system gives it back when that dies."""
_swept: set[str] = set()


def make_folder() -> Path:
    """A folder for this process alone, to be removed with `remove_folder`; folders that dead processes left go now."""
    try:
        parent = tempfile.gettempdir()
        if parent not in _swept:
            _swept.add(parent)
            remove_abandoned(Path(parent))
        for _ in range(_TRIES):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            if (lock := _lock_new(folder / _LOCK)) is not None:
                _held[folder] = lock
                return folder
    except OSError as error:
        raise temp_folder_error(error) from error
    raise StorageError(f"Expected a temporary folder in {parent}, and each was removed at once.")


def remove_folder(folder: Path) -> None:
    """Remove a folder of `make_folder` with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _held.pop(folder, None)) is not None:
        with contextlib.suppress(OSError):
            os.close(lock)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the length of a block."""
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose processes are dead: their locks are free. Those of other users are left alone."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in [entry for entry in entries if entry.name.startswith(PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_if_abandoned(Path(entry.path), entry.stat(follow_symlinks=False))


@contextlib.contextmanager
def explain_full_disk() -> Iterator[None]:
    """Within this, a full disk is the temporary folder's, and the error says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise temp_folder_error(error) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _FULL_IN_SQLITE:
            raise
        raise temp_folder_error(error) from error


def temp_folder_error(error: Exception) -> StorageError:
    """The error for a temporary folder that is full or cannot be written to."""
    what = getattr(error, "strerror", None) or str(error)
    where = os.environ.get("TMPDIR") or "the temporary folder"
    return StorageError(f"Cannot write to {where}: {what}. Make room there, or set TMPDIR to a place that has some.")


def _lock_new(path: Path) -> int | None:
    """The locked descriptor of a new file; None where another process took the folder for abandoned meanwhile."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fstat(lock).st_nlink:
        return lock
    os.close(lock)
    return None


def _remove_if_abandoned(folder: Path, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # killed before it was made, or being made
        if status.st_mtime < time.time() - _EMPTY_SECONDS:
            folder.rmdir()  # fails if it is not empty
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under the lock: a process that has just made the folder waits for it, and then makes another.
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
