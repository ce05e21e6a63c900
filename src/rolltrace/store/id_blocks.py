"""The index by id in a part: the locations of lines, sorted by the hash of an id, in blocks."""

import hashlib
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from rolltrace.errors import ChecksumError
from rolltrace.store.cursor import LineLocation
from rolltrace.store.parts import Part
from rolltrace.store.safe_files import open_regular

IDS_FILE = "ids.index"
_FIELDS = "16sIQI"
"""The hash of an id, the number of a file among those of the part, and the offset and the length of a line."""
_ENTRY = struct.Struct(f">{_FIELDS}")
make_entry = _ENTRY.pack
_BLOCK_ENTRIES = 128
_BLOCK_BYTES = _BLOCK_ENTRIES * _ENTRY.size
_HASH_BYTES = 16
_SUMMARY_BYTES = 2 * _HASH_BYTES


def hash_id(rollout: str) -> bytes:
    """The hash of a rollout's id: MD5, because DuckDB has it, too. Lines are compared with the id itself."""
    return hashlib.md5(rollout.encode(errors="surrogatepass"), usedforsecurity=False).digest()


def find_entries(data: bytes | bytearray, key: bytes, files: Sequence[str]) -> Iterator[LineLocation]:
    """The locations in those of joined entries that have this hash of an id; `files` are the files by their numbers."""
    first = data.find(key)
    while first >= 0:
        if first % _ENTRY.size == 0:
            _, file, offset, length = _ENTRY.unpack_from(data, first)
            yield LineLocation(files[file], offset, length)
        first = data.find(key, first + 1)


def write_id_blocks(part: Part, rows: Iterator[tuple[bytes, int, int, int]]) -> None:
    """Write an index to a private part. Its description gets, for each block, the first hash and a digest.

    The rows are sorted: the hash of an id, the number of a file, the offset and the length of a line.
    """
    blocks = bytearray()
    with (part.path / IDS_FILE).open("wb") as file:
        while block := list(islice(rows, _BLOCK_ENTRIES)):
            data = struct.pack(f">{len(block) * _FIELDS}", *chain.from_iterable(block))
            file.write(data)
            blocks += data[:_HASH_BYTES] + _digest(data)
    part.info.id_blocks = bytes(blocks)


def find_in_part(part: Part, key: bytes) -> list[LineLocation]:
    """The lines of a part about the rollout with this hash; raises `ChecksumError` if a block is damaged."""
    blocks = part.info.id_blocks
    numbers = range(len(blocks) // _SUMMARY_BYTES)
    found: list[LineLocation] = []

    def first_hash(number: int) -> bytes:
        return blocks[number * _SUMMARY_BYTES : number * _SUMMARY_BYTES + _HASH_BYTES]

    with open_regular(part.path / IDS_FILE) as file:
        start = max(bisect_left(numbers, key, key=first_hash) - 1, 0)  # the block before may have it, too
        for number in range(start, bisect_right(numbers, key, key=first_hash)):
            data = os.pread(file.fileno(), _BLOCK_BYTES, number * _BLOCK_BYTES)
            end = (number + 1) * _SUMMARY_BYTES
            if _digest(data) != blocks[end - _HASH_BYTES : end]:
                raise ChecksumError(f"Expected an undamaged block in {part.path / IDS_FILE}.")
            found += find_entries(data, key, sorted(part.info.ranges))
    return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()
