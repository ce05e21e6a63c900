"""The frames of a sealed segment: the zstd seekable format, as far as it can be read, and with what is damaged."""

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import zstandard

from rolltrace.errors import ChecksumError

FRAME_BYTES = 512 * 1024
"""How much of a segment is compressed at once, at most."""
LARGEST_FRAME = 32 * FRAME_BYTES
"""A frame that says it holds more is taken for damaged, so that no header can make a reader fill its memory."""

_MAX_FRAMES = 100_000
_MAGIC = zstandard.FRAME_HEADER
_TABLE_MAGIC = 0x184D2A5E
_TABLE_START = _TABLE_MAGIC.to_bytes(4, "little")
_FOOTER_MAGIC = 0x8F92EAB1
_SKIP = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_MAX_HEADER_CHARS = 18
_LARGEST_BLOCK = 128 * 1024
_STEPS = 100_000
_SCAN_BYTES = (4096, 1024 * 1024)


class Frame(NamedTuple):
    """One frame, or a stretch of bytes in the place of one."""

    position: int
    """Of its first byte in the sealed file."""
    size: int
    """In the sealed file."""
    offset: int
    """Of its first byte in the segment before it was sealed."""
    length: int
    """In the segment; 0 for a stretch of which nothing is known."""


def seek_table(sizes: Sequence[tuple[int, int]]) -> bytes:
    """What ends a sealed file: a frame that zstd passes over, with the compressed and plain size of each frame."""
    entries = b"".join(_ENTRY.pack(*pair) for pair in sizes)
    footer = _FOOTER.pack(len(sizes), 0, _FOOTER_MAGIC)
    return _SKIP.pack(_TABLE_MAGIC, len(entries) + len(footer)) + entries + footer


