"""Splits blocks of bytes into lines, whatever the blocks hold."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 1024 * 1024 * 1024
"""Longer lines are skipped, so that a file without line feeds cannot fill the memory."""

FIRST_STEP = 16 * 1024
LARGEST_STEP = 1024 * 1024

TORN = "torn"
"""The error of bytes after the last line feed."""


class FileBlock(NamedTuple):
    """Some bytes of a file, or the error in reading them."""

    offset: int
    length: int
    data: bytes
    """Empty if there is an error."""
    fault: str = ""
    is_unreadable: bool = False
    """Whether the disk failed to read: the data may still be intact."""


class Line(NamedTuple):
    """A line with its line feed, or a damaged range."""

    offset: int
    end: int
    data: bytes
    """Empty if there is an error."""
    error: str = ""
    is_unreadable: bool = False


def split_lines(blocks: Iterable[FileBlock]) -> Iterator[Line]:
    """The lines of consecutive blocks, each as soon as it is complete."""
    begun: list[bytes] = []
    start = end = 0
    for block in blocks:
        if start == end:
            start = block.offset
        end = block.offset
        if block.fault:
            if start < end:
                message = f"Expected a whole line, got {end - start} bytes and then a damaged block."
                yield Line(start, end, b"", message, block.is_unreadable)
            yield Line(block.offset, block.offset + block.length, b"", block.fault, block.is_unreadable)
            begun.clear()
            start = end = block.offset + block.length
            continue
        data = block.data
        first = 0
        while last := data.find(b"\n", first) + 1:
            end = block.offset + last
            yield _line(start, end, begun, data[first:last])
            begun.clear()
            start, first = end, last
        end = block.offset + block.length
        if end - start <= MAX_LINE_BYTES:
            begun.append(data[first:])
        else:
            begun.clear()
    if start < end:
        yield Line(start, end, b"", TORN)


def split_lines_backwards(
    read: Callable[[int, int], bytes], size: int, first_step: int = FIRST_STEP, largest_step: int = LARGEST_STEP
) -> Iterator[Line]:
    """The lines of a file, the last first. Bytes after the last line feed come first, as torn.

    Only as much is read as is asked for. `read` is given an offset and a length, which doubles up to `largest_step`.
    """
    begun: list[bytes] = []  # pieces of the line that ends at `end`, the last first
    start = end = size
    is_last = True
    step = first_step
    while start > 0:
        first = max(start - step, 0)
        data = read(first, start - first)
        if len(data) < start - first:
            raise EOFError("Expected a file that only grows, got one that was cut.")
        start, step = first, min(2 * step, largest_step)
        while feed := data.rfind(b"\n") + 1:
            if first + feed < end:
                yield _whole(first + feed, end, [data[feed:], *reversed(begun)], is_last)
            is_last = False
            begun = [b"\n"]
            end, data = first + feed, data[: feed - 1]
        begun.append(data)
        if end - start > MAX_LINE_BYTES:
            yield Line(start, end, b"", f"Expected a line of at most {MAX_LINE_BYTES} bytes, got more.")
            return
    if end > 0:
        yield _whole(0, end, list(reversed(begun)), is_last)


def _whole(start: int, end: int, pieces: list[bytes], is_torn: bool) -> Line:
    return Line(start, end, b"", TORN) if is_torn else Line(start, end, b"".join(pieces))


def _line(start: int, end: int, begun: list[bytes], rest: bytes) -> Line:
    if end - start > MAX_LINE_BYTES:
        return Line(start, end, b"", f"Expected a line of at most {MAX_LINE_BYTES} bytes, got {end - start}.")
    return Line(start, end, b"".join((*begun, rest)) if begun else rest)
