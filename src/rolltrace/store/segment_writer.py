"""Appends whole lines to segments; a line that fails halfway is removed again."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from rolltrace.store.safe_files import refuse_link, sync_path

Result = TypeVar("Result")

MAX_RETRIES = 200
"""How often in a row to retry: for ten seconds."""

RETRY_SECONDS = 0.05

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorRetry:
    """Retries an action that fails because too many files are open, in this process or in the whole system.

    After `MAX_RETRIES` failures in a row every action is tried only once, until one succeeds.
    """

    def __init__(self) -> None:
        self._failures = 0

    def __call__(self, action: Callable[[], Result]) -> Result:
        """Return the action's result, or raise its error; the action must be safe to repeat."""
        while True:
            try:
                result = action()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS or self._failures >= MAX_RETRIES:
                    raise
                self._failures += 1
                time.sleep(RETRY_SECONDS)
            else:
                self._failures = 0
                return result


class SegmentWriter:
    """Appends the lines of one session to one folder, in one file after the other.

    A line that could not be written whole is truncated again. The next line starts a new file if that fails too, if
    the file was deleted, or if other code closed its descriptor.
    """

    def __init__(
        self,
        folder: Path,
        session: str,
        name: Callable[[str, int], str],
        max_bytes: int | None = None,
        on_full: Callable[[Path], None] | None = None,
        retry: DescriptorRetry | None = None,
    ) -> None:
        self._folder = folder
        self._session = session
        self._name = name
        self._max_bytes = max_bytes
        self._on_full = on_full
        self._retry = DescriptorRetry() if retry is None else retry
        self._sequence = 0
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._size = 0
        self._is_synced = True
        self._folder_is_synced = True
        self._closed_file: tuple[int, tuple[int, int], int] | None = None
        """Sequence number, identity and size of the file that `close` closed."""
        self._sync_error: OSError | None = None
        """Error in syncing a file that is closed now; the next `sync` raises it."""

    def append(self, lines: Sequence[bytes]) -> None:
        """Write these lines. If that fails, raise the `OSError` and leave no part of them in the file."""
        data = lines[0] if len(lines) == 1 else b"".join(lines)
        if self._descriptor is not None and not self._has_file():
            self._close_and_advance()
        if self._max_bytes is not None and self._size > 0 and self._size + len(data) > self._max_bytes:
            self.rotate()
        descriptor = self._open() if self._descriptor is None else self._descriptor
        self._is_synced = False
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BaseException:
            self._truncate_torn_line()
            raise
        self._size += len(data)

    def sync(self) -> None:
        """Write all appended lines to the disk (fsync). An `OSError` means that some of them may be lost."""
        try:
            if self._descriptor is not None and not self._is_synced:
                if self._has_file():
                    os.fsync(self._descriptor)
                else:
                    self._close_and_advance()
            self._is_synced = True
        finally:
            error, self._sync_error = self._sync_error, None
        if error is not None:
            raise error
        if not self._folder_is_synced:
            self._retry(partial(sync_path, self._folder))
            self._folder_is_synced = True

    def overwrite(self, line: bytes) -> bool:
        """Replace all lines by this one, in the space that they occupy; False if that is too small, or fails.

        A crash in the middle of it leaves a damaged line, so this is only for a full disk.
        """
        status = self._status()
        if status is None or status.st_nlink == 0 or status.st_blocks * 512 < len(line):
            return False
        try:
            # The descriptor of `append` is opened with O_APPEND, so it cannot write elsewhere.
            descriptor = self._retry(partial(os.open, self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return False
        try:
            opened = os.fstat(descriptor)
            if (opened.st_dev, opened.st_ino) != self._identity or os.pwrite(descriptor, line, 0) != len(line):
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
        """Close the file. A later `append` continues it if it is unchanged, and starts a new one otherwise."""
        if self._descriptor is not None:
            identity, size = self._identity, self._size
            self._close_and_advance()
            self._closed_file = None if identity is None else (self._sequence - 1, identity, size)

    @property
    def _path(self) -> Path:
        return self._folder / self._name(self._session, self._sequence)

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
        """Open a file that was closed before; None if it was replaced or changed."""
        self._closed_file = None
        path = self._folder / self._name(self._session, sequence)
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
        """The status of the open file; None if the descriptor is no longer that of our file.

        Other code may have closed the descriptor, so that its number now belongs to another file. Writing to that
        file, truncating or closing it would do damage.
        """
        if self._descriptor is None:
            return None
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == self._identity else None

    def _has_file(self) -> bool:
        """Whether the descriptor is that of our file, and the file was not deleted."""
        status = self._status()
        return status is not None and status.st_nlink > 0

    @property
    def open_path(self) -> Path | None:
        """The file that the next line is appended to; None if that is a new one."""
        return None if self._descriptor is None else self._path

    @property
    def open_size(self) -> int:
        """The size of that file."""
        return 0 if self._descriptor is None else self._size

    def rotate(self) -> None:
        """Close the file, so that the next line starts a new one."""
        path = self._path
        self._close_and_advance()
        if self._on_full is not None:
            self._on_full(path)

    def _truncate_torn_line(self) -> None:
        if self._descriptor is not None and self._has_file():
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
                return
        self._close_and_advance()

    def _close_and_advance(self) -> None:
        """Close the file, so that the next line starts a new one. The next `sync` raises the error in syncing it."""
        try:
            if not self._is_synced and self._descriptor is not None and self._has_file():
                os.fsync(self._descriptor)
            elif not self._is_synced:
                self._retry(partial(sync_path, self._path))
        except OSError as error:
            self._sync_error = error
        self.close_descriptor()
        self._is_synced = True
        self._sequence += 1
        self._size = 0

    def close_descriptor(self) -> None:
        """Close the descriptor, if it is still that of our file, without syncing the file."""
        is_ours = self._status() is not None
        descriptor, self._descriptor = self._descriptor, None
        if is_ours and descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
