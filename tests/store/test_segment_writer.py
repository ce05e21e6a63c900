"""A file that grows by whole lines: rotation, and what is left when writing fails at any byte."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from file_reads import open_descriptors
from rolltrace.store.layout import segment_name
from rolltrace.store.segment_writer import SegmentWriter

LINE = st.binary(max_size=30).map(lambda data: data.replace(b"\n", b".") + b"\n")


def contents(folder):
    """The contents of the files of a folder, in order."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@given(st.lists(st.lists(LINE, min_size=1, max_size=4), max_size=12), st.integers(1, 80))
def test_lines_are_kept_in_order(tmp_path_factory, batches, full_at):
    """Concatenated, the files hold exactly the lines; each but the last was handed over when it was full."""
    folder = tmp_path_factory.mktemp("segment")
    full = []
    segment = SegmentWriter(folder, "w", segment_name, full_at, full.append)
    for batch in batches:
        segment.append(batch)
    segment.sync()
    segment.close()
    files = contents(folder)
    assert b"".join(files) == b"".join(line for batch in batches for line in batch)
    assert [path.name for path in full] == sorted(path.name for path in folder.iterdir())[:-1]
    assert all(len(data) <= full_at or data in map(b"".join, batches) for data in files)


@given(st.lists(st.tuples(LINE, st.sampled_from(["whole", "half", "half and stuck", "none"])), max_size=12))
def test_failed_line_is_cut_off_or_ends_the_file(tmp_path_factory, steps):
    """A partly written line is truncated; if that fails, it ends the file, and the next line goes to a new one."""
    folder = tmp_path_factory.mktemp("segment")
    segment = SegmentWriter(folder, "w", segment_name)
    kept = []
    for line, fate in steps:
        with pytest.MonkeyPatch.context() as patch:
            if fate != "whole":
                patch.setattr(os, "write", failing_write(0 if fate == "none" else len(line) // 2))
            if fate == "half and stuck":
                patch.setattr(os, "ftruncate", refuse)
            try:
                segment.append([line])
            except OSError:
                assert fate != "whole"
            else:
                kept.append(line)
    segment.close()
    assert [line for data in contents(folder) for line in data.split(b"\n")[:-1]] == [line[:-1] for line in kept]


def failing_write(size):
    """A write that takes this many bytes, and then fails."""
    real, taken = os.write, []

    def write(descriptor, data):
        if taken or not size:
            raise OSError(28, "No space left on device")
        taken.append(real(descriptor, bytes(data)[:size]))
        return taken[0]

    return write


def refuse(*_):
    raise OSError(5, "Input/output error")


def test_nothing_is_opened_before_the_first_line(tmp_path):
    """A folder to which nothing was written has no empty file."""
    segment = SegmentWriter(tmp_path, "w", segment_name)
    segment.sync()
    segment.close()
    assert contents(tmp_path) == []


def test_existing_file_is_not_written_to(tmp_path):
    """A segment never writes to a file that already exists."""
    (tmp_path / segment_name("w", 0)).write_bytes(b"other\n")
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, "w", segment_name).append([b"line\n"])
    assert contents(tmp_path) == [b"other\n"]


def test_folder_is_synced_once_for_each_file(tmp_path, monkeypatch):
    """The folder of a new file is synced once, with its first lines; afterwards only the file is synced."""
    synced = []
    real = os.fsync

    def note(descriptor):
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    segment = SegmentWriter(tmp_path, "w", segment_name)
    file = str(tmp_path / segment_name("w", 0))
    segment.append([b"a\n"])
    segment.sync()
    segment.sync()
    segment.append([b"b\n"])
    segment.sync()
    segment.close()
    assert synced == [file, str(tmp_path), file]


def test_inherited_descriptor_that_was_reused(tmp_path):
    """A forked process does not close a file that has got the number of its parent's descriptor."""
    segment = SegmentWriter(tmp_path, "w", segment_name)
    segment.append([b"a\n"])
    [number] = open_descriptors(tmp_path / segment_name("w", 0))
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), number)
    segment.close_descriptor()
    assert os.write(number, b"still open") == 10
    os.close(number)
    assert contents(tmp_path)[0] == b"still open"
