"""A file that grows by whole lines, and is never left with half of one before the next."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path


class Segment:
    """The lines that one writer puts into one folder.

    A line that could not be written whole is cut off again; where that fails too, or where the file was deleted, the
    next line begins a new file.
    """

    def __init__(self, folder: Path, writer: str, name: Callable[[str, int], str]) -> None:
        self._folder = folder
        self._writer = writer
        self._name = name
        self._sequence = 0
        self._descriptor: int | None = None
        self._size = 0
        self._folder_is_synced = True

    def append(self, line: bytes) -> None:
        """Write one whole line, or raise the `OSError` that prevented it and leave nothing of it."""
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            self._abandon()
        descriptor = self._open() if self._descriptor is None else self._descriptor
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BaseException:
            self._cut_off_torn_line(descriptor)
            raise
        self._size += len(line)

    def sync(self) -> None:
        """Return when what was appended would survive a power loss."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)
        if not self._folder_is_synced:
            sync_folder(self._folder)
            self._folder_is_synced = True

    def close(self) -> None:
        """Give back the file; a later `append` begins a new one."""
        if self._descriptor is not None:
            self._abandon()

    def _open(self) -> int:
        path = self._folder / self._name(self._writer, self._sequence)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        self._size = 0
        self._folder_is_synced = False
        return self._descriptor

    def _cut_off_torn_line(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, self._size)
        except OSError:
            self._abandon()

    def _abandon(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        self._sequence += 1
        if descriptor is not None:
            with contextlib.suppress(OSError):  # what it holds may be lost; the reader of the files will see
                os.fsync(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Return when the names in the folder would survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
