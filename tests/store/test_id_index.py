"""The index of byte offsets: derived, shared, and never believed where it is wrong."""

import errno
import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rolltrace.errors import ChecksumError, StorageError, UnknownNameError
from rolltrace.store import id_index, safe_files
from rolltrace.store.compression import compress_segment
from rolltrace.store.cursor import LineLocation
from rolltrace.store.id_index import record_id
from rolltrace.store.id_index_file import ByteRange, IdIndexFile, IdIndexWriter, merge_ranges
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import add_checksum
from segments import make_run, rollout_line, segment

COUNT = 30


@pytest.fixture
def small(monkeypatch):
    """An index that is written for a few lines."""
    monkeypatch.setattr(id_index, "MAX_LINES_IN_MEMORY", 10)


@pytest.fixture
def run(tmp_path):
    """A run of two segments, one of them sealed, of thirty rollouts in all."""
    path = make_run(tmp_path / "run")
    for number in (0, 1):
        segment(path, f"s-{number:06d}").write_bytes(b"".join(rollout_line(f"r{i}") for i in range(number, COUNT, 2)))
    compress_segment(segment(path, "s-000000"))
    return path


def check(run, reader=None):
    """Every rollout is found by its id, and no other is."""
    reader = reader or RunReader(run)
    assert [reader.get(f"r{number}").id for number in range(COUNT)] == [f"r{number}" for number in range(COUNT)]
    with pytest.raises(UnknownNameError, match="nobody"):
        reader.get("nobody")
    return reader


def index_files(run):
    return sorted(run.glob("cache/*"))


def append(run, *rollouts):
    with segment(run, "s-000001").open("ab") as file:
        file.writelines(map(rollout_line, rollouts))


def test_little_is_kept_in_memory(run):
    """A run that is looked through at once leaves no file."""
    check(run)
    assert index_files(run) == []


def test_index_is_used(run, small, file_reads):
    """What the index covers is not read again."""
    RunReader(run).id_index.update()
    assert len(index_files(run)) == 1
    size = sum(file.stat().st_size for file in (run / "rollouts").iterdir())
    assert file_reads.bytes_read(run / "rollouts") >= size
    file_reads.clear()
    reader = RunReader(run)
    reader.id_index.update()
    assert reader.get("r7").id == "r7"
    assert reader.get("r8").id == "r8"
    assert file_reads.bytes_read(run / "rollouts") < size / 2


def test_what_came_later_is_found(run, small):
    """An index that covers a part is completed by what is new."""
    check(run)
    append(run, "late")
    assert RunReader(run).get("late").id == "late"
    reader = check(run)
    append(run, "later")
    assert reader.get("later").id == "later"


def test_files_are_few(run, small):
    """Small files are absorbed into larger ones, so their number grows with the logarithm, and all is still found."""
    names = []
    for batch in range(40):
        names.extend(f"b{batch}-{number}" for number in range(12))
        append(run, *names[-12:])
        RunReader(run).id_index.update()
    assert len(index_files(run)) <= 6
    reader = check(run)
    assert [reader.get(name).id for name in names] == names


def test_files_may_be_deleted_at_any_time(run, small):
    """A reader that has the index open, and one that comes after, both find everything."""
    reader = check(run)
    for path in index_files(run):
        path.unlink()
    check(run, reader)
    check(run)
    assert index_files(run) != []
    (run / "cache").rename(run / "other")
    check(run, reader)


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\x00" + bytes(5000)])
def test_what_is_no_index_is_replaced(run, small, content):
    """A file that is none is deleted, and the index is made again."""
    check(run)
    [path] = index_files(run)
    path.write_bytes(content)
    check(run)
    assert path not in index_files(run)


def test_damaged_index_never_misleads(run, small):
    """Whatever happens to the bytes of an index, every rollout is found, and only that one."""
    check(run)
    [path] = index_files(run)
    whole = path.read_bytes()
    rng = random.Random(3)
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 5, 50])):
            # The first pages have all that there is; the rest of a small database is empty.
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for other in index_files(run):
            other.unlink()
        path.write_bytes(data)
        check(run)


