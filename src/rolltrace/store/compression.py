"""Compressed segments in the zstd seekable format: writing them, and reading frames even if some are damaged."""

import os
import secrets
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard

from rolltrace.errors import ChecksumError, InputError
from rolltrace.store.layout import COMPRESSED_SUFFIX, strip_extension
from rolltrace.store.run_files import LocalFile, RunFile
from rolltrace.store.safe_files import publish_file, refuse_link, sync_path, unfinished_file
from rolltrace.trace.limits import MAX_FRAME_BYTES, MAX_FRAMES, MAX_LINE_BYTES, MAX_RATIO

FRAME_BYTES = 512 * 1024
"""The largest part of a segment that is compressed as one frame."""

_LEVEL = 3
_MAGIC = zstandard.FRAME_HEADER
_TABLE_MAGIC = 0x184D2A5E
_TABLE_START = _TABLE_MAGIC.to_bytes(4, "little")
_FOOTER_MAGIC = 0x8F92EAB1
_SKIP = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_MAX_HEADER_BYTES = 18
_MAX_BLOCK_BYTES = 128 * 1024
_MAX_STEPS = 100_000
_SCAN_BYTES = (4096, 1024 * 1024)


class Frame(NamedTuple):
    """One frame, or damaged bytes between two frames."""

    position: int
    """The offset of its first byte in the compressed file."""
    size: int
    """Its length in the compressed file."""
    offset: int
    """The offset of its first byte in the plain segment."""
    length: int
    """Its length in the plain segment; 0 if that is unknown."""
    error: str = ""
    """Why it is not read."""


def seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """The skippable frame at the end of the file, with the compressed and plain size of each frame."""
    entries = b"".join(_ENTRY.pack(*pair) for pair in sizes)
    footer = _FOOTER.pack(len(sizes), 0, _FOOTER_MAGIC)
    return _SKIP.pack(_TABLE_MAGIC, len(entries) + len(footer)) + entries + footer


