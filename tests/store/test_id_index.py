"""Lookup by id: the indexes of parts are shared, and never trusted if they are wrong."""

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rolltrace.errors import ChecksumError, StorageError, UnknownNameError
from rolltrace.query import run_tables
from rolltrace.query.record_reader import LateScoreReader
from rolltrace.query.run import open_run
from rolltrace.store import id_index
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.cursor import LineLocation
from rolltrace.store.id_blocks import IDS_FILE, hash_id, write_id_blocks
from rolltrace.store.id_index import record_id
from rolltrace.store.parts import Part, PartInfo, RowStats, publish_part
from rolltrace.store.read_errors import ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import add_checksum
from segments import edit_run_info, make_run, rollout_line, segment

COUNT = 30


@pytest.fixture
def small(monkeypatch):
    """Parts are published for a few lines, and looked for often."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
    monkeypatch.setattr(id_index, "LINES_BEFORE_LOOK", 10)


@pytest.fixture
def run(tmp_path):
    """A run of two segments, one of them compressed, with thirty rollouts."""
    path = make_run(tmp_path / "run")
    for number in (0, 1):
        segment(path, f"s-{number:06d}").write_bytes(b"".join(rollout_line(f"r{i}") for i in range(number, COUNT, 2)))
    compress_segment(segment(path, "s-000000"))
    return path


def check(run, reader=None):
    """Asserts that every rollout is found by its id, and no other."""
    reader = reader or RunReader(run)
    assert [reader.get(f"r{number}").id for number in range(COUNT)] == [f"r{number}" for number in range(COUNT)]
    with pytest.raises(UnknownNameError, match="nobody"):
        reader.get("nobody")
    return reader


def index_files(run):
    return sorted(run.glob(f"cache/*/{IDS_FILE}"))


def make_index(run, table="rollouts"):
    """Queries a table, which creates parts."""
    with open_run(run) as opened:
        opened.sql(f"select count(*) from {table}").fetchall()


def write_entries(run, folder, locations, ranges):
    """Writes a part with these entries, whatever the segments hold."""
    part = Part(folder / "part", PartInfo(kind="rollouts", ranges=ranges, stats=RowStats(ids=("", "z"))))
    part.path.mkdir(exist_ok=True)
    files = sorted(ranges)
    places = {key: (files.index(place.file), place.offset, place.length) for key, place in locations.items()}
    write_id_blocks(part, iter(sorted((hash_id(rollout), *place) for rollout, place in places.items())))
    return publish_part(part, run / "cache", "run")


def append(run, *rollouts):
    with segment(run, "s-000001").open("ab") as file:
        file.writelines(map(rollout_line, rollouts))


def test_lookups_leave_no_file(run, small):
    """A lookup indexes scanned lines in memory and writes no file."""
    check(run)
    assert not (run / "cache").exists() or not list((run / "cache").iterdir())


def test_index_is_used(run, small, file_reads):
    """Lines that a part covers are not read again."""
    make_index(run)
    assert len(index_files(run)) == 1
    size = sum(file.stat().st_size for file in (run / "rollouts").iterdir())
    file_reads.clear()
    reader = RunReader(run)
    with pytest.raises(UnknownNameError):
        reader.get("nobody")
    assert reader.get("r7").id == "r7"
    assert reader.get("r8").id == "r8"
    assert file_reads.bytes_read(run / "rollouts") < size / 2


def test_new_lines_are_found(run, small):
    """An index that covers a part of the run is completed by a scan of the rest."""
    make_index(run)
    append(run, "late")
    assert RunReader(run).get("late").id == "late"
    reader = check(run)
    append(run, "later")
    assert reader.get("later").id == "later"


def test_several_parts(run, small):
    """Rollouts are found in each of several parts."""
    names = []
    for batch in range(4):
        make_index(run)
        names.extend(f"b{batch}-{number}" for number in range(12))
        append(run, *names[-12:])
    assert len(index_files(run)) == 4
    reader = check(run)
    assert [reader.get(name).id for name in names] == names


def test_new_parts_replace_the_index_in_memory(run, small, file_reads):
    """A reader that has scanned many lines uses parts that were created meanwhile."""
    reader = check(run)
    append(run, *(f"x{number}" for number in range(10)))
    check(run, reader)
    make_index(run)
    with pytest.raises(UnknownNameError):
        reader.get("nobody")
    file_reads.clear()
    check(run, reader)
    assert len(file_reads.opened(index_files(run)[0])) >= COUNT


def test_lines_that_a_new_part_covers_are_not_waited_for(run, small, file_reads):
    """A rollout in a part that was made since the last lookup is found without scanning the lines after it."""
    reader = RunReader(run)
    reader.get(f"r{COUNT - 1}")  # after so many lines, it looks for parts
    append(run, "x")
    make_index(run)
    append(run, *(f"y{number}" for number in range(100)))
    file_reads.clear()
    assert reader.get("x").id == "x"
    assert file_reads.bytes_read(run / "rollouts") <= len(rollout_line("x"))


def test_memory_is_bounded(run, monkeypatch):
    """Lines beyond the bound on memory are scanned again, and all are found."""
    monkeypatch.setattr(id_index, "LINES_BEFORE_LOOK", 4)
    monkeypatch.setattr(id_index, "_MAX_BYTES_IN_MEMORY", 200)
    reader = check(run)
    assert reader.id_index.find_all(["r0", "r28", "r29"]).keys() == {"r0", "r28", "r29"}
    assert len(reader.id_index._recent) <= 300


def test_parts_may_be_deleted_at_any_time(run, small):
    """An open reader and a new one both find everything after a part was deleted."""
    make_index(run)
    reader = check(run)
    shutil.rmtree(run / "cache")
    check(run, reader)
    check(run)
    make_index(run)
    check(run, reader)
    assert index_files(run) != []
    (run / "cache").rename(run / "other")
    check(run, reader)


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(5000), None])
def test_damaged_index_is_recreated(run, small, content):
    """A part with a damaged or missing index is not used; a damaged one is deleted and recreated."""
    make_index(run)
    [path] = index_files(run)
    path.unlink() if content is None else path.write_bytes(content)
    check(run)
    if content is not None:
        assert index_files(run) == []
        make_index(run)
        assert len(index_files(run)) == 1
        check(run)


def test_damaged_index_never_misleads(run, small):
    """Whatever happens to the bytes of a part's index or description, every id finds its own rollout."""
    make_index(run)
    shutil.copytree(run / "cache", run / "whole")
    rng = random.Random(3)
    for _ in range(40):
        shutil.rmtree(run / "cache")
        shutil.copytree(run / "whole", run / "cache")
        path = index_files(run)[0].with_name(rng.choice([IDS_FILE, IDS_FILE, "part.json"]))
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 1, 5, 50])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        check(run)