def test_index_of_other_files_is_not_believed(run, small):
    """An index that belongs to segments as they were before is made again."""
    reader = check(run)
    for number in (0, 1):
        lines = [rollout_line(f"r{i}", "longer than before") for i in range(number, COUNT, 2)]
        segment(run, f"s-{number:06d}").write_bytes(b"".join(reversed(lines)))
    (run / "rollouts/s-000000.jsonl.zst").unlink()
    check(run, reader)
    check(run)


def test_wrong_place_is_looked_up_again(run, tmp_path):
    """A place that holds another rollout, or that is outside of the run, is not believed."""
    writer = IdIndexWriter(run / "cache")
    first, secret = rollout_line("r1"), rollout_line("r7", "secret")
    assert segment(run, "s-000001").read_bytes().startswith(first)
    writer.add(
        [("r3", LineLocation("rollouts/s-000001", 0, len(first))), ("r5", LineLocation("rollouts/s-000000", 0, 10))]
    )
    writer.add([("r7", LineLocation("rollouts/../../secret", 0, len(secret)))])
    writer.cover([ByteRange("rollouts/s-000000", 0, 10**6), ByteRange("rollouts/s-000001", 0, 10**6)], [])
    writer.finish().close()
    (tmp_path / "secret.jsonl").write_bytes(secret)
    with pytest.raises(UnknownNameError):
        RunReader(run).get("r7")
    assert RunReader(run).get("r3").id == "r3"
    check(run)


def test_wrong_entry_costs_only_the_file_that_has_it(run, small):
    """Index files without the entry stay."""
    reader = check(run)
    files = index_files(run)
    assert files
    reader.id_index.invalidate("not in any of them")
    assert index_files(run) == files
    reader.id_index.invalidate("r1")
    assert index_files(run) != files
    check(run, reader)


def test_problems_are_kept(run, small):
    """A reader that uses the index knows what was wrong with what it covers."""
    with segment(run, "s-000001").open("ab") as file:
        file.write(b"damage\n" + add_checksum(b'{"v":2}') + rollout_line("last"))
    RunReader(run).id_index.update()
    reader = RunReader(run)
    assert reader.get("r1").id == "r1"
    assert [problem.file for problem in reader.read_errors] == ["rollouts/s-000001.jsonl"] * 2
    assert [problem.offset for problem in reader.read_errors] == sorted(
        problem.offset for problem in reader.read_errors
    )


def test_first_of_two_stands(run, small):
    """Of two lines with one id, the first is found, in one file of the index or in two."""
    RunReader(run).id_index.update()
    with segment(run, "s-000001").open("ab") as file:
        file.writelines(rollout_line(name, "second") for name in ["r0", "new", *(f"x{number}" for number in range(40))])
        file.write(rollout_line("new", "third"))
    for reader in (RunReader(run), RunReader(run)):
        reader.id_index.update()
        assert reader.get("r0").messages[0].content == "2 + 2?"
        assert reader.get("new").messages[0].content == "second"


def test_first_stands_over_memory_and_files(run, small):
    """The same where the second line, or both, are in no file of the index yet."""
    RunReader(run).id_index.update()
    with segment(run, "s-000001").open("ab") as file:
        file.writelines([rollout_line("r0", "second"), rollout_line("new", "first"), rollout_line("new", "second")])
    reader = RunReader(run)
    reader.id_index.update()
    assert len(index_files(run)) == 1
    assert reader.get("r0").messages[0].content == "2 + 2?"
    assert reader.get("new").messages[0].content == "first"


def test_place_for_no_file_costs_only_speed(run, small):
    """A run whose cache cannot be written to is read all the same."""
    (run / "cache").write_bytes(b"a file, where there should be a folder")
    reader = check(run)
    append(run, *(f"x{number}" for number in range(25)))
    assert reader.get("x24").id == "x24"
    check(run, reader)


def test_builders_do_not_disturb_each_other(run):
    """Processes that make the index at once, while it is deleted, all find everything."""
    program = (
        "import sys, pathlib\n"
        "from rolltrace.store import id_index\n"
        "from rolltrace.store.reader import RunReader\n"
        "id_index.MAX_LINES_IN_MEMORY = 10\n"
        "for turn in range(15):\n"
        "    reader = RunReader(sys.argv[1])\n"
        f"    assert [reader.get(f'r{{n}}').id for n in range({COUNT})] == [f'r{{n}}' for n in range({COUNT})]\n"
        "    for path in pathlib.Path(sys.argv[1]).glob('cache/*') if turn % 5 == 4 else ():\n"
        "        path.unlink(missing_ok=True)\n"
    )
    builders = [subprocess.Popen([sys.executable, "-c", program, str(run)]) for _ in range(3)]
    assert [builder.wait(timeout=300) for builder in builders] == [0, 0, 0]
    check(run)
    assert not list(run.glob("cache/.*"))


