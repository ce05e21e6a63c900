"""File operations for folders that other processes use: open without waiting, sync, and publish whole files."""

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from rolltrace.errors import RecordError, StorageError

_ABANDONED_SECONDS = 3600.0


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. A pipe is refused, because the reader would wait for it without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RecordError(f"Expected a regular file at {path}.")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def refuse_link(path: Path) -> Path:
    """Return the path unless it is a symbolic link: its target is not part of the run, and must not be changed."""
    if path.is_symlink():
        raise StorageError(
            f"Expected {path} itself, got a link to {os.readlink(path)}: nothing is written or deleted through a link "  # noqa: PTH115 - text
            "inside a run. Put the folder there, or move the whole run and link to that."
        )
    return path


def sync_path(path: Path) -> None:
    """Write a file, whichever process wrote it, or the names in a folder to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unfinished_file(path: Path) -> Iterator[Path]:
    """Delete the file at `path` at the end of the block, unless `publish_file` has moved it."""
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def publish_file(unfinished: Path, path: Path, *, sync: bool = True, overwrite: bool = True) -> None:
    """Give a finished file its name atomically, so that readers see all of it or nothing.

    With `sync`, it survives a power loss from then on. Without `overwrite`, a file that exists is an error.
    """
    if sync:
        sync_path(unfinished)
    if overwrite:
        unfinished.replace(path)
    else:
        _link(unfinished, path)
    if sync:
        sync_path(path.parent)


def _link(source: Path, path: Path) -> None:
    """Give a file a second name; unlike renaming, this never overwrites."""
    try:
        os.link(source, path)
    except FileExistsError:
        raise
    except OSError:  # some file systems have no links
        with path.open("xb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())


def remove_abandoned_files(folder: Path, pattern: re.Pattern[str]) -> None:
    """Delete what processes that died left unfinished: files and folders that have not changed for an hour."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if pattern.fullmatch(path.name) and path.lstat().st_mtime < time.time() - _ABANDONED_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
