"""Compressed segments: the same bytes, in frames that can be read one by one."""

import io
import os
import resource
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import ChecksumError, InputError, RecordError
from rolltrace.store import compression as sealed
from rolltrace.store import safe_files
from rolltrace.store.compression import compress_segment, compressed_path, seek_table
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.segment_reader import open_segment
from rolltrace.trace.limits import MAX_FRAME_BYTES
from segments import frames_of, open_path

SMALL = 64


@pytest.fixture
def plain(tmp_path):
    """A plain segment of a hundred lines, and a torn one."""
    path = tmp_path / "session-000000.jsonl"
    path.write_bytes(b"".join(b'{"number":%d}\n' % number for number in range(100)) + b'{"numb')
    return path


@pytest.fixture
def small_frames(monkeypatch):
    """Frames so small that a hundred lines fill many."""
    monkeypatch.setattr(sealed, "FRAME_BYTES", SMALL)


def unpack(path):
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        return reader.read()


def content(path, offset=0):
    """What a reader gets of a segment, and the ranges that it cannot read."""
    segment = open_path(path)
    try:
        blocks = list(segment.blocks(offset))
    finally:
        segment.close()
    return b"".join(block.data for block in blocks), [(block.offset, block.length) for block in blocks if block.error]


@pytest.mark.parametrize("data", [b"", b"\n", b"torn", b"x" * 1_500_000, b"a\n\x00\xff\n" * 200_000 + b"torn"])
def test_compression_keeps_every_byte(tmp_path, data):
    """Any zstd reader gets the exact bytes of a segment from its compressed form, and the plain file is gone."""
    path = tmp_path / "s-000000.jsonl"
    path.write_bytes(data)
    assert compress_segment(path) == compressed_path(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s-000000.jsonl.zst"]
    assert unpack(compressed_path(path)) == data
    assert content(compressed_path(path)) == (data, [])


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd tool is not installed")
def test_the_zstd_tool_reads_it(plain):
    """The command line tool of zstd decompresses a segment."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    assert subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout == data


@given(
    pieces=st.lists(st.one_of(st.binary(max_size=200), st.just(b"\n")), max_size=20),
    offset=st.integers(0, 500),
    length=st.integers(0, 500),
)
def test_any_stretch_can_be_read(pieces, offset, length):
    """Bytes have the same offsets before and after compression."""
    data = b"".join(pieces)
    with TemporaryDirectory() as folder, patch.object(sealed, "FRAME_BYTES", SMALL):
        path = Path(folder) / "s-000000.jsonl"
        path.write_bytes(data)
        for where in (path, None):
            segment = open_path(where or compress_segment(path))
            assert segment.size == len(data)
            assert segment.read(offset, length) == data[offset : offset + length]
            assert b"".join(block.data for block in segment.blocks(offset)) == data[offset:]
            segment.close()


def test_frames_end_where_lines_end(plain, small_frames):
    """Frames end at line ends, so a damaged frame costs only its own lines."""
    data = plain.read_bytes()
    found = frames_of(compress_segment(plain))
    assert len(found) > 10
    assert all(data[frame.offset + frame.length - 1 :][:1] == b"\n" for frame in found[:-1])
    assert all(frame.length <= SMALL for frame in found)


@pytest.mark.parametrize("broken", ["pread", "fsync", "replace"])
def test_failed_compression_leaves_the_plain_file(plain, monkeypatch, broken):
    """An error before the compressed file is in place leaves the plain one, and nothing else."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="No space"):
        compress_segment(plain)
    assert [entry.name for entry in plain.parent.iterdir()] == [plain.name]


def test_full_disk_leaves_the_plain_file(plain):
    """If the disk is full, the plain file stays, and no part of the compressed one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            compress_segment(plain)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [entry.name for entry in plain.parent.iterdir()] == [plain.name]


def test_interrupted_compression_is_finished_by_the_next(plain, monkeypatch):
    """After a crash that left both files, compressing again removes the plain one and all leftovers."""
    data = plain.read_bytes()
    leftover = plain.with_name(f".{plain.name}.zst.0123")
    leftover.write_bytes(b"half")

    def crash(path):
        if path.is_dir():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(safe_files, "sync_path", crash)
        with pytest.raises(KeyboardInterrupt):
            compress_segment(plain)
    assert plain.exists()
    assert compressed_path(plain).exists()
    assert compress_segment(plain) == compressed_path(plain)
    assert [entry.name for entry in plain.parent.iterdir()] == [compressed_path(plain).name]
    assert unpack(compressed_path(plain)) == data
    assert compress_segment(plain) == compressed_path(plain)


def test_copy_is_read_back_before_the_plain_file_goes(plain, monkeypatch):
    """A compressed file that does not hold the plain one's bytes never replaces it."""
    real = zstandard.ZstdCompressor

    class Faulty:
        def __init__(self, **settings):
            self._real = real(**settings)

        def compress(self, data):
            return self._real.compress(data.replace(b"7", b"8"))

    monkeypatch.setattr(sealed.zstandard, "ZstdCompressor", Faulty)
    with pytest.raises(ChecksumError, match="plain file was kept"):
        compress_segment(plain)
    assert [entry.name for entry in plain.parent.iterdir()] == [plain.name]


def test_growing_segment_is_not_compressed(plain, monkeypatch):
    """A segment that grows while it is compressed stays plain, so that no line is lost."""
    real = os.pread

    def grow(*arguments):  # while the copy is read back
        with plain.open("ab") as file:
            file.write(b"more\n")
        return real(*arguments)

    monkeypatch.setattr(os, "pread", grow)
    with pytest.raises(InputError, match="grew meanwhile"):
        compress_segment(plain)
    assert [entry.name for entry in plain.parent.iterdir()] == [plain.name]


def test_compressing_a_missing_segment_is_an_error(tmp_path):
    """A segment with neither a plain nor a compressed file is an error."""
    with pytest.raises(FileNotFoundError):
        compress_segment(tmp_path / "s-000000.jsonl")


def test_damaged_frame_costs_only_itself(plain, small_frames):
    """All other frames are read, at their offsets."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    with path.open("r+b") as file:
        victim = frames_of(path)[3]
        file.seek(victim.position + victim.size - 6)
        file.write(b"\xa5\xa5")
    expected = data[: victim.offset] + data[victim.offset + victim.length :]
    assert content(path) == (expected, [(victim.offset, victim.length)])
    assert content(path, victim.offset + victim.length) == (data[victim.offset + victim.length :], [])
    segment = open_path(path)
    with pytest.raises(RecordError, match="damaged"):
        segment.read(victim.offset, 1)
    segment.close()


@pytest.mark.parametrize("lost", ["the footer", "the table", "a byte of a length"])
def test_frames_are_found_without_the_table(plain, small_frames, lost):
    """If the seek table is damaged, no data is lost, and the reader reports the table."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    whole = path.read_bytes()
    table = len(seek_table([(frame.size, frame.length) for frame in frames_of(path)]))
    if lost == "the footer":
        path.write_bytes(whole[:-4])
    elif lost == "the table":
        path.write_bytes(whole[:-table])
    else:
        place = len(whole) - table + 8 + 4  # of the first frame's plain length
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert content(path) == (data, [])
    segment = open_path(path)
    assert not segment.seek_table_matches
    assert segment.size == len(data)
    segment.close()


def test_damaged_header_moves_no_other_frame(plain, small_frames):
    """If header and table disagree on a damaged frame, the table counts."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    with path.open("r+b") as file:
        victim = frames_of(path)[3]
        file.seek(victim.position + 5)  # of the length in the header
        file.write(bytes([victim.length - 1]))
    segment = open_path(path)
    assert segment.seek_table_matches
    assert segment.size == len(data)
    segment.close()
    assert content(path)[1] == [(victim.offset, victim.length)]


def test_damaged_frame_without_a_table_costs_only_itself(plain, small_frames):
    """Without a table, frames after a damaged one are found by their first bytes, at their offsets."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    with path.open("r+b") as file:
        found = frames_of(path)
        file.truncate(found[-1].position + found[-1].size)
        file.seek(found[3].position + 9)
        file.write(b"\xff" * 8)
    got, faults = content(path)
    assert got == data[: found[3].offset] + data[found[4].offset :]
    assert faults == [(found[3].offset, found[3].length)]


def test_frame_beyond_the_size_limit_is_damage(tmp_path):
    """A frame that would fill the memory is not decompressed."""
    bomb = zstandard.ZstdCompressor().compress(bytes(4 * MAX_FRAME_BYTES))
    good = zstandard.ZstdCompressor(write_checksum=True).compress(b"good\n")
    for table in (b"", seek_table([(len(bomb), 4 * MAX_FRAME_BYTES), (len(good), 5)]), seek_table([(len(bomb), 5)])):
        path = tmp_path / "s-000000.jsonl.zst"
        path.write_bytes(bomb + good + table)
        got, faults = content(path)
        assert got == b"good\n"
        assert len(faults) >= 1


@pytest.mark.parametrize("count", [0xFFFFFFFF, sealed.MAX_FRAMES + 1, 3])
def test_table_with_impossible_counts_is_ignored(tmp_path, count):
    """A table of more frames than the file can hold is ignored."""
    good = zstandard.ZstdCompressor(write_checksum=True).compress(b"good\n")
    table = bytearray(seek_table([(len(good), 5)]))
    table[-9:-5] = count.to_bytes(4, "little")
    path = tmp_path / "s-000000.jsonl.zst"
    path.write_bytes(good + table)
    assert content(path)[0] == b"good\n"


def test_search_for_frames_is_bounded(tmp_path):
    """The search in a file that looks like frames everywhere ends in time bounded by its size."""
    path = tmp_path / "s-000000.jsonl.zst"
    header = zstandard.ZstdCompressor(write_checksum=True).compress(b"x" * 1000)[:8]
    path.write_bytes(header * 10_000)
    got, faults = content(path)
    assert got == b""
    assert faults


def test_plain_file_is_read_if_both_exist(plain):
    """The plain file counts as long as it exists: the compressed one may be incomplete."""
    data = plain.read_bytes()
    path = compress_segment(plain)
    assert open_segment(LocalFiles(path.parent), "session-000000").is_compressed
    plain.write_bytes(data)
    path.write_bytes(b"half a sealed file")
    segment = open_segment(LocalFiles(path.parent), "session-000000")
    assert segment.read(0, len(data)) == data
    segment.close()


def test_pipe_is_refused_without_waiting(tmp_path):
    """A pipe with the name of a segment is refused at once."""
    os.mkfifo(tmp_path / "s-000000.jsonl")
    with pytest.raises(RecordError, match="regular file"):
        open_segment(LocalFiles(tmp_path), "s-000000")


def test_seek_table_is_the_public_format():
    """The bytes of the table are those of the zstd seekable format."""
    assert seek_table([(3, 7)]).hex() == "5e2a4d18110000000300000007000000" + "0100000000b1ea928f"
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(seek_table([(3, 7)]))).read() == b""
