"""The segments of a folder, plain and sealed: which there are, and reading their bytes."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.compression import FrameReader
from rolltrace.store.layout import COMPRESSED_SUFFIX, PLAIN_SUFFIX, SegmentName, sort_segment_names, strip_extension
from rolltrace.store.lines import FileBlock

__all__ = [
    "COMPRESSED_SUFFIX",
    "PLAIN_SUFFIX",
    "SegmentEntry",
    "SegmentListing",
    "SegmentReader",
    "list_segments",
    "open_segment",
    "scan_segments",
]

_BLOCK_BYTES = 1024 * 1024


class SegmentListing(NamedTuple):
    """What a folder holds."""

    segments: list[str]
    """The names of segments without endings, in order, each once."""
    unexpected: list[str]
    """Names that no segment has."""


def list_segments(folder: Path) -> SegmentListing:
    """The segments of a folder; hidden names are files on their way, and are passed over."""
    segments = set()
    strange = []
    for name in os.listdir(folder):  # noqa: PTH208 - names are all that is needed
        if name.startswith("."):
            continue
        stem = strip_extension(name)
        if stem == name:
            strange.append(name)
        else:
            segments.add(stem)
    return SegmentListing(sort_segment_names(segments), sorted(strange))


class SegmentEntry(NamedTuple):
    """A segment of a folder, and how large its file is."""

    stem: str
    """Its name without an ending."""
    name: SegmentName | None
    """The session and number that the name says; None where no writer would have given it."""
    path: Path
    """Of the file that is read: the plain one, unless only the sealed one is there."""
    size: int
    """Of that file."""
    is_compressed: bool
    """Whether it no longer grows, because only the sealed file is there."""
    is_regular: bool
    """Whether it is a file, and not a directory, a link or a pipe."""


def scan_segments(folder: Path) -> list[SegmentEntry]:
    """The segments of a folder with their sizes, in order; one that goes away meanwhile is left out."""
    found = (_entry(folder, stem) for stem in list_segments(folder).segments)
    return [entry for entry in found if entry is not None]


def _entry(folder: Path, stem: str) -> SegmentEntry | None:
    for ending in (PLAIN_SUFFIX, COMPRESSED_SUFFIX):
        path = folder / f"{stem}{ending}"
        try:
            status = path.lstat()
        except FileNotFoundError:  # sealed already, or just now
            continue
        is_regular = stat.S_ISREG(status.st_mode)
        return SegmentEntry(
            stem, SegmentName.parse(stem), path, status.st_size, ending == COMPRESSED_SUFFIX, is_regular
        )
    return None


class SegmentReader:
    """A segment that is open for reading; its offsets are the same before and after it is sealed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_compressed = path.name.endswith(COMPRESSED_SUFFIX)
        # Without blocking: a pipe of this name would make the reader wait for ever.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("Expected a regular file.")
            self._frames = FrameReader(self._descriptor) if self.is_compressed else None
        except BaseException:
            os.close(self._descriptor)
            raise
        self._plain_size = status.st_size

    @property
    def declared_size(self) -> int:
        """How many bytes it says it has, uncompressed, which is known without a look at them."""
        return self._plain_size if self._frames is None else self._frames.stated_length

    @property
    def size(self) -> int:
        """How many bytes it has, uncompressed, as far as that is known."""
        return self._plain_size if self._frames is None else self._frames.length

    @property
    def seek_table_matches(self) -> bool:
        """Whether what it says of its frames is what they say."""
        return self._frames is None or self._frames.seek_table_matches

    def close(self) -> None:
        """Give back the file."""
        os.close(self._descriptor)

    def blocks(self, offset: int) -> Iterator[FileBlock]:
        """Its bytes from `offset` on, and the places of those that are damaged."""
        return self._plain_blocks(offset) if self._frames is None else self._frame_blocks(self._frames, offset)

    def read(self, offset: int, length: int) -> bytes:
        """Some of its bytes; fewer where it ends before. Damaged ones are refused."""
        if offset < 0:
            return b""
        end = min(offset + length, self.size)
        pieces = []
        while offset < end and (data := self._piece(offset, end - offset)):
            pieces.append(data)
            offset += len(data)
        return b"".join(pieces)

    def _piece(self, offset: int, length: int) -> bytes:
        """Some of the bytes from `offset` on, at least one where there is one."""
        if self._frames is None:
            return os.pread(self._descriptor, min(length, _BLOCK_BYTES), offset)
        for frame in self._frames.holding(offset):
            if frame.offset + frame.length > offset:  # what has no length stands between the bytes that were written
                return self._frames.load(frame)[offset - frame.offset :][:length]
        return b""

    def _plain_blocks(self, offset: int) -> Iterator[FileBlock]:
        while offset < self.size:
            length = min(_BLOCK_BYTES, self.size - offset)
            try:
                data = os.pread(self._descriptor, length, offset)
            except OSError as error:
                yield _bad_place(offset, length, error)
                offset += length
                continue
            if not data:  # it was cut meanwhile
                return
            yield FileBlock(offset, len(data), data)
            offset += len(data)

    def _frame_blocks(self, frames: FrameReader, offset: int) -> Iterator[FileBlock]:
        for frame in frames.holding(offset):
            skipped = max(offset - frame.offset, 0)
            if skipped and skipped >= frame.length:
                continue
            try:
                data = frames.load(frame)[skipped:]
            except OSError as error:
                yield _bad_place(frame.offset + skipped, frame.length - skipped, error)
            except ChecksumError as error:
                yield FileBlock(frame.offset + skipped, frame.length - skipped, b"", str(error))
            else:
                yield FileBlock(frame.offset + skipped, frame.length - skipped, data)


def _bad_place(offset: int, length: int, error: OSError) -> FileBlock:
    """A stretch that the disk cannot read, which costs only itself; any other error may pass, and is raised again."""
    if error.errno != errno.EIO:
        raise error
    return FileBlock(offset, length, b"", error.strerror or str(error), is_unreadable=True)


def open_segment(folder: Path, name: str) -> SegmentReader:
    """A segment's plain file or, where there is none or none any more, the sealed one."""
    try:
        return SegmentReader(folder / f"{name}{PLAIN_SUFFIX}")
    except FileNotFoundError:
        return SegmentReader(folder / f"{name}{COMPRESSED_SUFFIX}")
