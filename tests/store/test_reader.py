"""Reading a run: everything intact, and a report of everything else."""

import errno
import json
import os
import signal
import threading

import pytest

from file_reads import open_descriptors
from rolltrace.errors import ChecksumError, RecordError, RunNotFoundError, StorageError, UnknownNameError
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.cursor import LineLocation
from rolltrace.store.ledger import Ledger, encode_ledger
from rolltrace.store.read_errors import ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import add_checksum, utc_now
from segments import make_run, rollout_line, segment


@pytest.fixture
def run(tmp_path):
    """A run of three rollouts, and the path of its only segment."""
    path = make_run(tmp_path / "run")
    segment(path).write_bytes(b"".join(rollout_line(f"r{index}", "1 + 1?", index=index) for index in range(3)))
    return path, segment(path)


def fail(number):
    raise OSError(number, os.strerror(number))


def indexes(reader):
    return [rollout.index for rollout in reader.rollouts()]


def test_order_is_stable(run):
    """Two readers give the same rollouts in the same order."""
    path, _ = run
    assert [r.id for r in RunReader(path).rollouts()] == [r.id for r in RunReader(path).rollouts()]
    assert indexes(RunReader(path)) == [0, 1, 2]


def test_no_run_says_what_was_expected(tmp_path):
    """The error names a place without a run, and says what a run looks like."""
    with pytest.raises(RunNotFoundError, match=r"run\.json, got nothing"):
        RunReader(tmp_path / "nowhere")
    with pytest.raises(RunNotFoundError, match="got a directory without it"):
        RunReader(tmp_path)


def test_torn_tail_costs_only_itself(run):
    """Half a last line is a problem, reported once however often it is read."""
    path, file = run
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    reader = RunReader(path)
    assert indexes(reader) == [0, 1]
    assert indexes(reader) == [0, 1]
    [problem] = reader.read_errors
    assert (problem.file, problem.offset) == (f"rollouts/{file.name}", len(b"".join(whole.splitlines(True)[:2])))
    assert "whole line" in problem.message


@pytest.mark.parametrize("damage", [b"\x00\xff\xfe", b"not json", b"", b"{}", b'{"v":2,"crc":"00000000"}'])
def test_damaged_line_costs_only_itself(run, damage):
    """Whatever a line was overwritten with, the others are read, and the damage is reported by file and byte."""
    path, file = run
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + damage + b"\n" + lines[2])
    reader = RunReader(path)
    assert indexes(reader) == [0, 2]
    [problem] = reader.read_errors
    assert problem.offset == len(lines[0])


def test_flipped_bit_is_found(run):
    """A changed byte inside a line that is still valid JSON is found by the checksum."""
    path, file = run
    file.write_bytes(file.read_bytes().replace(b'"1 + 1?"', b'"1 + 2?"', 1))
    reader = RunReader(path)
    assert indexes(reader) == [1, 2]
    assert "checksum" in reader.read_errors[0].message


def test_newer_line_is_refused_by_name(run):
    """The problem of a line of a newer version names the version; older lines beside it are read."""
    path, file = run
    with file.open("ab") as stream:
        stream.write(add_checksum(b'{"v":99,"id":"x"}'))
    reader = RunReader(path)
    assert indexes(reader) == [0, 1, 2]
    assert "version 99" in reader.read_errors[0].message


def test_strange_files_are_named(run):
    """A file that is no segment is a problem, and does not stop reading."""
    path, _ = run
    (path / "rollouts/notes.txt").touch()
    (path / "rollouts/folder.jsonl").mkdir()
    reader = RunReader(path)
    assert indexes(reader) == [0, 1, 2]
    assert {problem.file for problem in reader.read_errors} == {"rollouts/notes.txt", "rollouts/folder.jsonl"}


def test_get_finds_by_id(run):
    """A rollout is found by its id; the error names an unknown id."""
    path, _ = run
    reader = RunReader(path)
    wanted = list(reader.rollouts())[1]
    assert reader.get(wanted.id) == wanted
    with pytest.raises(UnknownNameError, match="nobody"):
        reader.get("nobody")


