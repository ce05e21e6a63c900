"""The cursor over a folder of segments: every valid line once, and every problem while it lasts."""

import errno
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.store import segment_reader
from rolltrace.store.compression import compress_segment
from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.read_errors import MAX_PER_FILE, ReadError, ReadErrorKind, ReadErrors
from rolltrace.store.run_files import LocalFile, LocalFiles
from rolltrace.store.segment_reader import TORN, FileBlock, split_lines
from rolltrace.trace.codec import add_checksum
from segments import make_run, segment

A, B, C = (add_checksum(b'{"v":2,"id":"%s"}' % name) for name in (b"a", b"b", b"c"))
FILE = "rollouts/session-000000"


@pytest.fixture
def run(tmp_path):
    """A run without records."""
    return make_run(tmp_path / "run")


class Reading:
    """A cursor, and the problems it reports."""

    def __init__(self, run, covered=None):
        self.reported = []
        self.problems = ReadErrors()
        self.cursor = Cursor(LocalFiles(run), "rollouts", self._report, covered, self.problems.clear_transient)

    def _report(self, problem):
        self.reported.append(problem)
        self.problems.report(problem)

    def read(self):
        """The lines that are new."""
        return [line for _, line in self.cursor.read()]

    @property
    def places(self):
        """The places of the current problems."""
        return [(problem.file, problem.offset) for problem in self.problems.all()]


def test_resumes_where_it_stopped(run):
    """Lines that were read are not read again; appended lines are."""
    segment(run).write_bytes(A + B)
    reading = Reading(run)
    assert list(reading.cursor.read()) == [(LineLocation(FILE, 0, len(A)), A), (LineLocation(FILE, len(A), len(B)), B)]
    assert reading.cursor.covered == {FILE: len(A + B)}
    assert reading.read() == []
    segment(run).write_bytes(A + B + C)
    assert reading.read() == [C]
    assert Reading(run, {FILE: len(A)}).read() == [B, C]
    assert reading.reported == []


def test_segments_are_read_in_the_order_of_their_names(run):
    """Plain and compressed segments are read in the order of their names, each once."""
    for name, line in (("s-000001", B), ("s-000000", A), ("s-000002", C)):
        segment(run, name).write_bytes(line)
    compress_segment(segment(run, "s-000001"))
    reading = Reading(run)
    assert reading.read() == [A, B, C]
    assert reading.reported == []


def test_compression_changes_nothing_for_a_reader(run):
    """A segment that is compressed between two readings is not read again."""
    segment(run).write_bytes(A + B)
    reading = Reading(run)
    assert reading.read() == [A, B]
    compress_segment(segment(run))
    assert reading.read() == []
    assert Reading(run, {FILE: len(A)}).read() == [B]
    assert reading.reported == []


def test_file_that_is_compressed_after_it_was_listed_is_read(run):
    """If the plain file is gone when it is opened, the compressed one is read."""
    segment(run, "s-000000").write_bytes(A)
    segment(run, "s-000001").write_bytes(B + C)
    reading = Reading(run)
    going = reading.cursor.read()
    assert next(going)[1] == A
    compress_segment(segment(run, "s-000001"))
    assert [line for _, line in going] == [B, C]
    assert reading.reported == []


def test_segments_that_were_listed_before_are_read_without_another_listing(run, monkeypatch):
    """It reads those that it is given, in their order, and says nothing about others."""
    segment(run, "session-000000").write_bytes(A)
    segment(run, "session-000002").write_bytes(B)
    segment(run, "session-000003").write_bytes(C)
    files, reported = LocalFiles(run), []
    [first, _, last] = segment_reader.existing_segments(files, "rollouts")
    monkeypatch.delattr(LocalFiles, "list_files")
    cursor = Cursor(files, "rollouts", reported.append, segments=[last, first])
    assert [line for _, line in cursor.read()] == [C, A]
    assert reported == []


