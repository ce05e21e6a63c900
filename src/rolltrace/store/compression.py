"""A segment that no longer grows, compressed: zstd frames that can be read one by one, and by any zstd tool."""

import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from rolltrace.errors import ChecksumError, InputError
from rolltrace.store.frames import FRAME_BYTES, FrameReader, seek_table
from rolltrace.store.layout import COMPRESSED_SUFFIX, strip_extension
from rolltrace.store.safe_files import publish_file, refuse_link, sync_folder, unfinished_file

_LEVEL = 3


def compressed_path(plain: Path) -> Path:
    """Where the sealed form of a plain segment is."""
    return plain.with_name(strip_extension(plain.name) + COMPRESSED_SUFFIX)


def compress_segment(plain: Path) -> Path:
    """Replace a segment that no longer grows by its sealed form, with exactly its bytes, and return where that is.

    A crash leaves the plain file, both, or the sealed one; a second call finishes the work.
    """
    refuse_link(plain.parent)
    sealed = compressed_path(refuse_link(plain))
    try:
        source = plain.open("rb")
    except FileNotFoundError:
        if sealed.exists():
            return sealed
        raise
    with source, unfinished_file(plain.with_name(f".{sealed.name}.{secrets.token_hex(8)}")) as unfinished:
        _write_sealed(source, unfinished)
        if os.fstat(source.fileno()).st_size != source.tell():
            raise InputError(f"Expected a segment that no longer grows, got {plain}, which grew meanwhile.")
        publish_file(unfinished, sealed)
    plain.unlink(missing_ok=True)
    for abandoned in plain.parent.glob(f".{sealed.name}.*"):  # of a process that died
        abandoned.unlink(missing_ok=True)
    sync_folder(plain.parent)
    return sealed


def _write_sealed(source: BinaryIO, target: Path) -> None:
    """Write the compressed form of a file to `target`, and read it back."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    sizes: list[tuple[int, int]] = []
    checksum = 0
    with target.open("xb") as file:
        for piece in _pieces(source):
            frame = compressor.compress(piece)
            file.write(frame)
            sizes.append((len(frame), len(piece)))
            checksum = zlib.crc32(piece, checksum)
        file.write(seek_table(sizes))
    _check_copy(target, source.tell(), checksum)


def _check_copy(target: Path, size: int, checksum: int) -> None:
    found_size = found = 0
    with target.open("rb") as file:
        frames = FrameReader(file.fileno())
        for frame in frames:
            data = frames.load(frame)
            found_size += len(data)
            found = zlib.crc32(data, found)
    if (found_size, found) != (size, checksum):
        raise ChecksumError(
            f"Expected {size} bytes of checksum {checksum:08x} in {target}, read back {found_size} of {found:08x}: "
            "the disk or the memory is faulty. The plain file was kept."
        )


def _pieces(source: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file in pieces that end where a line ends; a line longer than a frame is cut."""
    rest = b""
    while block := source.read(FRAME_BYTES - len(rest)):
        block = rest + block
        end = block.rfind(b"\n") + 1 or len(block)
        if len(block) == FRAME_BYTES or end == len(block):
            yield block[:end]
            rest = block[end:]
        else:  # a short read: there may be more to come
            rest = block
    if rest:
        yield rest
