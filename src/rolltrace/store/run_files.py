"""The files of a run as readers reach them: list a folder, ask for a size, and read a range of bytes."""

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from rolltrace.errors import RecordError

_TRIES = 3


class FileEntry(NamedTuple):
    """A file of a folder."""

    name: str
    size: int
    changed: int = 0
    """When it was last modified, in ns."""
    is_regular: bool = True
    """Whether it is a regular file, and not a directory, a link or a pipe."""
    tag: str = ""
    """Of an object: changes with its contents, also within the second that its time of modification has."""


class RunFiles(ABC):
    """Where the files of a run are. Names are relative to the run, such as `rollouts/SESSION-000000.jsonl`.

    What is missing raises `FileNotFoundError`, and what cannot be read another `OSError`. Objects can be pickled, so
    that several processes can read one run.
    """

    path: Path
    """Names the run in messages. If it is a directory, derived files are stored in it."""

    @abstractmethod
    def list_files(self, folder: str) -> list[FileEntry]:
        """The files of a folder, by name."""

    @abstractmethod
    def size(self, name: str) -> int:
        """The size of a file now. Raises `RecordError` if it is not a regular file."""

    @abstractmethod
    def read(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of a file; fewer at its end."""

    def open(self, name: str) -> "RunFile":
        """Open a file for several reads."""
        return RunFile(self, name)

    def prefetch(self, names: Iterable[str]) -> None:  # noqa: B027 - nothing has to be done
        """Say which files are read next: where that helps, reading begins in the background."""

    def existing(self, folder: str) -> list[FileEntry]:
        """The files of a folder, by name; empty if it cannot be listed."""
        try:
            return self.list_files(folder)
        except OSError:
            return []


class RunFile:
    """A file that is open for reading."""

    def __init__(self, files: RunFiles, name: str) -> None:
        self._files = files
        self.name = name
        self.size = files.size(name)
        """The size when it was opened."""

    def read(self, start: int, length: int) -> bytes:
        """Some bytes; fewer at the end of the file."""
        return self._files.read(self.name, start, length)

    def data_after(self, offset: int) -> int:
        """The offset of the next byte that may differ from zero."""
        return offset

    def close(self) -> None:
        """Close the file."""


class LocalFiles(RunFiles):
    """The files of a run in a directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def list_files(self, folder: str) -> list[FileEntry]:
        """The files of a folder, by name; one that is deleted meanwhile is left out."""
        files: list[FileEntry | None] = []
        for _ in range(_TRIES):
            with os.scandir(self.path / folder) as entries:
                files = [_entry(entry) for entry in entries]
            if None not in files:  # else it may have been compressed, and so renamed
                break
        return sorted(file for file in files if file is not None)

    def size(self, name: str) -> int:
        """The size of a file now."""
        file = self.open(name)
        file.close()
        return file.size

    def read(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of a file."""
        file = self.open(name)
        try:
            return file.read(start, max(min(length, file.size - start), 0))  # memory is reserved for all of it
        finally:
            file.close()

    def open(self, name: str) -> "LocalFile":
        """Open a file; it stays readable if it is deleted."""
        return LocalFile(self.path / name, name)

    def prefetch(self, names: Iterable[str]) -> None:
        """Let the disk read files before they are needed, which matters if there are thousands of them."""
        for name in names if hasattr(os, "posix_fadvise") else ():
            with suppress(OSError, RecordError), closing(self.open(name)) as file:
                file.prefetch()


def _entry(entry: os.DirEntry[str]) -> FileEntry | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # deleted since it was listed
        return None
    return FileEntry(entry.name, status.st_size, status.st_mtime_ns, stat.S_ISREG(status.st_mode))


class LocalFile(RunFile):
    """An open file of a directory."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        # Without blocking: the reader would wait for a pipe of this name without end.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise RecordError("Expected a regular file.")
        self.size = status.st_size

    def read(self, start: int, length: int) -> bytes:
        """Some bytes; fewer at the end of the file."""
        return os.pread(self._descriptor, length, start)

    def prefetch(self) -> None:
        """Let the disk read it in the background."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_WILLNEED)

    def data_after(self, offset: int) -> int:
        """The end of the hole of a sparse file, which costs no time to read."""
        try:
            return min(os.lseek(self._descriptor, offset, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else offset

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