def test_torn_line_is_reported_until_it_is_whole(run):
    """An incomplete last line is one problem, is not covered, and is no problem once it is complete."""
    segment(run).write_bytes(A + B[:10])
    reading = Reading(run)
    assert reading.read() == [A]
    segment(run).write_bytes(A + B[:20])
    assert reading.read() == []
    assert [problem.is_transient for problem in reading.problems.all()] == [True]
    assert reading.places == [(f"{FILE}.jsonl", len(A))]
    assert reading.cursor.covered == {FILE: len(A)}
    segment(run).write_bytes(A + B + C[:5])
    assert reading.read() == [B]
    assert reading.places == [(f"{FILE}.jsonl", len(A + B))]
    segment(run).write_bytes(A + B + C)
    assert reading.read() == [C]
    assert reading.places == []


def test_torn_line_may_be_cut_off_and_written_again(run):
    """A writer cuts off a torn line; the next line may end at the same byte."""
    segment(run).write_bytes(A + b"x" * len(B))
    reading = Reading(run)
    assert reading.read() == [A]
    segment(run).write_bytes(A + B)
    assert reading.read() == [B]
    assert reading.places == []


def test_torn_line_of_a_compressed_segment_stays_a_problem(run):
    """A torn line in a compressed segment will never be completed, so its problem is permanent."""
    segment(run).write_bytes(A + B[:10])
    compress_segment(segment(run))
    reading = Reading(run)
    assert reading.read() == [A]
    assert reading.read() == []
    [problem] = reading.reported
    assert (problem.file, problem.offset, problem.is_transient) == (f"{FILE}.jsonl.zst", len(A), False)


@pytest.mark.parametrize(
    "damage",
    [
        b"\n", b"\x00" * 5000 + b"\n", b"{}\n", b"\xff\xfe\n", A[:-3] + b"\n", A[:-1] + b"\r\n",
        A.replace(b'"a"', b'"x"'),
        add_checksum(b'"text"'), add_checksum(b'{"id":"no version"}'), add_checksum(b'{"v":0,"id":"x"}'),
        add_checksum(b'{"v":"1","id":"x"}'),
        add_checksum(b"[" * 100_000 + b"]" * 100_000),
    ],
)  # fmt: skip
def test_damaged_line_costs_only_itself(run, damage):
    """Whatever replaces a line, the lines around it are read, and its place is reported once."""
    segment(run).write_bytes(A + damage + C)
    reading = Reading(run)
    assert reading.read() == [A, C]
    assert reading.read() == []
    assert [(problem.file, problem.offset) for problem in reading.reported] == [(f"{FILE}.jsonl", len(A))]


def test_newer_version_is_refused_by_name(run):
    """A valid line of a newer version is not returned, and the problem names the version."""
    segment(run).write_bytes(A + add_checksum(b'{"v":99,"id":"x"}') + B)
    reading = Reading(run)
    assert reading.read() == [A, B]
    assert "version 99" in reading.reported[0].message


def test_order_of_fields_is_not_relied_on(run):
    """A line is read also if its version is not the first field."""
    line = add_checksum(b'{"id":"x","v":2}')
    segment(run).write_bytes(line)
    assert Reading(run).read() == [line]


def test_strange_names_are_reported(run):
    """A file that is no segment is reported and skipped; hidden names are unfinished files."""
    folder = run / "rollouts"
    segment(run).write_bytes(A)
    (folder / "notes.txt").touch()
    (folder / "folder-000000.jsonl").mkdir()
    os.mkfifo(folder / "pipe-000000.jsonl")
    (folder / "nowhere-000000.jsonl").symlink_to("nothing")
    (folder / "device-000000.jsonl").symlink_to("/dev/zero")
    (folder / "loop-000000.jsonl").symlink_to("loop-000000.jsonl")
    (folder / ".session-000000.jsonl.zst.0123").write_bytes(b"half")
    (folder / os.fsdecode(b"\xff\xfe.jsonl")).write_bytes(B)
    reading = Reading(run)
    assert reading.read() == [A]
    reading.read()
    assert sorted(problem.file for problem in reading.problems.all()) == [
        "rollouts/\\udcff\\udcfe.jsonl",
        "rollouts/device-000000.jsonl", "rollouts/folder-000000.jsonl", "rollouts/loop-000000.jsonl",
        "rollouts/notes.txt", "rollouts/nowhere-000000.jsonl", "rollouts/pipe-000000.jsonl",
    ]  # fmt: skip


