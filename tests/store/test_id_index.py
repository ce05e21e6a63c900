"""The index of byte offsets: derived, shared, and never believed where it is wrong."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rolltrace.errors import ChecksumError, StorageError, UnknownNameError
from rolltrace.store import id_index
from rolltrace.store.compression import compress_segment
from rolltrace.store.cursor import LineLocation
from rolltrace.store.id_index import record_id
from rolltrace.store.id_index_file import (
    ByteRange,
    IdIndexFile,
    IndexHeader,
    make_entry,
    merge_ranges,
    write_index_file,
)
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import add_checksum
from segments import edit_run_info, make_run, rollout_line, segment

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


def write_entries(run, locations, covered, errors=()):
    """An index file with these entries, whatever the segments hold."""
    entries = sorted(make_entry(rollout, location) for rollout, location in locations.items())
    return write_index_file(run / "cache", "rollouts", "ids rollouts run", IndexHeader(covered, list(errors)), entries)


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


@pytest.mark.parametrize("content", [b"", b"garbage", b"rt-ids\0\2" + bytes(5000)])
def test_what_is_no_index_is_replaced(run, small, content):
    """A file that is none is replaced: the index is made again."""
    check(run)
    [path] = index_files(run)
    path.write_bytes(content)
    check(run)
    [made] = index_files(run)
    assert made.read_bytes() != content


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
    first, secret = rollout_line("r1"), rollout_line("r7", "secret")
    assert segment(run, "s-000001").read_bytes().startswith(first)
    wrong = {
        "r3": LineLocation("rollouts/s-000001", 0, len(first)), "r5": LineLocation("rollouts/s-000000", 0, 10),
        "r7": LineLocation("rollouts/../../secret", 0, len(secret)),
    }  # fmt: skip
    covered = [ByteRange(location.file, 0, 10**6) for location in wrong.values()]
    write_entries(run, wrong, covered)
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
    covered = [ByteRange("rollouts/s-000001", end, end + 10)]
    file = write_entries(run, {}, covered, [ReadError("rollouts/s-000001.jsonl", end, "old")])
    assert IdIndexFile(file.path, "ids rollouts run").header.ranges == covered
    reader = check(run)
    assert reader.get("x11").id == "x11"


def test_abandoned_files_are_deleted(run, small):
    """What a process that died was making is deleted when it is old, and only then."""
    (run / "cache").mkdir()
    old, young = run / f"cache/.ids-{0:016x}", run / f"cache/.ids-{1:016x}"
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
    assert reader.get("r0").id == "r0"
    for number in (errno.ESTALE, errno.EIO, errno.EMFILE):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail(number))
            with pytest.raises(StorageError):
                reader.get("r1")
    assert index_files(run) == before
    check(run, reader)
    assert index_files(run) == before


def test_index_that_cannot_be_read_now_is_left(run, small, monkeypatch):
    """Where reading an index meets an error that passes, the segments are read, and the index stays."""
    check(run)
    before = index_files(run)
    reader = RunReader(run)
    assert reader.get("r2").id == "r2"
    with monkeypatch.context() as patch:
        patch.setattr(IdIndexFile, "find", fail(errno.ESTALE))
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


# Files of others

OTHERS = b"rt-ids\0\2" + (1 << 60).to_bytes(8) + bytes(64)


def test_index_of_another_key_is_replaced(run, small, monkeypatch):
    """An index that was signed with another key is not believed, although it is whole."""
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "a stranger's")
    write_entries(run, {}, [ByteRange(f"rollouts/s-{number:06d}", 0, 10**6) for number in (0, 1)])
    [strangers] = index_files(run)
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "mine")
    assert check(run).read_errors == ()
    assert strangers not in index_files(run)


def test_index_of_another_run_is_not_believed(run):
    """An index that is copied to a run with another id does not count there."""
    write_entries(run, {}, [ByteRange(f"rollouts/s-{number:06d}", 0, 10**6) for number in (0, 1)])
    edit_run_info(run, id="other")
    assert check(run).read_errors == ()


def test_large_file_of_others_costs_nothing(run, monkeypatch):
    """Of a file without a signature only the first bytes are read, whatever it says about its length."""
    (run / "cache").mkdir()
    strange = run / f"cache/ids-rollouts-{0:032x}.index"
    strange.write_bytes(OTHERS)
    os.truncate(strange, 1 << 40)
    lengths = []
    real = os.pread

    def pread(descriptor, length, offset):
        lengths.append(length)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    check(run)
    assert max(lengths) <= 1 << 20


def test_truncated_under_an_open_reader(run, small):
    """A reader that has an index open survives that it is truncated or overwritten."""
    reader = check(run)
    for damaged in (b"", OTHERS, bytes(10**5)):
        for path in index_files(run):
            path.write_bytes(damaged)
        check(run, reader)


def test_run_that_cannot_be_written_to_is_indexed_in_the_users_cache(run, small, user_cache, file_reads):
    """The user's cache has the index of a run that is read-only, and the next reader uses it."""
    (run / "cache").write_bytes(b"a file, where there should be a folder")
    RunReader(run).id_index.update()
    assert len(list(user_cache.rglob("*.index"))) == 1
    file_reads.clear()
    assert RunReader(run).get("r7").id == "r7"
    assert file_reads.bytes_read(run / "rollouts") < (run / "rollouts/s-000001.jsonl").stat().st_size / 2