class FrameReader:
    """Reads the frames of a compressed file, by its seek table or, if that is damaged, by searching for them."""

    def __init__(self, file: RunFile) -> None:
        self._file = file
        self._size = file.size
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
        self._table = self._read_table()

    @cached_property
    def _frames(self) -> list[Frame]:
        # The seek table has no checksum, so each frame header is compared with it, but only when something is read.
        return self._search_frames() if self._table is None else self._correct_lengths(self._table)

    @cached_property
    def _offsets(self) -> list[int]:
        return [frame.offset for frame in self._frames]

    @property
    def seek_table_matches(self) -> bool:
        """Whether the seek table and the frame headers agree."""
        return self._frames is self._table

    @property
    def stated_length(self) -> int:
        """The length of the plain segment by its seek table, or without one, by its frames."""
        return _length(self._frames if self._table is None else self._table)

    @property
    def length(self) -> int:
        """The length of the plain segment."""
        return _length(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def holding(self, offset: int) -> Iterator[Frame]:
        """Yield the frames from the one with this byte of the plain segment on."""
        first = bisect_left(self._offsets, offset)  # damaged bytes of length 0 at the same offset come before it
        if first and (first == len(self._frames) or self._offsets[first] > offset):
            first -= 1
        for number in range(first, len(self._frames)):
            yield self._frames[number]

    def load(self, frame: Frame) -> bytes:
        """Decompress a frame; a damaged one raises `ChecksumError`."""
        if frame.error:
            raise ChecksumError(frame.error)
        if frame.size > 2 * MAX_FRAME_BYTES or frame.length == 0:
            raise ChecksumError(f"Damaged zstd frame ({frame.size} bytes at offset {frame.position}).")
        data = self._file.read(frame.position, frame.size)
        length = _content_length(data)
        if length != frame.length:
            raise ChecksumError(f"Expected a frame of {frame.length} bytes, got a damaged header.")
        try:
            plain = self._decompressor.decompress(data, max_output_size=length, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ChecksumError(f"Expected a frame of {frame.length} bytes, got damaged ones: {error}.") from error
        if len(plain) != frame.length:
            raise ChecksumError(f"Expected a frame of {frame.length} bytes, got {len(plain)}.")
        return plain

    def first_bytes(self, length: int) -> bytes:
        """The first bytes of the plain segment, not verified, without decompressing a frame; empty if damaged."""
        data = self._file.read(0, _MAX_HEADER_BYTES + 3 + _MAX_BLOCK_BYTES)
        try:
            return self._decompressor.stream_reader(data).read(length)
        except zstandard.ZstdError:
            return b""

    def _read_table(self) -> list[Frame] | None:
        """The frames by the seek table; None if the table is missing or damaged."""
        footer = self._file.read(max(self._size - _FOOTER.size, 0), _FOOTER.size)
        if len(footer) < _FOOTER.size:
            return None
        count, _, magic = _FOOTER.unpack(footer)
        length = count * _ENTRY.size + _FOOTER.size
        start = self._size - _SKIP.size - length
        if magic != _FOOTER_MAGIC or count > MAX_FRAMES or start < 0:
            return None
        head = self._file.read(start, _SKIP.size)
        if len(head) < _SKIP.size or _SKIP.unpack(head) != (_TABLE_MAGIC, length):
            return None
        entries = self._file.read(start + _SKIP.size, count * _ENTRY.size)
        frames = _frames_of(entries) if len(entries) == count * _ENTRY.size else []
        end = frames[-1].position + frames[-1].size if frames else 0
        return self._bounded(frames) if end == start and len(frames) == count else None

    def _bounded(self, frames: list[Frame]) -> list[Frame]:
        """The frames; those beyond the bounds are replaced by one that is not read."""
        most = max_plain_bytes(self._size)
        if _length(frames) <= most:
            return frames
        first = next(number for number, frame in enumerate(frames) if frame.offset + frame.length > most)
        return [*frames[:first], self._unread(frames[first].position, frames[first].offset)]

    def _unread(self, position: int, offset: int) -> Frame:
        """The rest of the file, as a frame that is not read."""
        return Frame(
            position, self._size - position, offset, 0,
            f"Expected at most {MAX_FRAMES} frames that unpack to {max_plain_bytes(self._size)} bytes, got more.",
        )  # fmt: skip

    def _correct_lengths(self, frames: list[Frame]) -> list[Frame]:
        """Correct the lengths in which a readable frame header differs from the seek table."""
        corrected = []
        offset = unpacked = 0
        for frame in frames:
            length = None if frame.error else self._length_at(frame.position)
            if length is not None and length != frame.length and unpacked <= max_plain_bytes(self._size):
                unpacked += length
                if self._loads(frame._replace(length=length)):
                    frame = frame._replace(length=length)
            corrected.append(frame._replace(offset=offset))
            offset += frame.length
        return frames if corrected == frames else self._bounded(corrected)

    def _loads(self, frame: Frame) -> bool:
        try:
            self.load(frame)
        except ChecksumError:
            return False
        return True

    def _search_frames(self) -> list[Frame]:
        """Search the file for frames; damaged bytes become a frame of stated or unknown length."""
        frames: list[Frame] = []
        position = offset = 0
        steps_left = _MAX_STEPS + self._size // 512  # bounds the time to linear, whatever the bytes are
        while position < self._size:
            if len(frames) >= MAX_FRAMES or offset > max_plain_bytes(self._size):
                return [*frames, self._unread(position, offset)]
            steps_left -= 1
            if steps_left > 0 and self._file.read(position, 4) == _TABLE_START:
                position = self._next_magic(position + 1)  # the table may be damaged, so its length is not used
                continue
            length = self._length_at(position) or 0
            end, steps_left = self._frame_end(position, steps_left) if length else (None, steps_left)
            if end is None:
                end = self._next_magic(position + 1) if steps_left > 0 else self._size
            frames.append(Frame(position, end - position, offset, length))
            position, offset = end, offset + length
        return frames

    def _length_at(self, position: int) -> int | None:
        return _content_length(self._file.read(position, _MAX_HEADER_BYTES))

    def _frame_end(self, position: int, steps_left: int) -> tuple[int | None, int]:
        """Where a frame ends by the sizes of its blocks, or None if they are damaged; and the steps that are left."""
        head = self._file.read(position, _MAX_HEADER_BYTES)
        end = position + zstandard.frame_header_size(head)
        while steps_left > 0:
            steps_left -= 1
            block = int.from_bytes(self._file.read(end, 3), "little")
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            end += 3 + (1 if kind == 1 else size)
            if kind == 3 or size > _MAX_BLOCK_BYTES or end > self._size:
                return None, steps_left
            if last:
                end += 4 if zstandard.get_frame_parameters(head).has_checksum else 0
                return (end if end <= self._size else None), steps_left
        return None, 0

    def _next_magic(self, position: int) -> int:
        """The position of the next frame or seek table, or the end of the file."""
        scan = _SCAN_BYTES[0]  # grows, because the next frame is often near
        while position < self._size:
            block = self._file.read(position, scan)
            starts = [start for start in map(block.find, (_MAGIC, _TABLE_START)) if start >= 0]
            if starts:
                return position + min(starts)
            if len(block) < len(_MAGIC):
                break
            position += len(block) - len(_MAGIC) + 1
            scan = min(2 * scan, _SCAN_BYTES[1])
        return self._size


def max_plain_bytes(size: int) -> int:
    """How many bytes a compressed file of this size unpacks to at most; one long line of one character fits."""
    return MAX_LINE_BYTES + MAX_RATIO * size


def _length(frames: Sequence[Frame]) -> int:
    return frames[-1].offset + frames[-1].length if frames else 0


def _frames_of(entries: bytes) -> list[Frame]:
    """The frames by the entries of a seek table, up to the first impossible size."""
    frames = []
    position = offset = 0
    for size, length in _ENTRY.iter_unpack(entries):
        if not 0 < length <= MAX_FRAME_BYTES or not 0 < size <= 2 * MAX_FRAME_BYTES:
            break
        frames.append(Frame(position, size, offset, length))
        position, offset = position + size, offset + length
    return frames


def _content_length(head: bytes) -> int | None:
    """The plain length that a frame header states; None if it is damaged or too large."""
    if not head.startswith(_MAGIC):
        return None
    try:
        parameters = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        return None
    # zstandard returns "unknown" and "error" as very large sizes.
    return parameters.content_size if 0 < parameters.content_size <= MAX_FRAME_BYTES else None


def compressed_path(plain: Path) -> Path:
    """The path of the compressed form of a plain segment."""
    return plain.with_name(strip_extension(plain.name) + COMPRESSED_SUFFIX)


def compress_segment(plain: Path) -> Path:
    """Compress a segment that no longer grows, delete the plain file, and return the new path.

    A crash leaves the plain file, the compressed file or both; a second call finishes the work.
    """
    refuse_link(plain.parent)
    compressed = compressed_path(refuse_link(plain))
    try:
        source = plain.open("rb")
    except FileNotFoundError:
        if compressed.exists():
            return compressed
        raise
    with source, unfinished_file(plain.with_name(f".{compressed.name}.{secrets.token_hex(8)}")) as unfinished:
        _write_compressed(source, unfinished)
        if os.fstat(source.fileno()).st_size != source.tell():
            raise InputError(f"Expected a segment that no longer grows, got {plain}, which grew meanwhile.")
        publish_file(unfinished, compressed)
    plain.unlink(missing_ok=True)
    for abandoned in plain.parent.glob(f".{compressed.name}.*"):  # of a process that died
        abandoned.unlink(missing_ok=True)
    sync_path(plain.parent)
    return compressed


def _write_compressed(source: BinaryIO, target: Path) -> None:
    """Write the compressed form of a file to `target`, and read it back."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    sizes: list[tuple[int, int]] = []
    checksum = 0
    with target.open("xb") as file:
        for piece in _pieces(source):
            frame = compressor.compress(piece)
            file.write(frame)
            sizes.append((len(frame), len(piece)))
            if source.tell() > max_plain_bytes(file.tell()) or len(sizes) > MAX_FRAMES:
                raise InputError(f"Expected a segment within the bounds of compressed ones, got {source.name}.")
            checksum = zlib.crc32(piece, checksum)
        file.write(seek_table(sizes))
    _check_copy(target, source.tell(), checksum)


def _check_copy(target: Path, size: int, checksum: int) -> None:
    read_size = read_checksum = 0
    with closing(LocalFile(target, target.name)) as file:
        frames = FrameReader(file)
        for frame in frames:
            data = frames.load(frame)
            read_size += len(data)
            read_checksum = zlib.crc32(data, read_checksum)
    if (read_size, read_checksum) != (size, checksum):
        raise ChecksumError(
            f"Expected {size} bytes of checksum {checksum:08x} in {target}, read back {read_size} of "
            f"{read_checksum:08x}: the disk or the memory is faulty. The plain file was kept."
        )


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces that end at a line end, unless a line is longer than a frame."""
    rest = b""
    while block := source.read(FRAME_BYTES - len(rest)):
        block = rest + block
        end = block.rfind(b"\n") + 1 or len(block)
        if len(block) == FRAME_BYTES or end == len(block):
            yield block[:end]
            rest = block[end:]
        else:  # a short read: more may follow
            rest = block
    if rest:
        yield rest