def test_link_to_a_segment_is_read(run, tmp_path):
    """A segment may be a link to a file elsewhere."""
    (tmp_path / "elsewhere").write_bytes(A)
    segment(run).symlink_to(tmp_path / "elsewhere")
    assert Reading(run).read() == [A]


def test_missing_folder_is_a_problem_until_it_is_there(run):
    """A folder that cannot be listed is one problem; once it exists, there is none."""
    (run / "rollouts").rmdir()
    reading = Reading(run)
    assert reading.read() == reading.read() == []
    assert [problem.file for problem in reading.problems.all()] == ["rollouts"]
    (run / "rollouts").mkdir()
    segment(run).write_bytes(A)
    assert reading.read() == [A]
    assert reading.places == []


def test_missing_segment_is_named(run):
    """Segments of a session are numbered without gaps, so a gap is a loss; so is a file that has disappeared."""
    for number, line in ((0, A), (2, B), (3, C)):
        segment(run, f"s-{number:06d}").write_bytes(line)
    reading = Reading(run)
    assert reading.read() == [A, B, C]
    assert reading.places == [("rollouts/s-000001.jsonl", None)]
    segment(run, "s-000003").unlink()
    reading.read()
    reading.read()
    assert reading.places == [("rollouts/s-000001.jsonl", None), ("rollouts/s-000003.jsonl", None)]


def test_file_that_a_listing_missed_is_listed_again(run, monkeypatch):
    """A listing during compression may miss both names of a segment, so it is repeated before a loss is reported."""
    for number, line in ((0, A), (1, B), (2, C)):
        segment(run, f"s-{number:06d}").write_bytes(line)
    files = LocalFiles(run).list_files("rollouts")
    listings = [files, [file for file in files if "000001" not in file.name]]
    monkeypatch.setattr(LocalFiles, "list_files", lambda files, folder: listings.pop())
    reading = Reading(run)
    assert reading.read() == [A, B, C]
    assert reading.reported == []


def test_huge_segment_number_is_bounded(run):
    """A segment with a huge number does not produce a million problems."""
    segment(run, "s-999999").write_bytes(A)
    reading = Reading(run)
    assert reading.read() == [A]
    assert 0 < len(reading.reported) <= 100


def test_file_that_shrank_is_reported_once(run):
    """A file that is shorter than what was read of it was truncated or replaced, and is reported."""
    segment(run).write_bytes(A + B)
    reading = Reading(run)
    reading.read()
    segment(run).write_bytes(A)
    assert reading.read() == reading.read() == []
    [problem] = reading.reported
    assert "truncated or replaced" in problem.message


def test_line_that_is_too_long_is_passed_over(run, monkeypatch):
    """A line beyond the limit is a problem; the next one is read."""
    monkeypatch.setattr(segment_reader, "MAX_LINE_BYTES", 100)
    segment(run).write_bytes(A + b"x" * 101 + b"\n" + B + b"y" * 200)
    reading = Reading(run)
    assert reading.read() == [A, B]
    assert [problem.offset for problem in reading.reported] == [len(A), len(A) + 102 + len(B)]


def test_long_line_is_read(run):
    """A line that spans many blocks is one line, plain and compressed."""
    line = add_checksum(b'{"v":2,"id":"x","text":"%s"}' % (b"0123456789" * 500_000))
    segment(run).write_bytes(A + line + B)
    assert Reading(run).read() == [A, line, B]
    compress_segment(segment(run))
    assert Reading(run).read() == [A, line, B]


@pytest.mark.parametrize("failing", ["list_files", "open"])
def test_every_failure_to_read_is_reported_until_reading_succeeds(run, monkeypatch, failing):
    """Also one that comes back, at the same place, after it had gone away."""

    def fail(*_):
        raise OSError(errno.ESTALE, "gone for now")

    segment(run).write_bytes(A)
    reading = Reading(run)
    for line in (A, B, C):
        with monkeypatch.context() as patch:
            patch.setattr(LocalFiles, failing, fail)
            assert reading.read() == []
            assert [problem.message for problem in reading.problems.all()] == ["gone for now"]
        failures = reading.problems.failures
        assert reading.read() == [line]
        assert reading.problems.all() == ()
        assert reading.problems.failures == failures > 0
        with segment(run).open("ab") as file:
            file.write(B if line == A else C)