class FrameReader:
    """The frames of an open sealed file, by the table at its end or, where that is damaged, by looking for them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_FRAME)
        self._table = self._read_table()

    @cached_property
    def _frames(self) -> list[Frame]:
        # The table has no checksum, so each frame is asked: only when something is read, for it takes a look at each.
        return self._look_for_frames() if self._table is None else self._settle_lengths(self._table)

    @cached_property
    def _offsets(self) -> list[int]:
        return [frame.offset for frame in self._frames]

    @property
    def seek_table_matches(self) -> bool:
        """Whether the table and the frames agree."""
        return self._frames is self._table

    @property
    def stated_length(self) -> int:
        """How many bytes the segment has by its table, or where that is none, by its frames."""
        return _length(self._frames if self._table is None else self._table)

    @property
    def length(self) -> int:
        """How many bytes the segment has."""
        return _length(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def holding(self, offset: int) -> Iterator[Frame]:
        """The frames from the one that holds this byte of the segment on."""
        first = bisect_left(self._offsets, offset)  # stretches of no length, at the same offset, come before it
        if first and (first == len(self._frames) or self._offsets[first] > offset):
            first -= 1
        for number in range(first, len(self._frames)):
            yield self._frames[number]

    def load(self, frame: Frame) -> bytes:
        """The plain bytes of a frame; a damaged one is refused."""
        if frame.size > 2 * LARGEST_FRAME or frame.length == 0:
            raise ChecksumError(f"Expected a frame, got {frame.size} bytes that are none.")
        data = os.pread(self._descriptor, frame.size, frame.position)
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

    def _read_table(self) -> list[Frame] | None:
        """The frames that the table names; None where it cannot be one of this file."""
        footer = os.pread(self._descriptor, _FOOTER.size, max(self._size - _FOOTER.size, 0))
        if len(footer) < _FOOTER.size:
            return None
        count, _, magic = _FOOTER.unpack(footer)
        length = count * _ENTRY.size + _FOOTER.size
        start = self._size - _SKIP.size - length
        if magic != _FOOTER_MAGIC or count > _MAX_FRAMES or start < 0:
            return None
        head = os.pread(self._descriptor, _SKIP.size, start)
        if len(head) < _SKIP.size or _SKIP.unpack(head) != (_TABLE_MAGIC, length):
            return None
        entries = os.pread(self._descriptor, count * _ENTRY.size, start + _SKIP.size)
        frames = _frames_of(entries) if len(entries) == count * _ENTRY.size else []
        end = frames[-1].position + frames[-1].size if frames else 0
        return frames if end == start and len(frames) == count else None

    def _settle_lengths(self, frames: list[Frame]) -> list[Frame]:
        """The same frames if their headers say the same lengths, or are damaged; corrected where the table is."""
        lengths = [frame.length for frame in frames]
        corrected = False
        for number, frame in enumerate(frames):
            length = self._length_at(frame.position)
            if length is not None and length != frame.length and self._loads(frame._replace(length=length)):
                lengths[number] = length
                corrected = True
        if not corrected:
            return frames
        offset = 0
        settled = []
        for frame, length in zip(frames, lengths, strict=True):
            settled.append(frame._replace(offset=offset, length=length))
            offset += length
        return settled

    def _loads(self, frame: Frame) -> bool:
        try:
            self.load(frame)
        except ChecksumError:
            return False
        return True

    def _look_for_frames(self) -> list[Frame]:
        """The frames from the front on; a stretch that is none is one of unknown or stated length."""
        frames: list[Frame] = []
        position = offset = 0
        steps_left = _STEPS + self._size // 512  # so that no bytes can make this take more than linear time
        while position < self._size and len(frames) < _MAX_FRAMES:
            steps_left -= 1
            if steps_left > 0 and os.pread(self._descriptor, 4, position) == _TABLE_START:
                position = self._next_magic(position + 1)  # its length is not to be believed
                continue
            length = self._length_at(position) or 0
            end, steps_left = self._frame_end(position, steps_left) if length else (None, steps_left)
            if end is None:
                end = self._next_magic(position + 1) if steps_left > 0 else self._size
            frames.append(Frame(position, end - position, offset, length))
            position, offset = end, offset + length
        return frames

    def _length_at(self, position: int) -> int | None:
        return _content_length(os.pread(self._descriptor, _MAX_HEADER_CHARS, position))

    def _frame_end(self, position: int, steps_left: int) -> tuple[int | None, int]:
        """Where a frame ends by the sizes of its blocks, if they make sense; and how many steps are left."""
        head = os.pread(self._descriptor, _MAX_HEADER_CHARS, position)
        place = position + zstandard.frame_header_size(head)
        while steps_left > 0:
            steps_left -= 1
            block = int.from_bytes(os.pread(self._descriptor, 3, place), "little")
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            place += 3 + (1 if kind == 1 else size)
            if kind == 3 or size > _LARGEST_BLOCK or place > self._size:
                return None, steps_left
            if last:
                end = place + (4 if zstandard.get_frame_parameters(head).has_checksum else 0)
                return (end if end <= self._size else None), steps_left
        return None, 0

    def _next_magic(self, position: int) -> int:
        """Where the next frame or the table seems to begin; the end of the file if nowhere."""
        scan = _SCAN_BYTES[0]  # a step that grows, because the next one may be near
        while position < self._size:
            block = os.pread(self._descriptor, scan, position)
            starts = [start for start in map(block.find, (_MAGIC, _TABLE_START)) if start >= 0]
            if starts:
                return position + min(starts)
            if len(block) < len(_MAGIC):
                break
            position += len(block) - len(_MAGIC) + 1
            scan = min(2 * scan, _SCAN_BYTES[1])
        return self._size


def _length(frames: Sequence[Frame]) -> int:
    return frames[-1].offset + frames[-1].length if frames else 0


def _frames_of(entries: bytes) -> list[Frame]:
    """The frames that the entries of a table name, as far as their sizes make sense."""
    frames = []
    position = offset = 0
    for size, length in _ENTRY.iter_unpack(entries):
        if not 0 < length <= LARGEST_FRAME or not 0 < size <= 2 * LARGEST_FRAME:
            break
        frames.append(Frame(position, size, offset, length))
        position, offset = position + size, offset + length
    return frames


def _content_length(head: bytes) -> int | None:
    """How many plain bytes a frame says it holds; None if this is no head of a frame of a sensible size."""
    if not head.startswith(_MAGIC):
        return None
    try:
        parameters = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        return None
    # The binding gives the values for "unknown" and "error" as lengths beyond any sensible one.
    return parameters.content_size if 0 < parameters.content_size <= LARGEST_FRAME else None