def test_stale_index_is_not_trusted(run, small):
    """An index of segments that have since been replaced is not used."""
    make_index(run)
    reader = check(run)
    for number in (0, 1):
        lines = [rollout_line(f"r{i}", "longer than before") for i in range(number, COUNT, 2)]
        segment(run, f"s-{number:06d}").write_bytes(b"".join(reversed(lines)))
    (run / "rollouts/s-000000.jsonl.zst").unlink()
    check(run, reader)
    check(run)


def test_wrong_location_is_not_trusted(run, tmp_path):
    """A location that holds another rollout, or is outside the run, is not used."""
    first, secret = rollout_line("r1"), rollout_line("r7", "secret")
    assert segment(run, "s-000001").read_bytes().startswith(first)
    wrong = {
        "r3": LineLocation("rollouts/s-000001", 0, len(first)), "r5": LineLocation("rollouts/s-000000", 0, 10),
        "r7": LineLocation("rollouts/../../secret", 0, len(secret)),
    }  # fmt: skip
    (tmp_path / "secret.jsonl").write_bytes(secret)
    end = segment(run, "s-000001").stat().st_size
    ranges = {"rollouts/s-000001": (0, end), "rollouts/s-000000": (0, 10)}
    write_entries(run, tmp_path, {"r7": wrong.pop("r7")}, {"rollouts/../../secret": (0, len(secret))})
    write_entries(run, tmp_path, wrong, ranges)
    for number in (3, 5):
        assert RunReader(run).get(f"r{number}").id == f"r{number}"
    with pytest.raises(UnknownNameError):
        RunReader(run).get("r7")


def test_problems_are_kept(run, small):
    """A reader that uses the index reports the problems of the lines that it covers."""
    with segment(run, "s-000001").open("ab") as file:
        file.write(b"damage\n" + add_checksum(b'{"v":2}') + rollout_line("last"))
    make_index(run)
    reader = RunReader(run)
    assert reader.get("r1").id == "r1"
    assert [problem.file for problem in reader.read_errors] == ["rollouts/s-000001.jsonl"] * 2
    assert [problem.offset for problem in reader.read_errors] == sorted(
        problem.offset for problem in reader.read_errors
    )