def test_blob_names_are_digests(run):
    """A blob name that is a path is not followed, and bytes with another digest are refused."""
    path, _ = run
    reader = RunReader(path)
    name = "sha256-" + "0" * 64
    (path / "blobs" / name).write_bytes(b"other bytes")
    with pytest.raises(ChecksumError, match="got sha256-"):
        reader.blob(name)
    for hostile in ("../run.json", "/etc/passwd", name + "/..", name + "\n", "sha256-" + "A" * 64, ""):
        with pytest.raises(RecordError, match="64 hexadecimal digits"):
            reader.blob(hostile)
    with pytest.raises(RecordError, match="No such file"):
        reader.blob("sha256-" + "1" * 64)


def test_the_reader_returns_lines_unchanged(tmp_path, make_line, make_score):
    """The raw reader ignores late scores: a rollout's reward is its line's, and it has no scores."""
    with create_run(tmp_path / "run") as writer:
        line = make_line(writer, reward=None)
        line.record()
        writer.write_score(make_score(writer, line.id, 0.25))
    with RunReader(tmp_path / "run") as reader:
        for rollout in (*reader.rollouts(), reader.get(line.id)):
            assert (rollout.reward, rollout.line_reward, rollout.scores) == (None, None, ())


def test_records_are_plain_json(run):
    """A segment can be read with a plain JSON parser."""
    _, file = run
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["v"], first["env"], first["reward"]) == (2, "arithmetic", 1.0)


def test_location_gives_its_line(run):
    """A line is read by its location, before and after its segment is compressed."""
    path, file = run
    reader = RunReader(path)
    found = list(reader.cursor("rollouts").read())
    assert [reader.read_line(place) for place, _ in found] == [line for _, line in found]
    compress_segment(file)
    assert [reader.read_line(place) for place, _ in found] == [line for _, line in found]
    assert reader.read_errors == ()


@pytest.mark.parametrize(
    "place",
    [
        LineLocation("rollouts/session-000000", 1, 100), LineLocation("rollouts/session-000000", 0, 10**12),
        LineLocation("rollouts/session-000000", 10**12, 5), LineLocation("rollouts/other-000000", 0, 5),
        LineLocation("", 0, 5),
    ],
)  # fmt: skip
def test_location_without_a_line_is_refused(run, place):
    """Bytes that are not a line are not returned as one."""
    path, file = run
    for _ in range(2):
        with pytest.raises(RecordError, match="Expected a line"):
            RunReader(path).read_line(place)
        if file.exists():
            compress_segment(file)


def test_valid_line_that_is_no_rollout_is_reported(run):
    """A line with a right checksum that is no rollout is a problem, and `get` says what is wrong."""
    path, file = run
    end = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(add_checksum(b'{"v":2,"id":"odd","reward":"high"}'))
    reader = RunReader(path)
    assert indexes(reader) == [0, 1, 2]
    assert [(problem.file, problem.offset) for problem in reader.read_errors] == [(f"rollouts/{file.name}", end)]
    with pytest.raises(RecordError, match="Expected a rollout record"):
        reader.get("odd")


# The last ledger of each session


def ledger_line(session="s", **fields):
    return encode_ledger(Ledger(run="run", session=session, written_at=utc_now(), **fields))


def test_ledgers_are_the_last_of_each_session(run):
    """The last line counts, and of several files of a session the one that was begun last, whatever its time."""
    path, _ = run
    lines = [ledger_line(recorded=number, dispatched=number) for number in range(3)]
    segment(path, "a", "ledger").write_bytes(b"".join(ledger_line("a", recorded=number) for number in range(5)))
    for name, line in (("s.10", lines[0]), ("s.2", lines[1]), ("s", lines[2])):
        segment(path, name, "ledger").write_bytes(line)
    reader = RunReader(path)
    assert {session: ledger.recorded for session, ledger in reader.ledgers().items()} == {"a": 4, "s": 0}
    assert reader.read_errors == ()


