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
    """The files of a folder in their order."""
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@given(st.lists(st.lists(LINE, min_size=1, max_size=4), max_size=12), st.integers(1, 80))
def test_lines_are_kept_in_order(tmp_path_factory, batches, full_at):
    """Put one after the other, the files hold exactly the lines; each but the last was given away when it was full."""
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
def test_what_fails_leaves_nothing_or_ends_the_file(tmp_path_factory, steps):
    """A line that fails after some bytes is cut off; where it cannot be, it is the end of a file, never glued on."""
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
    """A write that takes so many bytes, and then no more."""
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
    """A folder to which nothing was written holds no empty file."""
    segment = SegmentWriter(tmp_path, "w", segment_name)
    segment.sync()
    segment.close()
    assert contents(tmp_path) == []


def test_another_files_name_is_not_taken(tmp_path):
    """A file of the same name is never written to, whoever made it."""
    (tmp_path / segment_name("w", 0)).write_bytes(b"other\n")
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, "w", segment_name).append([b"line\n"])
    assert contents(tmp_path) == [b"other\n"]


def test_folder_is_synced_once_for_each_file(tmp_path, monkeypatch):
    """A new file's name is brought to the disk with its lines; afterwards its lines are all there is to do."""
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


def test_inherited_descriptor_that_became_somebody_elses(tmp_path):
    """A forked process does not close a file that has the number of its parent's segment by now."""
    segment = SegmentWriter(tmp_path, "w", segment_name)
    segment.append([b"a\n"])
    [number] = open_descriptors(tmp_path / segment_name("w", 0))
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), number)
    segment.close_descriptor()
    assert os.write(number, b"still open") == 10
    os.close(number)
    assert contents(tmp_path)[0] == b"still open"