def test_first_of_two_equal_ids_counts(run, small):
    """Of two lines with one id, the first is found, in one index file or in two."""
    make_index(run)
    with segment(run, "s-000001").open("ab") as file:
        file.writelines(rollout_line(name, "second") for name in ["r0", "new", *(f"x{number}" for number in range(40))])
        file.write(rollout_line("new", "third"))
    make_index(run)
    for reader in (RunReader(run), RunReader(run)):
        assert reader.get("r0").messages[0].content == "2 + 2?"
        assert reader.get("new").messages[0].content == "second"


def test_first_of_two_equal_ids_counts_in_memory_too(run, small):
    """The same if the second line, or both, are in no index file yet."""
    make_index(run)
    with segment(run, "s-000001").open("ab") as file:
        file.writelines([rollout_line("r0", "second"), rollout_line("new", "first"), rollout_line("new", "second")])
    reader = RunReader(run)
    reader.id_index.find_all([])
    assert len(index_files(run)) == 1
    assert reader.get("r0").messages[0].content == "2 + 2?"
    assert reader.get("new").messages[0].content == "first"


def test_unwritable_cache_costs_only_speed(run, small):
    """A run whose cache cannot be written to is still read."""
    (run / "cache").write_bytes(b"a file, where there should be a folder")
    make_index(run)
    reader = check(run)
    append(run, *(f"x{number}" for number in range(25)))
    assert reader.get("x24").id == "x24"
    check(run, reader)


def test_readers_do_not_disturb_each_other(run):
    """Processes that create parts, look up rollouts and delete parts at once all find everything."""
    program = (
        "import sys, pathlib, shutil\n"
        "from rolltrace.query import run_tables\n"
        "from rolltrace.query.run import open_run\n"
        "run_tables.MIN_CACHED_BYTES = 1\n"
        "for turn in range(8):\n"
        "    with open_run(sys.argv[1]) as run:\n"
        "        run.sql('select count(*) from rollouts').fetchall()\n"
        f"        assert [run.get(f'r{{n}}').id for n in range({COUNT})] == [f'r{{n}}' for n in range({COUNT})]\n"
        "    for path in pathlib.Path(sys.argv[1]).glob('cache/part-*') if turn % 3 == 2 else ():\n"
        "        shutil.rmtree(path, ignore_errors=True)\n"
    )
    readers = [subprocess.Popen([sys.executable, "-c", program, str(run)]) for _ in range(2)]
    assert [reader.wait(timeout=300) for reader in readers] == [0, 0]
    check(run)


def test_interrupted_scan_starts_over(run, small, monkeypatch):
    """Lines that were being read at an interrupt do not count as indexed."""
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
    """The fast path to an id gives the same as decoding the whole line."""
    assert record_id(line) == expected


def test_ids_that_are_not_valid_text_are_not_found(run, small):
    """An id that no file could hold is not found, and does not crash."""
    check(run)
    with pytest.raises(UnknownNameError):
        RunReader(run).get("\ud800")


def test_gap_before_a_part_is_scanned(run, small, tmp_path):
    """If the part before another is missing, the lines of both are scanned."""
    end = segment(run, "s-000001").stat().st_size
    append(run, *(f"x{number}" for number in range(12)))
    write_entries(run, tmp_path, {}, {"rollouts/s-000001": (end, end + 10)})
    assert check(run).get("x11").id == "x11"


# Transient errors and damage leave the shared index as it is


def fail(number):
    """A function that raises an OSError."""

    def raise_it(*_, **__):
        raise OSError(number, os.strerror(number))

    return raise_it


def test_transient_error_leaves_the_index(run, small, monkeypatch):
    """A disk error fails one lookup and does not delete the index."""
    make_index(run)
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


def test_index_with_a_transient_error_is_kept(run, small, monkeypatch):
    """If an index cannot be read for now, the segments are scanned, and the index is kept."""
    make_index(run)
    before = index_files(run)
    reader = RunReader(run)
    assert reader.get("r2").id == "r2"
    with monkeypatch.context() as patch:
        patch.setattr(id_index, "find_in_part", fail(errno.ESTALE))
        check(run, reader)
    assert index_files(run) == before
    check(run)