def test_ledgers_are_read_from_the_end(run, monkeypatch):
    """A ledger with very many lines costs no more to read than its last line."""
    path, _ = run
    with segment(path, "s", "ledger").open("wb") as file:
        file.writelines(ledger_line(recorded=number) for number in range(3000))
    read = []
    real = os.pread

    def count(descriptor, length, offset):
        read.append(length)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", count)
    assert RunReader(path).ledgers()["s"].recorded == 2999
    assert sum(read) <= 64 * 1024
    assert segment(path, "s", "ledger").stat().st_size > 500_000


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        (ledger_line()[:40], ReadErrorKind.TORN), (b"\x00\xff\n", ReadErrorKind.DAMAGED),
        (add_checksum(b'{"v":99}'), ReadErrorKind.NEWER),
        (add_checksum(b'{"v":2,"run":7}'), ReadErrorKind.INVALID),
        (add_checksum(b'{"v":1,"run":"r"}'), ReadErrorKind.INVALID),
    ],
)  # fmt: skip
def test_last_valid_ledger_counts(run, tail, kind):
    """Damage at the end of a ledger is reported, and the line before it counts."""
    path, _ = run
    file = segment(path, "s", "ledger")
    file.write_bytes(ledger_line(recorded=1) + ledger_line(recorded=2) + tail)
    reader = RunReader(path)
    assert reader.ledgers()["s"].recorded == 2
    assert [(problem.kind, problem.offset) for problem in reader.read_errors] == [
        (kind, file.stat().st_size - len(tail)),
    ]  # fmt: skip
    file.write_bytes(tail)
    assert RunReader(path).ledgers() == {}


def test_ledger_before_unreadable_bytes_is_found(run, monkeypatch):
    """If the end of a ledger cannot be read, the last readable line counts."""
    path, _ = run
    file = segment(path, "s", "ledger")
    with file.open("wb") as stream:
        stream.writelines(ledger_line(recorded=number) for number in range(8000))
    bad = 1 << 20
    assert file.stat().st_size > bad
    real = os.pread

    def refuse(descriptor, length, offset):
        if offset + length > bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", refuse)
    reader = RunReader(path)
    assert 0 < reader.ledgers()["s"].recorded < 7999
    assert {problem.kind for problem in reader.read_errors} == {ReadErrorKind.UNREADABLE}


def test_a_torn_ledger_is_no_problem_when_it_is_whole(run):
    """The line was being written."""
    path, _ = run
    file, line = segment(path, "s", "ledger"), ledger_line(recorded=1)
    reader = RunReader(path)
    file.write_bytes(line + line[:30])
    assert reader.ledgers()["s"].recorded == 1
    assert [problem.kind for problem in reader.read_errors] == [ReadErrorKind.TORN]
    file.write_bytes(line + line)
    assert reader.ledgers()["s"].recorded == 1
    assert reader.read_errors == ()


# Problems have a kind


def test_problems_have_a_kind(run):
    """Each problem has a kind, so that its message need not be parsed."""
    path, file = run
    line = rollout_line("r9")
    with file.open("ab") as stream:
        stream.write(
            b"damage\n" + add_checksum(b'{"v":99}') + add_checksum(b'{"v":0}') + add_checksum(b'{"v":2}') + line[:30]
        )
    segment(path, "other-000001").write_bytes(line)
    segment(path, "folder").mkdir()
    (path / "rollouts/notes.txt").touch()
    reader = RunReader(path)
    assert sum(1 for _ in reader.rollouts()) == 4
    assert sorted((problem.file.partition("/")[2], problem.kind.value) for problem in reader.read_errors) == [
        ("folder.jsonl", "strange"), ("notes.txt", "strange"), ("other-000000.jsonl", "missing"),
        ("session-000000.jsonl", "damaged"), ("session-000000.jsonl", "invalid"), ("session-000000.jsonl", "invalid"),
        ("session-000000.jsonl", "newer"), ("session-000000.jsonl", "torn"),
    ]  # fmt: skip


# Transient errors of the disk


