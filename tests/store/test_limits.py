"""Input beyond the bounds of the format counts as damage: it is reported, and takes neither time nor memory."""

import time
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import rolltrace
from hostile_runs import GOOD, SMALL, hostile_cases, make_good_run
from rolltrace.errors import InputError, RecordError, RunNotFoundError
from rolltrace.query.run_listing import list_runs
from rolltrace.store import blobs, compression, cursor, segment_reader
from rolltrace.store.compression import compress_segment, seek_table
from rolltrace.store.create import create_run
from rolltrace.store.layout import read_info
from rolltrace.store.read_errors import ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.segment_reader import FileBlock, split_lines
from rolltrace.trace import codec
from rolltrace.trace.codec import add_checksum, decode_rollout
from rolltrace.trace.limits import MAX_INFO_BYTES, MAX_NESTING
from segments import make_run, open_path, rollout_line, segment

A, B = rollout_line("a"), rollout_line("b")


def compressed(run: Path) -> Path:
    """The path of a compressed segment of a run."""
    return run / "rollouts" / "session-000000.jsonl.zst"


def zstd_file(path: Path, data: bytes, count: int, table: bool = True, stated: int | None = None) -> Path:
    """A file of this many frames of the same data; the table may state another length."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    sizes = [(len(frame), stated or len(data))] * count
    path.write_bytes(frame * count + (seek_table(sizes) if table else b""))
    return path


@pytest.mark.parametrize("depth", [MAX_NESTING + 2, 500, 900, 100_000])
def test_config_that_is_nested_too_deeply_is_refused(tmp_path, depth):
    """Such a run is refused with a clear error, and the listing still has the other runs."""
    make_good_run(tmp_path / "good")
    bad = make_good_run(tmp_path / "bad")
    hostile_cases(SMALL._replace(depths=(depth,)))[f"config nested {depth:,} deep"](bad)
    with pytest.raises(RunNotFoundError, match=r"valid run\.json"):
        read_info(LocalFiles(bad))
    listing = list_runs(tmp_path)
    assert [run.name for run in listing.runs] == ["good"]
    assert len(listing.unreadable) == 1


def test_run_json_that_is_too_long_is_refused(tmp_path):
    """No more than the bound is read, and no longer one is written."""
    run = make_good_run(tmp_path / "bad")
    (run / "run.json").write_bytes(b" " * (MAX_INFO_BYTES + 1))
    with pytest.raises(RunNotFoundError, match=f"at most {MAX_INFO_BYTES} bytes"):
        read_info(LocalFiles(run))
    with pytest.raises(InputError, match=f"at most {MAX_INFO_BYTES} bytes"):
        create_run(tmp_path / "new", config={"text": "x" * MAX_INFO_BYTES})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("data", [b"\n", b"\0", b"{}\n\n"])
def test_small_file_that_unpacks_to_gigabytes(tmp_path, data, table):
    """Reading stops early, reports what was not read, and returns everything else."""
    run = make_good_run(tmp_path / "run")
    zstd_file(run / "rollouts" / "zz-000000.jsonl.zst", data * (2**24 // len(data)), 256, table)
    started = time.monotonic()
    with RunReader(run) as reader:
        assert len(list(reader.rollouts())) == GOOD
        [unread] = [error for error in reader.read_errors if "the rest is not read" in error.message] or [
            error for error in reader.read_errors if "unpack to" in error.message
        ]
        assert unread.kind is ReadErrorKind.DAMAGED
    assert time.monotonic() - started < 60


def test_wrong_lengths_in_the_table_do_not_decompress_everything(tmp_path, monkeypatch):
    """Correcting the lengths is bounded like reading."""
    monkeypatch.setattr(compression, "MAX_LINE_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "MAX_RATIO", 10)
    path = zstd_file(compressed(make_run(tmp_path / "run")), b"x" * (1 << 19) + b"\n", 200, stated=1)
    loads = []
    load = compression.FrameReader.load
    monkeypatch.setattr(compression.FrameReader, "load", lambda self, frame: loads.append(frame) or load(self, frame))
    reader = open_path(path)
    assert reader.size < 3 << 20
    assert len(loads) < 10
    reader.close()


def test_long_line_of_one_character_is_within_the_ratio(tmp_path):
    """Text that compresses well is not damage."""
    run = make_run(tmp_path / "run")
    line = rollout_line("long", "x" * (24 << 20))
    segment(run).write_bytes(A + line + B)
    path = compress_segment(segment(run))
    assert len(A + line + B) > 1000 * path.stat().st_size
    with RunReader(run) as reader:
        assert [rollout.id for rollout in reader.rollouts()] == ["a", "long", "b"]
        assert reader.read_errors == ()


def test_segment_beyond_the_ratio_stays_plain(tmp_path, monkeypatch):
    """A segment that would exceed the ratio is not compressed, so that valid lines never become damage."""
    monkeypatch.setattr(compression, "MAX_LINE_BYTES", 1 << 20)
    run = make_run(tmp_path / "run")
    segment(run).write_bytes(bytes(64 << 20) + b"\n" + A)
    with pytest.raises(InputError, match="bounds"):
        compress_segment(segment(run))
    assert [path.name for path in (run / "rollouts").iterdir()] == ["session-000000.jsonl"]


def test_hole_of_a_sparse_file_is_skipped(tmp_path):
    """The line after a hole is read; a hole at the end may still be written."""
    run = make_run(tmp_path / "run")
    with segment(run).open("wb") as file:
        file.write(A)
        file.seek(1 << 40)
        file.write(b"\n" + B)
        file.truncate(1 << 41)
    with RunReader(run) as reader:
        assert [rollout.id for rollout in reader.rollouts()] == ["a", "b"]
        damaged, torn = reader.read_errors
        assert (damaged.offset, damaged.kind, torn.kind) == (len(A), ReadErrorKind.DAMAGED, ReadErrorKind.TORN)
        assert torn.is_transient


def test_zeros_inside_a_line_are_damage(tmp_path):
    """A block of zeros inside a line makes it damaged, and is not skipped."""
    run = make_run(tmp_path / "run")
    head, tail = A[:100], A[100:]
    segment(run).write_bytes(head + b" " * (2**20 - 100) + bytes(2**20) + tail + B)
    with RunReader(run) as reader:
        assert [rollout.id for rollout in reader.rollouts()] == ["b"]
        assert "zeros" in reader.read_errors[0].message


@pytest.mark.parametrize("is_compressed", [False, True])
def test_line_that_is_too_long_takes_no_memory(tmp_path, monkeypatch, is_compressed):
    """A line that is too long is not held in memory while its end is searched."""
    monkeypatch.setattr(segment_reader, "MAX_LINE_BYTES", 32 << 20)
    run = make_run(tmp_path / "run")
    segment(run).write_bytes(A + add_checksum(b'{"v":2,"text":"%s"}' % (b"x" * (48 << 20))) + B)
    if is_compressed:
        compress_segment(segment(run))
    tracemalloc.start()
    try:
        with RunReader(run) as reader:
            assert [rollout.id for rollout in reader.rollouts()] == ["a", "b"]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert "at most" in reader.read_errors[0].message


@pytest.mark.parametrize("is_compressed", [False, True])
def test_line_longer_than_the_buffer_is_read(tmp_path, monkeypatch, is_compressed):
    """A line longer than the buffer is read by its offset, from the front and from the end."""
    monkeypatch.setattr(segment_reader, "_BUFFER_BYTES", 100)
    monkeypatch.setattr(compression, "FRAME_BYTES", 64)
    run = make_run(tmp_path / "run")
    segment(run).write_bytes(A + B)
    if is_compressed:
        compress_segment(segment(run))
    with RunReader(run) as reader:
        assert [rollout.id for rollout in reader.rollouts()] == ["a", "b"]
        found = [[line for _, line in lines] for lines in reader.cursor("rollouts").read_backwards()]
        assert found == [[B, A]]


@given(st.lists(st.sampled_from([b"", b"a", b"x" * 30]), max_size=8).map(b"\n".join), st.integers(1, 40))
def test_long_lines_have_the_same_offsets(data, step):
    """A line has the same start and end whether or not it is held in memory."""
    before = segment_reader._BUFFER_BYTES
    segment_reader._BUFFER_BYTES = 10
    try:
        blocks = [
            FileBlock(start, len(data[start:][:step]), data[start:][:step]) for start in range(0, len(data), step)
        ]
        forwards = list(split_lines(blocks))
    finally:
        segment_reader._BUFFER_BYTES = before
    assert all(line.data == data[line.offset : line.end] for line in forwards if line.data)
    assert all(line.error or line.data or line.end - line.offset > 10 for line in forwards)


def test_many_line_feeds_from_the_end_take_linear_time(tmp_path):
    """Reading a ledger of nothing but line feeds stops early."""
    run = make_run(tmp_path / "run")
    (run / "ledger" / "zz.jsonl").write_bytes(b"\n" * (4 << 20))
    with RunReader(run) as reader:
        assert reader.ledgers() == {}
        assert any("the rest is not read" in error.message for error in reader.read_errors)


def test_damage_among_valid_lines_is_passed_over(tmp_path, monkeypatch):
    """Reading a segment stops only at many damaged lines in a row."""
    monkeypatch.setattr(cursor, "MAX_DAMAGED_LINES", 5)
    run = make_run(tmp_path / "run")
    lines = [rollout_line(f"r{number}") for number in range(40)]
    segment(run).write_bytes(b"".join(line + b"damaged\n" for line in lines) + b"damaged\n" * 20 + A)
    with RunReader(run) as reader:
        assert len(list(reader.rollouts())) == 40
        assert reader.read_errors[-1].offset is None
    segment(run).write_bytes(b"".join(line + b"damaged\n" for line in lines) + A)
    with RunReader(run) as reader:
        assert len(list(reader.rollouts())) == 41


def test_blob_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    """A blob beyond the limit would fill the memory, so it is not read."""
    monkeypatch.setattr(blobs, "MAX_BLOB_BYTES", 100)
    run = make_run(tmp_path / "run")
    name = "sha256-" + "0" * 64
    with (run / "blobs" / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecordError, match="at most 100 bytes"):
        RunReader(run).blob(name)


def nested_line(depth: int) -> bytes:
    """A rollout with a free-form map of this many levels."""
    body = A.partition(b',"crc"')[0].replace(
        b'"task_data":{}', b'"task_data":%s' % (b'{"a":' * depth + b"1" + b"}" * depth)
    )
    return add_checksum(body + b"}")


@pytest.mark.parametrize("depth", [MAX_NESTING + 2, 500, 900, 10_000])
def test_line_that_is_nested_too_deeply_is_refused(tmp_path, depth):
    """A line is refused with and without markers in it; what was written within the bound is read."""
    assert decode_rollout(nested_line(MAX_NESTING)).id == "a"
    with pytest.raises(RecordError):
        decode_rollout(nested_line(depth))
    run = make_run(tmp_path / "run")
    segment(run).write_bytes(nested_line(depth) + B)
    with rolltrace.open_run(run) as opened:
        assert opened.sql("select id from rollouts").fetchall() == [("b",)]
        assert [rollout.id for rollout in opened.rollouts()] == ["b"]
        assert len(opened.problems) == 1


def test_record_that_is_too_long_is_not_written(tmp_path, monkeypatch):
    """A writer drops and counts a record that no reader would accept."""
    monkeypatch.setattr(codec, "MAX_LINE_BYTES", 10_000)
    with create_run(tmp_path / "run") as writer:
        for index, text in enumerate(["short", "x" * 20_000]):
            with writer.rollout(env="e", task="t", group="g", index=index) as recorder:
                recorder.step(prompt="?", response=text, reward=1.0)
    with RunReader(tmp_path / "run") as reader:
        assert len(list(reader.rollouts())) == 1
        [ledger] = reader.ledgers().values()
        assert (ledger.recorded, ledger.unrecordable) == (1, {"RecordError": 1})