def test_interrupted_building_starts_over(run, small, monkeypatch):
    """What was read when a person interrupted is not taken for indexed, and no half file stays."""
    reader = RunReader(run)
    real = os.pread

    def interrupt(descriptor, length, offset):
        if "s-000001" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise KeyboardInterrupt
        return real(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.get("r29")
    assert index_files(run) == []
    check(run, reader)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"v":2,"id":"plain","x":1}', "plain"),
        (b'{"v":2,"id":"a\\"b","x":1}', 'a"b'),
        ('{"v":2,"id":"é"}'.encode(), "é"),
        (b'{"id":"late","v":2}', "late"),
        (b'{"v":2,"id":7}', None),
        (b'{"v":2,"id":"\xff"}', None),
        (b'{"v":2,"id":"open', None),
        (b"", None),
    ],
)
def test_id_of_a_line(line, expected):
    """The quick way to an id gives what reading the whole line gives."""
    assert record_id(line) == expected


def test_ids_that_are_no_text_are_not_found(run, small):
    """Asking for an id that no file could hold is no crash."""
    check(run)
    with pytest.raises(UnknownNameError):
        RunReader(run).get("\ud800")


def test_ranges_that_touch_are_one():
    """Coverage counts from the first byte on, over the edges of files of the index."""
    ranges = [ByteRange("b", 0, 5), ByteRange("a", 10, 20), ByteRange("a", 0, 10), ByteRange("a", 25, 30)]
    assert merge_ranges(ranges) == [
        ByteRange("a", 0, 20), ByteRange("a", 25, 30), ByteRange("b", 0, 5),
    ]  # fmt: skip


def test_gap_in_the_index_is_looked_through(run, small):
    """Where a file of the index is gone, what it covered is read again."""
    end = segment(run, "s-000001").stat().st_size
    append(run, *(f"x{number}" for number in range(12)))
    writer = IdIndexWriter(run / "cache")
    writer.cover([ByteRange("rollouts/s-000001", end, end + 10)], [ReadError("rollouts/s-000001.jsonl", end, "old")])
    file = writer.finish()
    assert IdIndexFile.open(file.path).ranges == [ByteRange("rollouts/s-000001", end, end + 10)]
    reader = check(run)
    assert reader.get("x11").id == "x11"


def test_abandoned_files_are_deleted(run, small):
    """What a process that died was making is deleted when it is old, and only then."""
    (run / "cache").mkdir()
    old, young = run / f"cache/.offsets-{0:016x}", run / f"cache/.offsets-{1:016x}"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    check(run)
    assert not old.exists()
    assert young.exists()


# What passes, and what is damaged, leaves the shared index as it is


def fail(number):
    """A function that raises an error of the system."""

    def raise_it(*_, **__):
        raise OSError(number, os.strerror(number))

    return raise_it


def test_passing_error_leaves_the_index(run, small, monkeypatch):
    """A disk that does not answer costs one answer, not the index of all readers."""
    check(run)
    before = index_files(run)
    reader = RunReader(run)
    for number in (errno.ESTALE, errno.EIO, errno.EMFILE):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail(number))
            with pytest.raises(StorageError):
                reader.get("r1")
    assert index_files(run) == before
    check(run, reader)
    assert index_files(run) == before


def test_index_that_cannot_be_read_now_is_left(run, small, monkeypatch):
    """Where SQLite or the check of an index meets an error that passes, the segments are read, and the index stays."""
    check(run)
    before = index_files(run)
    reader = RunReader(run)
    assert reader.get("r2").id == "r2"
    with monkeypatch.context() as patch:
        patch.setattr(safe_files, "open_regular", fail(errno.ESTALE))

        def refuse(self, rollout):
            raise sqlite3.OperationalError("disk I/O error")

        patch.setattr(IdIndexFile, "find", refuse)
        patch.setattr(id_index, "MAX_LINES_IN_MEMORY", 10**6)
        check(run, reader)
    assert index_files(run) == before
    check(run)