def test_a_failure_at_a_torn_line_is_reported(run, monkeypatch):
    """Where a line was being written, the system may fail to read it later."""

    def fail(*_):
        raise OSError(errno.ESTALE, "gone for now")

    segment(run).write_bytes(A + B[:10])
    reading = Reading(run)
    assert reading.read() == [A]
    segment(run).write_bytes(A + B)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "read", fail)
        assert reading.read() == []
        assert [problem.message for problem in reading.problems.all() if problem.is_retryable] == ["gone for now"]
    segment(run).write_bytes(A + B[:20])
    assert reading.read() == []
    assert [problem.kind for problem in reading.problems.all()] == [ReadErrorKind.TORN]
    segment(run).write_bytes(A + B)
    assert reading.read() == [B]
    assert reading.problems.all() == ()


def test_a_compressed_segment_that_was_read_up_to_a_limit_is_read_further(run):
    """It does not count as read to its end."""
    segment(run).write_bytes(A + B)
    compress_segment(segment(run))
    limits = {FILE: len(A)}
    cursor = Cursor(LocalFiles(run), "rollouts", pytest.fail, limits=limits)
    assert [line for _, line in cursor.read()] == [A]
    limits[FILE] = len(A + B)
    assert [line for _, line in cursor.read()] == [B]


def test_problems_per_file_are_bounded(run):
    """A file of nothing but damage does not fill the memory with problems."""
    segment(run).write_bytes(b"\n" * (MAX_PER_FILE + 500))
    reading = Reading(run)
    assert reading.read() == []
    assert len(reading.places) == MAX_PER_FILE + 1
    assert "More than" in reading.problems.all()[-1].message


def test_problem_is_the_same_before_and_after_compression():
    """A place has one problem, whether its file is plain or compressed."""
    problems = ReadErrors()
    problems.report(ReadError(f"{FILE}.jsonl", 3, "first"))
    problems.report(ReadError(f"{FILE}.jsonl.zst", 3, "second"))
    assert [problem.message for problem in problems.all()] == ["first"]
    assert str(problems.all()[0]) == f"{FILE}.jsonl, byte 3: first"


def test_line_that_runs_into_damage_is_named():
    """A line whose end is in a damaged block is its own problem, and is not joined with what follows the block."""
    blocks = [
        FileBlock(0, 5, b"a\nbcd"),
        FileBlock(5, 3, b"", "damaged"),
        FileBlock(8, 4, b"efg\n"),
        FileBlock(12, 0, b"", "no frame"),
    ]
    found = [(line.offset, line.end, line.data, bool(line.error)) for line in split_lines(blocks)]
    assert found == [
        (0, 2, b"a\n", False), (2, 5, b"", True), (5, 8, b"", True), (8, 12, b"efg\n", False), (12, 12, b"", True),
    ]  # fmt: skip


@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\x00"])).map(b"".join), cuts=st.sets(st.integers(0, 40))
)
def test_lines_do_not_depend_on_blocks(data, cuts):
    """However bytes are cut into blocks, the lines are those between line feeds, at their offsets."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    blocks = [FileBlock(first, last - first, data[first:last]) for first, last in pairwise(edges)]
    found = list(split_lines(blocks))
    whole = [line for line in found if not line.error]
    assert b"".join(line.data for line in whole) == data[: data.rfind(b"\n") + 1]
    assert all(line.data == data[line.offset : line.end] and line.data.count(b"\n") == 1 for line in whole)
    assert [line.error for line in found if line.error] == ([] if data.endswith(b"\n") or not data else [TORN])


def test_compressed_file_that_is_covered_is_not_read(run, monkeypatch):
    """Of a compressed file that was read to its end, only the table is read."""
    segment(run).write_bytes(A + b"".join(add_checksum(b'{"v":2,"id":"%d"}' % number) for number in range(50_000)))
    size = segment(run).stat().st_size
    compress_segment(segment(run))
    looks = []
    real = os.pread

    def count(*arguments):
        looks.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(os, "pread", count)
    reading = Reading(run, {FILE: size})
    assert reading.read() == []
    assert len(looks) == 3
    assert reading.read() == []
    assert len(looks) == 3
    assert len(Reading(run).read()) == 50_001
    assert reading.reported == []
