"""The segments of a folder, plain and sealed: which there are, and reading their bytes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.frames import Frames
from rolltrace.store.lines import Block

PLAIN = ".jsonl"
SEALED = ".jsonl.zst"

_BLOCK_BYTES = 1024 * 1024


class Listing(NamedTuple):
    """What a folder holds."""

    segments: list[str]
    """The names of segments without endings, in order, each once."""
    strange: list[str]
    """Names that no segment has."""


def list_segments(folder: Path) -> Listing:
    """The segments of a folder; hidden names are files on their way, and are passed over."""
    segments = set()
    strange = []
    for name in os.listdir(folder):  # noqa: PTH208 - names are all that is needed
        if name.startswith("."):
            continue
        stem = name.removesuffix(SEALED) if name.endswith(SEALED) else name.removesuffix(PLAIN)
        if stem == name:
            strange.append(name)
        else:
            segments.add(stem)
    return Listing(sorted(segments), sorted(strange))


class SegmentFile:
    """A segment that is open for reading; its offsets are the same before and after it is sealed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_sealed = path.name.endswith(SEALED)
        # Without blocking: a pipe of this name would make the reader wait for ever.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("Expected a regular file.")
            self._frames = Frames(self._descriptor) if self.is_sealed else None
        except BaseException:
            os.close(self._descriptor)
            raise
        self.size = status.st_size if self._frames is None else self._frames.length
        """How many bytes it has, uncompressed, as far as that is known."""
        self.table_is_sound = self._frames is None or self._frames.table_is_sound

    def close(self) -> None:
        """Give back the file."""
        os.close(self._descriptor)

    def blocks(self, offset: int) -> Iterator[Block]:
        """Its bytes from `offset` on, and the places of those that are damaged."""
        return self._plain_blocks(offset) if self._frames is None else self._frame_blocks(self._frames, offset)

    def read(self, offset: int, length: int) -> bytes:
        """Some of its bytes; fewer where it ends before. Damaged ones are refused."""
        length = max(min(length, self.size - offset), 0)
        if self._frames is None and length <= _BLOCK_BYTES:
            return os.pread(self._descriptor, length, offset)
        pieces = []
        for block in self.blocks(offset):
            if block.fault and block.length:  # what has no length stands between the bytes that were written
                raise ChecksumError(block.fault)
            pieces.append(block.data[:length])
            length -= block.length
            if length <= 0:
                break
        return b"".join(pieces)

    def _plain_blocks(self, offset: int) -> Iterator[Block]:
        while offset < self.size:
            length = min(_BLOCK_BYTES, self.size - offset)
            try:
                data = os.pread(self._descriptor, length, offset)
            except OSError as error:  # a bad place of the disk costs only itself
                yield Block(offset, length, b"", error.strerror or str(error))
                offset += length
                continue
            if not data:  # it was cut meanwhile
                return
            yield Block(offset, len(data), data)
            offset += len(data)

    def _frame_blocks(self, frames: Frames, offset: int) -> Iterator[Block]:
        for frame in frames.holding(offset):
            skipped = max(offset - frame.offset, 0)
            if skipped and skipped >= frame.length:
                continue
            try:
                data = frames.load(frame)[skipped:]
            except (ChecksumError, OSError) as error:
                yield Block(frame.offset + skipped, frame.length - skipped, b"", str(error))
            else:
                yield Block(frame.offset + skipped, frame.length - skipped, data)


def open_segment(folder: Path, name: str) -> SegmentFile:
    """A segment's plain file or, where there is none or none any more, the sealed one."""
    try:
        return SegmentFile(folder / f"{name}{PLAIN}")
    except FileNotFoundError:
        return SegmentFile(folder / f"{name}{SEALED}")