def test_without_a_key_the_index_is_kept_in_memory(run, small, tmp_path, monkeypatch):
    """Where no key can be made nothing is written, and everything is found."""
    monkeypatch.delenv("ROLLTRACE_CACHE_KEY")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    reader = check(run)
    append(run, *(f"x{number}" for number in range(25)))
    assert reader.get("x24").id == "x24"
    check(run, reader)
    assert [path for path in index_files(run) if path.is_file()] == []


def test_segment_whose_name_is_not_text(run, small):
    """A name that no header can hold costs only the file of the index."""
    name = os.fsdecode(b"s\xff-000000.jsonl")
    (run / "rollouts" / name).write_bytes(rollout_line("strange"))
    reader = check(run)
    assert reader.get("strange").id == "strange"


def test_scores_of_one_rollout_fill_blocks(tmp_path, small):
    """All lines of a rollout are found, also those in other blocks than the first."""
    run = make_run(tmp_path / "run")
    lines = [add_checksum(b'{"v":2,"id":"s%d","rollout":"r%d"}' % (n, 1 if n % 3 else n)) for n in range(1200)]
    segment(run, "s-000000", "scores").write_bytes(b"".join(lines))
    for reader in (RunReader(run), RunReader(run)):
        assert len(reader.score_index.find_all(["r1", "nothing"])["r1"]) == 800
        assert {n: len(reader.score_index.find_all([f"r{n}"])[f"r{n}"]) for n in range(0, 99, 3)} == dict.fromkeys(
            range(0, 99, 3), 1
        )
    assert [path.name[:11] for path in index_files(run)] == ["ids-scores-"]


def test_damaged_index_of_scores_is_made_again(tmp_path, small):
    """Scores are complete in the very answer that meets the damage."""
    run = make_run(tmp_path / "run")
    lines = [add_checksum(b'{"v":2,"id":"s%d","rollout":"r%d"}' % (n, n % 5)) for n in range(50)]
    segment(run, "s-000000", "scores").write_bytes(b"".join(lines))
    reader = RunReader(run)
    reader.score_index.update()
    [path] = index_files(run)
    os.truncate(path, path.stat().st_size - 1)
    assert [len(own) for own in reader.score_index.find_all([f"r{n}" for n in range(5)]).values()] == [10] * 5


# A run that was never visited


def made_id(milliseconds, number):
    return f"{milliseconds:012x}{number:020x}"


@pytest.fixture
def large(tmp_path):
    """A run of three sessions of twenty segments; each rollout is written when it ends, up to 50 ms later."""
    path = make_run(tmp_path / "large")
    rng = random.Random(1)
    for session in range(3):
        ends = sorted((began + rng.randrange(50), began) for began in range(0, 2000, 4))
        for number in range(20):
            lines = [rollout_line(made_id(began, session)) for _, began in ends[number * 25 : number * 25 + 25]]
            segment(path, f"{made_id(0, session)}-{number:06d}").write_bytes(b"".join(lines))
    for plain in list((path / "rollouts").iterdir())[::2]:
        compress_segment(plain)
    return path


@pytest.mark.parametrize("session", range(3))
def test_time_in_an_id_tells_the_segment(large, session, file_reads):
    """Of a run without an index only the first lines of some segments, and few whole segments, are read."""
    for began in range(0, 2000, 148):
        file_reads.clear()
        rollout = made_id(began, session)
        assert RunReader(large).get(rollout).id == rollout
        whole = sum(1 for path in set(file_reads.opened(large / "rollouts")) if file_reads.bytes_read(path) > 3000)
        assert whole <= 14, began


def test_misleading_times_cost_only_time(large):
    """A rollout with a time in its id is found wherever it is."""
    with segment(large, f"{made_id(0, 0)}-000003").open("ab") as file:
        file.writelines(rollout_line(made_id(began, 9)) for began in (10**6, 0, 1999))
    with RunReader(large) as reader:
        for began in (10**6, 0, 1999):
            assert reader.get(made_id(began, 9)).id == made_id(began, 9)
        with pytest.raises(UnknownNameError):
            reader.get(made_id(5, 5))


def test_other_ids_are_searched_in_the_newest_segment_first(run, small, file_reads):
    """The scan ends at the rollout, and what was scanned is indexed."""
    for number in range(2, 9):
        segment(run, f"s-{number:06d}").write_bytes(b"".join(rollout_line(f"{number}-{i}") for i in range(15)))
    assert RunReader(run).get("8-14").id == "8-14"
    assert [path.name for path in set(file_reads.opened(run / "rollouts"))] == ["s-000008.jsonl"]
    assert len(index_files(run)) == 1
    file_reads.clear()
    assert RunReader(run).get("7-14").id == "7-14"
    opened = [path for path in file_reads.opened(run / "rollouts") if file_reads.bytes_read(path)]
    assert {path.name for path in opened} == {"s-000007.jsonl"}
    reader = check(run)
    assert [reader.get(f"{number}-{i}").id for number in range(2, 9) for i in range(15)]


# Killed while it makes an index

KILLED = """
import json, os, signal, sys
from pathlib import Path
from rolltrace.store import id_index
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


OWNERS = {"id_index": id_index, "index": id_index.IdIndex, "path": Path}
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
    ("id_index", "record_id", 1, False), ("id_index", "record_id", 25, False),
    ("index", "_merge_smaller", 1, False), ("index", "_merge_smaller", 1, True),
    ("path", "open", 1, False), ("path", "open", 1, True), ("path", "replace", 1, False), ("path", "replace", 1, True),
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
            assert [file for file in index_files(path) if file.suffix == ".index"] != []
        killer.stdin.close()