@pytest.fixture
def stale(monkeypatch):
    """Makes reading segments fail a given number of times with a transient error."""
    left = [0]
    real = os.pread

    def refuse(*arguments):
        if left[0] > 0:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*arguments)

    monkeypatch.setattr(os, "pread", refuse)
    return left


@pytest.mark.parametrize("sealed", [False, True])
def test_transient_error_is_not_a_missing_rollout(run, stale, sealed):
    """A disk error is raised as StorageError; once the disk answers, the rollout is found."""
    path, file = run
    if sealed:
        compress_segment(file)
    reader = RunReader(path)
    assert reader.get("r1").id == "r1"
    stale[0] = 1
    with pytest.raises(StorageError, match="Stale file handle"):
        reader.get("r1")
    assert reader.get("r1").id == "r1"


@pytest.mark.parametrize("sealed", [False, True])
def test_transient_error_is_forgotten_once_it_has_passed(run, stale, sealed):
    """Lines that could not be read are reported, are read the next time, and are then no problem."""
    path, file = run
    if sealed:
        compress_segment(file)
    reader = RunReader(path)
    cursor = reader.cursor("rollouts")
    stale[0] = 100 if sealed else 1
    assert list(cursor.read()) == []
    stale[0] = 0
    assert [(problem.kind, problem.is_transient) for problem in reader.read_errors] == [
        (ReadErrorKind.UNREADABLE, True)
    ]
    assert len(list(cursor.read())) == 3
    assert reader.read_errors == ()


def test_errors_of_one_file_are_forgotten_together(run, monkeypatch):
    """A file that failed to open in several ways has no problems once it can be opened."""
    path, _ = run
    reader = RunReader(path)
    for number in (errno.ESTALE, errno.EMFILE):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *_, number=number, **__: fail(number))
            assert list(reader.rollouts()) == []
    assert len(reader.read_errors) == 2
    assert next(reader.rollouts()).id == "r0"
    assert reader.read_errors == ()


@pytest.mark.parametrize("sealed", [False, True])
def test_damaged_line_is_named_by_get(run, sealed):
    """A rollout whose line is damaged is not reported as unknown: the error says where it was."""
    path, file = run
    reader = RunReader(path)
    assert reader.get("r1").id == "r1"
    if sealed:
        compress_segment(file)
        file = file.with_name(f"{file.name}.zst")
        data = bytearray(file.read_bytes())
        data[100] ^= 255
        file.write_bytes(data)
    else:
        file.write_bytes(file.read_bytes().replace(b'"index":1', b'"index":7'))
    with pytest.raises(ChecksumError, match=r"at byte [0-9]+ of rollouts/session-000000"):
        reader.get("r1")
    with pytest.raises(UnknownNameError, match="1 of its places cannot"):
        RunReader(path).get("r1")


def test_reader_has_no_file_open(tmp_path):
    """A reader has no open file after a lookup, and works again after `close`."""
    path = make_run(tmp_path / "run")
    segment(path).write_bytes(b"".join(rollout_line(f"r{index}") for index in range(20)))
    with RunReader(path) as reader:
        assert reader.get("r19").id == "r19"
        assert open_descriptors(path) == []
        reader.close()
        assert reader.get("r0").id == "r0"
    assert open_descriptors(path) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads, which is the point
def test_reader_after_fork(run, monkeypatch):
    """A child that was forked during a lookup in another thread does not hang, and finds everything."""
    path, _ = run
    reader = RunReader(path)
    searching, goes_on, pread = threading.Event(), threading.Event(), os.pread

    def read_slowly(*arguments):
        if threading.current_thread() is searcher:
            searching.set()
            goes_on.wait()
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", read_slowly)
    searcher = threading.Thread(target=reader.get, args=("r0",))
    searcher.start()
    searching.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is ended all the same
        status = 1
        try:
            status = 0 if [reader.get(f"r{index}").index for index in range(3)] == [0, 1, 2] else 1
        finally:
            os._exit(status)
    goes_on.set()
    searcher.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert reader.get("r1").index == 1
