"""Blocks of bytes to lines, whatever the blocks hold."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

LONGEST_LINE = 1024 * 1024 * 1024
"""A line that is longer is passed over, so that a file without line feeds cannot fill the memory."""

TORN = "torn"
"""The fault of what follows the last line feed."""


class Block(NamedTuple):
    """Some bytes of a file, or what is wrong with them."""

    offset: int
    length: int
    data: bytes
    """Empty where something is wrong."""
    fault: str = ""


class Line(NamedTuple):
    """A line with its line feed, or a stretch that is none."""

    offset: int
    end: int
    data: bytes
    """Empty where something is wrong."""
    fault: str = ""


def split_lines(blocks: Iterable[Block]) -> Iterator[Line]:
    """The lines of blocks that follow each other, each as soon as it is whole."""
    begun: list[bytes] = []
    start = end = 0
    for block in blocks:
        if start == end:
            start = block.offset
        end = block.offset
        if block.fault:
            if start < end:
                yield Line(start, end, b"", f"Expected a whole line, got {end - start} bytes and then a damaged block.")
            yield Line(block.offset, block.offset + block.length, b"", block.fault)
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
        if end - start <= LONGEST_LINE:
            begun.append(data[first:])
        else:
            begun.clear()
    if start < end:
        yield Line(start, end, b"", TORN)


def _line(start: int, end: int, begun: list[bytes], rest: bytes) -> Line:
    if end - start > LONGEST_LINE:
        return Line(start, end, b"", f"Expected a line of at most {LONGEST_LINE} bytes, got {end - start}.")
    return Line(start, end, b"".join((*begun, rest)) if begun else rest)
