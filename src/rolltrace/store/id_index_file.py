"""One immutable file of the id index: sorted entries in blocks, whose digests are in a signed header."""

import hashlib
import os
import re
import secrets
import struct
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_digest

from rolltrace.errors import ChecksumError
from rolltrace.store.cache_key import add_signature, check_signature, make_cache_folder
from rolltrace.store.cursor import LineLocation
from rolltrace.store.read_errors import ReadError
from rolltrace.store.safe_files import open_regular, publish_file, remove_abandoned_files, unfinished_file

_UNFINISHED_NAME = re.compile(r"\.ids-[0-9a-f]{16}")
_MAGIC = b"rt-ids\0\2"
_PREAMBLE = struct.Struct(">8sQ")
"""The magic number with the version, then the length of the header with its signature, which follows."""
_MAX_HEADER_BYTES = 64 << 20
_ENTRY = struct.Struct(">16s8sQI")
"""The hashes of a rollout's id and of a file's name, then the offset and length of a line. Entries sort as bytes."""
_BLOCK_BYTES = 128 * _ENTRY.size
_ID_BYTES = 16
_DIGEST_BYTES = 16
_SUMMARY_BYTES = _ID_BYTES + _DIGEST_BYTES


class ByteRange(NamedTuple):
    """A range of a segment whose lines are all in the index."""

    file: str
    first: int
    last: int
    """The offset after its last byte."""


def merge_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge adjacent and overlapping ranges."""
    merged: list[ByteRange] = []
    for following in sorted(ranges):
        if merged and merged[-1].file == following.file and following.first <= merged[-1].last:
            merged[-1] = merged[-1]._replace(last=max(merged[-1].last, following.last))
        else:
            merged.append(following)
    return merged


def hash_id(rollout: str) -> bytes:
    """The hash of a rollout's id, with which its entries begin."""
    return hashlib.blake2b(rollout.encode(errors="surrogatepass"), digest_size=_ID_BYTES).digest()


@lru_cache(maxsize=1024)
def hash_file(file: str) -> bytes:
    """The hash of a file's name, which an entry has instead of the name."""
    return xxh3_64_digest(os.fsencode(file))


def make_entry(rollout: str, location: LineLocation) -> bytes:
    """The entry of a line that records or scores this rollout."""
    return _ENTRY.pack(hash_id(rollout), hash_file(location.file), location.offset, location.length)


def parse_entry(entry: bytes) -> tuple[bytes, int, int]:
    """The hash of the file's name, the offset and the length."""
    _, file, offset, length = _ENTRY.unpack(entry)
    return file, offset, length


def find_entries(data: bytes | bytearray, key: bytes) -> Iterator[bytes]:
    """Those of joined entries that begin with this hash of an id."""
    first = data.find(key)
    while first >= 0:
        if first % _ENTRY.size == 0:
            yield bytes(data[first : first + _ENTRY.size])
        first = data.find(key, first + 1)


def split_entries(data: bytes | bytearray) -> list[bytes]:
    """The entries, one by one."""
    return [entry for (entry,) in struct.iter_unpack(f"{_ENTRY.size}s", data)]


class IndexHeader(msgspec.Struct):
    """What an index file covers."""

    ranges: list[ByteRange]
    """The ranges of segments that were read."""
    errors: list[ReadError]
    """The read errors in them."""
    blocks: bytes = b""
    """For each block the hash of the id with which it begins, and its digest."""


class IdIndexFile:
    """An index file that is open for reading; it stays readable if it is deleted.

    Everything that is read is verified: the header by its signature, and each block by its digest in the header.
    `ChecksumError` means that the file is damaged, or not signed with the user's key for this context.
    """

    def __init__(self, path: Path, context: str) -> None:
        self.path = path
        file = open_regular(path)
        self.close = weakref.finalize(self, file.close)
        self._descriptor = file.fileno()
        magic, length = _PREAMBLE.unpack(os.pread(self._descriptor, _PREAMBLE.size, 0).ljust(_PREAMBLE.size))
        if magic != _MAGIC or length > _MAX_HEADER_BYTES:
            raise ChecksumError(f"Expected an index of this version in {path}.")
        header = check_signature(os.pread(self._descriptor, length, _PREAMBLE.size), context)
        self.header = msgspec.msgpack.decode(header, type=IndexHeader)
        self._blocks = range(len(self.header.blocks) // _SUMMARY_BYTES)
        self._first_block = _PREAMBLE.size + length
        self.count = (os.fstat(self._descriptor).st_size - self._first_block) // _ENTRY.size
        """The number of entries."""

    def find(self, key: bytes) -> list[bytes]:
        """The entries that begin with this hash of an id."""
        found: list[bytes] = []
        first = bisect_left(self._blocks, key, key=self._first_id)
        for block in self._blocks[max(first - 1, 0) :]:  # the last entries of the block before may begin with it, too
            if self._first_id(block) > key:
                break
            found += find_entries(self._read(block), key)
        return found

    def entries(self) -> list[bytes]:
        """All entries."""
        return [entry for block in self._blocks for entry in split_entries(self._read(block))]

    def _first_id(self, block: int) -> bytes:
        start = block * _SUMMARY_BYTES
        return self.header.blocks[start : start + _ID_BYTES]

    def _read(self, block: int) -> bytes:
        data = os.pread(self._descriptor, _BLOCK_BYTES, self._first_block + block * _BLOCK_BYTES)
        end = (block + 1) * _SUMMARY_BYTES
        if _digest(data) != self.header.blocks[end - _DIGEST_BYTES : end]:
            raise ChecksumError(f"Expected an undamaged block in {self.path}.")
        return data


def write_index_file(
    folder: Path, kind: str, context: str, header: IndexHeader, entries: Sequence[bytes]
) -> IdIndexFile:
    """Publish a file of sorted entries in this folder. Its name depends on the contents."""
    data = b"".join(entries)
    blocks = (data[first : first + _BLOCK_BYTES] for first in range(0, len(data), _BLOCK_BYTES))
    header.blocks = b"".join(block[:_ID_BYTES] + _digest(block) for block in blocks)
    signed = add_signature(msgspec.msgpack.encode(header), context)
    remove_abandoned_files(make_cache_folder(folder), _UNFINISHED_NAME)
    with unfinished_file(folder / f".ids-{secrets.token_hex(8)}") as unfinished:
        with unfinished.open("xb") as file:
            file.writelines((_PREAMBLE.pack(_MAGIC, len(signed)), signed, data))
        opened = IdIndexFile(unfinished, context)  # before another process can merge and delete it
        opened.path = folder / f"ids-{kind}-{signed[:16].hex()}.index"
        publish_file(unfinished, opened.path, sync=False)  # damage by a power loss is detected
    return opened


def find_files(folder: Path, kind: str) -> list[Path]:
    """The index files of a kind in a cache folder; links and other files are skipped."""
    name = re.compile(rf"ids-{kind}-[0-9a-f]{{32}}\.index")
    try:
        return [] if folder.is_symlink() else sorted(path for path in folder.iterdir() if name.fullmatch(path.name))
    except OSError:
        return []


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
