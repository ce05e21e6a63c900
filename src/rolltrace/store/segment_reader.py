"""Reads segments, plain and compressed: which there are, their bytes, and the lines in them."""

import errno
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from rolltrace.errors import ChecksumError
from rolltrace.store.compression import FrameReader
from rolltrace.store.layout import COMPRESSED_SUFFIX, PLAIN_SUFFIX, SegmentName, strip_extension
from rolltrace.store.run_files import RunFile, RunFiles
from rolltrace.trace.limits import MAX_LINE_BYTES

_BLOCK_BYTES = 1024 * 1024
_BUFFER_BYTES = 8 * _BLOCK_BYTES
"""How much of a line is kept while its end is searched for."""

TORN = "torn"
"""The error of bytes after the last line feed."""


class FileBlock(NamedTuple):
    """Some bytes of a file, or the error in reading them."""

    offset: int
    length: int
    data: bytes
    """Empty if there is an error, or if all bytes are zero."""
    error: str = ""
    is_unreadable: bool = False
    """Whether the disk failed to read: the data may still be intact."""


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line with its line feed, or a damaged range. Creating a struct is faster than creating a named tuple."""

    offset: int
    end: int
    data: bytes
    """Empty if there is an error, or if the line is so long that it must be read by its offset."""
    error: str = ""
    is_unreadable: bool = False


def split_lines(blocks: Iterable[FileBlock]) -> Iterator[Line]:
    """The lines of consecutive blocks, each as soon as it is complete."""
    pieces: list[bytes] = []  # of the line that starts at `start`
    start = end = 0
    has_hole = False
    for block in blocks:
        if start == end:
            start = block.offset
        end = block.offset
        if block.error:
            if start < end:
                message = f"Expected a whole line, got {end - start} bytes and then a damaged block."
                yield Line(start, end, b"", message, block.is_unreadable)
            yield Line(block.offset, block.offset + block.length, b"", block.error, block.is_unreadable)
            pieces.clear()
            has_hole = False
            start = end = block.offset + block.length
            continue
        data = block.data
        has_hole = has_hole or not data
        first = 0
        while last := data.find(b"\n", first) + 1:
            end = block.offset + last
            if end - start == last - first <= _BUFFER_BYTES:  # the whole line is in this block
                yield Line(start, end, data[first:last])
            else:
                yield _line(start, end, [*pieces, data[first:last]], has_hole)
            pieces.clear()
            has_hole = False
            start, first = end, last
        end = block.offset + block.length
        if end - start <= _BUFFER_BYTES:
            pieces.append(data[first:])
        else:
            pieces.clear()
    if start < end:
        yield Line(start, end, b"", TORN)


def _line(start: int, end: int, pieces: list[bytes], has_hole: bool) -> Line:
    if end - start > MAX_LINE_BYTES:
        return Line(start, end, b"", f"Expected a line of at most {MAX_LINE_BYTES} bytes, got {end - start}.")
    if has_hole:
        return Line(start, end, b"", f"Expected a line, got {end - start} bytes with a block of zeros in them.")
    return Line(start, end, b"".join(pieces) if end - start <= _BUFFER_BYTES else b"")


_COMPRESSION = 4
"""About how many times smaller a compressed segment is."""


class SegmentEntry(NamedTuple):
    """A segment of a folder, and what the listing says about its file."""

    stem: str
    """Its name without a suffix."""
    name: SegmentName | None
    """The parsed name; None if it is not one that writers use."""
    size: int
    """The size of the file that is read: the plain one, unless only the compressed one exists."""
    is_compressed: bool
    """Whether only the compressed file exists, which no longer grows."""
    is_regular: bool
    """Whether it is a regular file, and not a directory, a link or a pipe."""
    changed: int
    """When the file was last written to, in ns; a compressed one, when it was compressed."""

    @property
    def file_name(self) -> str:
        """Its name with a suffix."""
        return f"{self.stem}{COMPRESSED_SUFFIX if self.is_compressed else PLAIN_SUFFIX}"

    @property
    def estimated_length(self) -> int:
        """About how many bytes it has, uncompressed."""
        return self.size * _COMPRESSION if self.is_compressed else self.size


class SegmentListing(NamedTuple):
    """The segments of a folder."""

    segments: dict[str, SegmentEntry]
    """By name without suffix: by session, in the order of writing."""
    unexpected: list[str]
    """Names that are not those of segments: another suffix, or bytes that are not printable text."""


def list_segments(files: RunFiles, folder: str) -> SegmentListing:
    """List the segments of a folder; hidden names are files that are being written, and are skipped."""
    segments: dict[str, SegmentEntry] = {}
    unexpected = []
    for file in files.list_files(folder):  # by name, so that a plain file comes before the compressed one
        stem = strip_extension(file.name)
        if stem.startswith("."):
            continue
        if stem == file.name or not stem.isprintable():
            unexpected.append(file.name)
        elif stem not in segments:
            is_compressed = file.name.endswith(COMPRESSED_SUFFIX)
            name = SegmentName.parse(stem)
            segments[stem] = SegmentEntry(stem, name, file.size, is_compressed, file.is_regular, file.changed)
    entries = sorted(segments.values(), key=lambda entry: (entry.name or (entry.stem, -1), entry.stem))
    return SegmentListing({entry.stem: entry for entry in entries}, unexpected)


def existing_segments(files: RunFiles, folder: str) -> list[SegmentEntry]:
    """The segments of a folder, in order; an empty list if it cannot be listed."""
    try:
        return list(list_segments(files, folder).segments.values())
    except OSError:
        return []


class SegmentReader:
    """A segment that is open for reading. Offsets are those of the uncompressed segment."""

    def __init__(self, file: RunFile) -> None:
        self.file = file.name
        """Its name, with the folder and the suffix."""
        self.is_compressed = file.name.endswith(COMPRESSED_SUFFIX)
        self._file = file
        try:
            self._frames = FrameReader(file) if self.is_compressed else None
        except BaseException:
            file.close()
            raise

    @property
    def declared_size(self) -> int:
        """The uncompressed size that the file states, without reading the frames."""
        return self._file.size if self._frames is None else self._frames.stated_length

    @property
    def file_size(self) -> int:
        """The size of the file itself."""
        return self._file.size

    @property
    def size(self) -> int:
        """The uncompressed size, as far as it is known."""
        return self._file.size if self._frames is None else self._frames.length

    @property
    def seek_table_matches(self) -> bool:
        """Whether the seek table agrees with the frames."""
        return self._frames is None or self._frames.seek_table_matches

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def blocks(self, offset: int) -> Iterator[FileBlock]:
        """The bytes from `offset` on; damaged ranges are blocks with an error."""
        return self._plain_blocks(offset) if self._frames is None else self._frame_blocks(self._frames, offset)

    def read(self, offset: int, length: int) -> bytes:
        """Read some bytes; fewer at the end of the segment. Raises `ChecksumError` if they are damaged."""
        if offset < 0:
            return b""
        end = min(offset + min(length, MAX_LINE_BYTES), self.size)
        pieces = []
        while offset < end and (data := self._piece(offset, end - offset)):
            pieces.append(data)
            offset += len(data)
        return b"".join(pieces)

    def first_bytes(self, length: int) -> bytes:
        """The first bytes, not verified; empty if they are damaged."""
        return self._file.read(0, length) if self._frames is None else self._frames.first_bytes(length)

    def _piece(self, offset: int, length: int) -> bytes:
        """Some of the bytes from `offset` on, at least one unless it is the end."""
        if self._frames is None:
            return self._file.read(offset, length)
        for frame in self._frames.holding(offset):
            if frame.offset + frame.length > offset:  # damaged bytes between frames have no length
                return self._frames.load(frame)[offset - frame.offset :][:length]
        return b""

    def _plain_blocks(self, offset: int) -> Iterator[FileBlock]:
        while offset < self.size:
            length = min(_BLOCK_BYTES, self.size - offset)
            try:
                data = self._file.read(offset, length)
            except OSError as error:
                yield _unreadable_block(offset, length, error)
                offset += length
                continue
            if not data:  # truncated meanwhile
                return
            length = len(data)
            if data[0] == 0 and not data.lstrip(b"\0"):
                data, length = b"", max(length, self._file.data_after(offset) - offset)
            yield FileBlock(offset, length, data)
            offset += length

    def _frame_blocks(self, frames: FrameReader, offset: int) -> Iterator[FileBlock]:
        for frame in frames.holding(offset):
            skipped = max(offset - frame.offset, 0)
            if skipped and skipped >= frame.length:
                continue
            try:
                data = frames.load(frame)[skipped:]
            except OSError as error:
                yield _unreadable_block(frame.offset + skipped, frame.length - skipped, error)
            except ChecksumError as error:
                yield FileBlock(frame.offset + skipped, frame.length - skipped, b"", str(error))
            else:
                yield FileBlock(frame.offset + skipped, frame.length - skipped, data)


def _unreadable_block(offset: int, length: int, error: OSError) -> FileBlock:
    """A block that the disk cannot read. Any other error may be transient, and is raised again."""
    if error.errno != errno.EIO:
        raise error
    return FileBlock(offset, length, b"", error.strerror or str(error), is_unreadable=True)


def open_segment(files: RunFiles, file: str) -> SegmentReader:
    """Open the plain file of a segment, or the compressed one if there is no plain file."""
    try:
        return SegmentReader(files.open(f"{file}{PLAIN_SUFFIX}"))
    except FileNotFoundError:
        return SegmentReader(files.open(f"{file}{COMPRESSED_SUFFIX}"))
