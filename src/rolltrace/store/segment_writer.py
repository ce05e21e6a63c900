"""A file that grows by whole lines, and is never left with half of one before the next."""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rolltrace.store.descriptors import DescriptorRetry
from rolltrace.store.safe_files import refuse_link, sync_file, sync_folder


class SegmentWriter:
    """The lines that one writer puts into one folder, in one file after the other.

    A line that could not be written whole is cut off again. Where that fails too, where the file was deleted, and
    where somebody closed its descriptor, the next line begins a new file.
    """

    def __init__(
        self,
        folder: Path,
        writer: str,
        name: Callable[[str, int], str],
        full_at: int | None = None,
        on_full: Callable[[Path], None] | None = None,
        retry: DescriptorRetry | None = None,
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._name = name
        self._max_bytes = full_at
        self._on_full = on_full
        self._retry = DescriptorRetry() if retry is None else retry
        self._sequence = 0
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._size = 0
        self._is_synced = True
        self._folder_is_synced = True
        self._closed_file: tuple[int, tuple[int, int], int] | None = None
        """Number, identity and size of the file that `close` gave back."""
        self._failure: OSError | None = None  # that befell a file which was given back; `sync` must tell

    def append(self, lines: Sequence[bytes]) -> None:
        """Write these whole lines, or raise the `OSError` that prevented it and leave nothing of them."""
        data = lines[0] if len(lines) == 1 else b"".join(lines)
        if self._descriptor is not None and not self._is_in_segments():
            self._close_and_advance()
        if self._max_bytes is not None and self._size > 0 and self._size + len(data) > self._max_bytes:
            self._rotate()
        descriptor = self._open() if self._descriptor is None else self._descriptor
        self._is_synced = False
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BaseException:
            self._cut_off_torn_line()
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Return when what was appended would survive a power loss, or raise the `OSError` that may have cost it."""
        try:
            if self._descriptor is not None and not self._is_synced:
                if self._is_in_segments():
                    os.fsync(self._descriptor)
                else:
                    self._close_and_advance()
            self._is_synced = True
        finally:  # one failure tells of all before it
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if not self._folder_is_synced:
            self._retry(partial(sync_folder, self._folder))
            self._folder_is_synced = True

    def overwrite(self, line: bytes) -> bool:
        """Replace all lines by this one, in the room that they have; False if that is not enough, or fails.

        A crash in the middle of it leaves a damaged line, so this is for a disk that takes no more.
        """
        status = self._status()
        if status is None or status.st_nlink == 0 or status.st_blocks * 512 < len(line):
            return False
        try:
            # The descriptor of `append` writes at the end, wherever it is told to write.
            descriptor = self._retry(partial(os.open, self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return False
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self._identity or os.pwrite(descriptor, line, 0) != len(line):
                return False
            os.ftruncate(descriptor, len(line))
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self._size = len(line)
        self._is_synced = False
        return True

    def close(self) -> None:
        """Give back the file; a later `append` goes on in it, if it is still as it was, and else begins a new one."""
        if self._descriptor is not None:
            identity, size = self._identity, self._size
            self._close_and_advance()
            self._closed_file = None if identity is None else (self._sequence - 1, identity, size)

    def close_inherited(self) -> None:
        """Give back a descriptor that was inherited from another process, whose file it is."""
        self._close_descriptor()

    @property
    def _path(self) -> Path:
        return self._folder / self._name(self._writer, self._sequence)

    def _open(self) -> int:
        if self._closed_file is not None and (descriptor := self._reopen(*self._closed_file)) is not None:
            return descriptor
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        refuse_link(self._folder)
        self._descriptor = self._retry(partial(os.open, self._path, flags, 0o666))
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._size = 0
        self._folder_is_synced = False
        return self._descriptor

    def _reopen(self, sequence: int, identity: tuple[int, int], size: int) -> int | None:
        """The file that was given back; None if it is another, or not as it was."""
        self._closed_file = None
        path = self._folder / self._name(self._writer, sequence)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = self._retry(partial(os.open, path, flags))
        except OSError:
            return None
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino, status.st_size) != (*identity, size):
            os.close(descriptor)
            return None
        self._descriptor, self._identity, self._size, self._sequence = descriptor, identity, size, sequence
        return descriptor

    def _status(self) -> os.stat_result | None:
        """What is known of the open file; None where the descriptor no longer means it.

        Whoever closes a descriptor that is not theirs makes its number mean another file: to write to that, to cut it
        or to close it would do damage.
        """
        if self._descriptor is None:
            return None
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == self._identity else None

    def _is_in_segments(self) -> bool:
        """Whether the descriptor means our file, and that still has a name."""
        status = self._status()
        return status is not None and status.st_nlink > 0

    def _rotate(self) -> None:
        path = self._path
        self._close_and_advance()
        if self._on_full is not None:
            self._on_full(path)

    def _cut_off_torn_line(self) -> None:
        if self._descriptor is not None and self._is_in_segments():
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
                return
        self._close_and_advance()

    def _close_and_advance(self) -> None:
        """Give back the file, to begin the next; what may be lost with it is told by the next `sync`."""
        try:
            if not self._is_synced and self._descriptor is not None and self._is_in_segments():
                os.fsync(self._descriptor)
            elif not self._is_synced:
                self._retry(partial(sync_file, self._path))
        except OSError as error:
            self._failure = error
        self._close_descriptor()
        self._is_synced = True
        self._sequence += 1
        self._size = 0

    def _close_descriptor(self) -> None:
        is_ours = self._status() is not None
        descriptor, self._descriptor = self._descriptor, None
        if is_ours and descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