def test_damaged_line_leaves_the_index(run, small):
    """A damaged line is reported with its place, and the index of the others is kept."""
    make_index(run)
    before = index_files(run)
    file = segment(run, "s-000001")
    file.write_bytes(file.read_bytes().replace(b'"id":"r5"', b'"id":"r6"'))
    for reader in (RunReader(run), RunReader(run)):
        with pytest.raises(ChecksumError, match="of rollouts/s-000001: Expected checksum"):
            reader.get("r5")
        assert reader.get("r7").id == "r7"
    assert index_files(run) == before


def test_unreadable_bytes_are_tried_again(run, small, monkeypatch):
    """Bytes that could not be read while an index was made do not count as indexed."""
    real = os.pread

    def refuse(descriptor, length, offset):
        if "s-000001" in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            fail(errno.EIO)()
        return real(descriptor, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        with open_run(run) as opened:
            assert opened.sql("select count(*) from rollouts").fetchall() == [(COUNT // 2,)]
            assert [problem.kind for problem in opened.problems] == [ReadErrorKind.UNREADABLE]
    assert RunReader(run).get("r1").id == "r1"
    assert check(run).read_errors == ()


def test_kinds_of_problems_are_kept(run, small):
    """A problem that comes from the index keeps its kind."""
    with segment(run, "s-000001").open("ab") as file:
        file.write(b"damage\n" + add_checksum(b'{"v":99}') + add_checksum(b'{"v":2}') + rollout_line("last"))
    make_index(run)
    reader = RunReader(run)
    assert reader.get("r1").id == "r1"
    assert [problem.kind for problem in reader.read_errors] == [
        ReadErrorKind.DAMAGED,
        ReadErrorKind.NEWER,
        ReadErrorKind.INVALID,
    ]


# Files of other users


def test_index_of_another_key_is_not_trusted(run, small, tmp_path, monkeypatch):
    """An index that was signed with another key is not used, although it is intact."""
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "a stranger's")
    write_entries(run, tmp_path, {}, {f"rollouts/s-{number:06d}": (0, 10) for number in (0, 1)})
    with pytest.raises(UnknownNameError):  # it would mislead
        RunReader(run).get("r0")
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "mine")
    assert check(run).read_errors == ()


def test_index_of_another_run_is_not_trusted(run, tmp_path):
    """An index that was copied from a run with another id is not used."""
    write_entries(run, tmp_path, {}, {f"rollouts/s-{number:06d}": (0, 10) for number in (0, 1)})
    edit_run_info(run, id="other")
    assert check(run).read_errors == ()


def test_huge_index_is_not_read_whole(run, small, monkeypatch):
    """Of an index that was replaced by a huge file, at most a block is read."""
    make_index(run)
    [path] = index_files(run)
    os.truncate(path, 0)
    os.truncate(path, 1 << 40)
    lengths = []
    real = os.pread

    def pread(descriptor, length, offset):
        lengths.append(length)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    check(run)
    assert max(lengths) <= 1 << 20


def test_truncated_under_an_open_reader(run, small):
    """A reader with an open index survives its truncation or overwriting."""
    for damaged in (b"", bytes(10**5)):
        make_index(run)
        reader = check(run)
        for path in index_files(run):
            path.write_bytes(damaged)
        check(run, reader)


def test_run_that_cannot_be_written_to_is_indexed_in_the_users_cache(run, small, user_cache, file_reads):
    """The index of a read-only run is in the user's cache, and the next reader uses it."""
    (run / "cache").write_bytes(b"a file, where there should be a folder")
    make_index(run)
    assert len(list(user_cache.rglob(IDS_FILE))) == 1
    file_reads.clear()
    assert RunReader(run).get("r7").id == "r7"
    assert file_reads.bytes_read(run / "rollouts") < (run / "rollouts/s-000001.jsonl").stat().st_size / 2


def test_without_a_key_the_index_is_kept_in_memory(run, small, tmp_path, monkeypatch):
    """If no key can be created, nothing is written, and everything is found."""
    monkeypatch.delenv("ROLLTRACE_CACHE_KEY")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    make_index(run)
    reader = check(run)
    append(run, *(f"x{number}" for number in range(25)))
    assert reader.get("x24").id == "x24"
    check(run, reader)
    assert index_files(run) == []


@pytest.fixture
def scored(tmp_path, small):
    """A run of 400 late scores of "r1" and one each of 50 others, in a part."""
    with create_run(tmp_path / "scored") as writer:
        for number in range(450):
            writer.score("r1" if number % 9 else f"x{number}", "reward", float(number))
    make_index(tmp_path / "scored", "scores")
    assert len(index_files(tmp_path / "scored")) == 1
    return tmp_path / "scored"


def check_scores(reader):
    found = reader.score_index.find_all(["r1", "nothing", *(f"x{number}" for number in range(0, 450, 9))])
    assert {rollout: len(own) for rollout, own in found.items()} == {
        "r1": 400, **dict.fromkeys((f"x{number}" for number in range(0, 450, 9)), 1)
    }  # fmt: skip


def test_scores_of_one_rollout_fill_blocks(scored, file_reads):
    """All scores of a rollout are found, also those in later blocks, and no line is scanned."""
    check_scores(RunReader(scored))
    assert file_reads.bytes_read(scored / "scores") == 0


def test_scores_may_be_looked_up_without_scanning(tmp_path, small, file_reads):
    """Then those in parts are found, and those of parts made since by the next lookup; no line is read."""
    with create_run(tmp_path / "scored") as writer:
        writer.score("r1", "reward", 1.0)
    index = RunReader(tmp_path / "scored").score_index
    assert index.find_all(["r1"], scans=False) == {}
    make_index(tmp_path / "scored", "scores")
    file_reads.clear()
    assert index.find_all(["r1"], scans=False).keys() == {"r1"} == index.find_all(["r1"]).keys()
    assert file_reads.bytes_read(tmp_path / "scored" / "scores") == 0


def test_damaged_index_of_scores_is_not_trusted(scored):
    """The lookup that meets the damage already returns all scores."""
    reader = RunReader(scored)
    check_scores(reader)
    [path] = index_files(scored)
    os.truncate(path, path.stat().st_size - 1)
    check_scores(reader)


def test_stale_index_of_scores_is_not_trusted(scored):
    """All scores are found although the index belongs to an earlier version of the file."""
    [file] = (scored / "scores").iterdir()
    file.write_bytes(b"".join(reversed(file.read_bytes().splitlines(keepends=True))))
    with LateScoreReader(RunReader(scored)) as scores:
        assert len(scores.scores_of(["r1"])["r1"]) == 400


# A run that was never indexed


def made_id(milliseconds, number):
    return f"{milliseconds:012x}{number:020x}"


@pytest.fixture
def large(tmp_path):
    """A run of three sessions with twenty segments each; a rollout is written when it ends, up to 50 ms later."""
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
    """In a run without an index, only the first lines of some segments, and few whole segments, are read."""
    for began in range(0, 2000, 148):
        file_reads.clear()
        rollout = made_id(began, session)
        assert RunReader(large).get(rollout).id == rollout
        whole = sum(1 for path in set(file_reads.opened(large / "rollouts")) if file_reads.bytes_read(path) > 3000)
        assert whole <= 14, began


def test_misleading_times_cost_only_time(large):
    """A rollout is found wherever it is, also if the time in its id is wrong."""
    with segment(large, f"{made_id(0, 0)}-000003").open("ab") as file:
        file.writelines(rollout_line(made_id(began, 9)) for began in (10**6, 0, 1999))
    with RunReader(large) as reader:
        for began in (10**6, 0, 1999):
            assert reader.get(made_id(began, 9)).id == made_id(began, 9)
        with pytest.raises(UnknownNameError):
            reader.get(made_id(5, 5))


def test_other_ids_are_searched_in_the_newest_segment_first(run, file_reads):
    """The scan stops at the rollout, and the scanned lines are indexed."""
    for number in range(2, 9):
        segment(run, f"s-{number:06d}").write_bytes(b"".join(rollout_line(f"{number}-{i}") for i in range(15)))
    reader = RunReader(run)
    assert reader.get("8-14").id == "8-14"
    assert [path.name for path in set(file_reads.opened(run / "rollouts"))] == ["s-000008.jsonl"]
    file_reads.clear()
    assert reader.get("7-14").id == "7-14"
    opened = [path for path in file_reads.opened(run / "rollouts") if file_reads.bytes_read(path)]
    assert {path.name for path in opened} == {"s-000007.jsonl"}
    check(run, reader)
    assert [reader.get(f"{number}-{i}").id for number in range(2, 9) for i in range(15)]