def test_damaged_line_leaves_the_index(run, small):
    """One line that is damaged is told of by its place; the index of all others is not made again for it."""
    check(run)
    before = index_files(run)
    file = segment(run, "s-000001")
    file.write_bytes(file.read_bytes().replace(b'"id":"r5"', b'"id":"r6"'))
    for reader in (RunReader(run), RunReader(run)):
        with pytest.raises(ChecksumError, match="of rollouts/s-000001: Expected checksum"):
            reader.get("r5")
        assert reader.get("r7").id == "r7"
    assert index_files(run) == before


def test_bad_place_of_the_disk_is_tried_again(run, small, monkeypatch):
    """What the disk did not give while an index was made is not taken for looked through."""
    real = os.pread

    def refuse(descriptor, length, offset):
        if "s-000001" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            fail(errno.EIO)()
        return real(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        reader = RunReader(run)
        reader.id_index.update()
    assert [problem.kind for problem in reader.read_errors] == [ReadErrorKind.UNREADABLE]
    assert index_files(run) != []
    assert RunReader(run).get("r1").id == "r1"
    assert check(run).read_errors == ()


def test_kinds_of_problems_are_kept(run, small):
    """A problem that comes from the index is of the kind that it was."""
    with segment(run, "s-000001").open("ab") as file:
        file.write(b"damage\n" + add_checksum(b'{"v":99}') + add_checksum(b'{"v":2}') + rollout_line("last"))
    RunReader(run).id_index.update()
    reader = RunReader(run)
    assert reader.get("r1").id == "r1"
    assert [problem.kind for problem in reader.read_errors] == [
        ReadErrorKind.DAMAGED,
        ReadErrorKind.NEWER,
        ReadErrorKind.INVALID,
    ]


# Killed while it makes an index

KILLED = """
import json, os, signal, sys
from pathlib import Path
from rolltrace.store import id_index
from rolltrace.store.id_index_file import IdIndexWriter
from rolltrace.store.reader import RunReader

id_index.MAX_LINES_IN_MEMORY = 10


def die_at(owner, name, occurrence, after):
    original, left = getattr(owner, name), [occurrence]

    def call(*arguments, **named):
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


OWNERS = {"os": os, "id_index": id_index, "writer": IdIndexWriter, "path": Path}
for order in map(json.loads, sys.stdin):
    child = os.fork()
    if child == 0:
        owner, name, occurrence, after = order["moment"]
        die_at(OWNERS[owner], name, occurrence, after)
        RunReader(order["run"]).id_index.update()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
MOMENTS = [
    ("id_index", "record_id", 1, False), ("id_index", "record_id", 25, False), ("writer", "add", 2, True),
    ("writer", "cover", 1, True), ("writer", "merge", 1, False), ("writer", "merge", 1, True),
    ("os", "fsync", 1, False), ("path", "replace", 1, False), ("path", "replace", 1, True), ("os", "fsync", 2, False),
    ("id_index", "_delete", 1, False), ("id_index", "_delete", 1, True),
]  # fmt: skip
"""Who does what for the how manyth time, and whether the process dies after it or before."""


def test_killed_while_making_an_index(run, small, tmp_path):
    """Whenever the process that makes or absorbs an index is killed, everything is found, in the end by an index."""
    check(run)
    [first] = index_files(run)
    append(run, *(f"x{number}" for number in range(40)))
    lines = segment(run, "s-000001").read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killer:
        for number, moment in enumerate(MOMENTS):
            path = make_run(tmp_path / f"run {number}")
            segment(path, "s-000001").write_bytes(lines)
            (path / "rollouts/s-000000.jsonl.zst").write_bytes((run / "rollouts/s-000000.jsonl.zst").read_bytes())
            (path / "cache").mkdir()
            (path / "cache" / first.name).write_bytes(first.read_bytes())
            killer.stdin.write(json.dumps({"run": str(path), "moment": moment}) + "\n")
            killer.stdin.flush()
            assert int(killer.stdout.readline()) == -9, moment
            reader = check(path)
            assert [reader.get(f"x{index}").id for index in range(40)] == [f"x{index}" for index in range(40)]
            assert reader.read_errors == ()
            assert [file for file in index_files(path) if file.suffix == ".sqlite"] != []
        killer.stdin.close()
