"""Caches: used when fresh, extended when not, rebuilt when damaged, and never required."""

import json
import multiprocessing
import os
import shutil

import duckdb
import pytest

from answers import score, write
from rolltrace.errors import StorageError
from rolltrace.query import compact as compaction
from rolltrace.query import part_writer as build
from rolltrace.query import run_tables as state
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.store.cache_key import sign
from rolltrace.store.create import create_run
from rolltrace.store.layout import read_info
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles

COUNT = "select count(*), sum(reward) from rollouts"
SEEK_TABLE_BYTES = 60
"""What is read of a small compressed segment to learn that it was read before: the table of its frames."""


def fill(path, *indexes, **fields):
    """Writes rollouts with these indexes in a new session."""
    with create_run(path, join=path.exists()) as writer:
        return [write(writer, index=index, reward=1.0, **fields) for index in indexes]


def parts(path, table="rollouts"):
    return sorted((path / "cache").glob(f"part-*/{table}.parquet"))


def count(path, query=COUNT):
    with open_run(path) as run:
        return run.sql(query).fetchone()


def replace_rows(part, columns):
    """Rewrites a file of a part with other columns."""
    changed = part.with_name("changed")
    with duckdb.connect() as connection:
        connection.execute(f"copy (select {columns} from '{part}') to '{changed}' (format parquet)")
    changed.replace(part)


def test_growing_run_is_extended(path, opened, file_reads):
    """Lines written between two queries are in the second answer, and only those are read."""
    with create_run(path) as writer:
        run = opened(path)
        for index in range(12):
            write(writer, index=index)
            writer.flush()
            assert run.sql("select count(*) from rollouts").fetchone() == (index + 1,)
    run.sql("select count(*) from rollouts").fetchall()
    [segment] = (path / "rollouts").iterdir()
    assert file_reads.bytes_read(path / "rollouts") == segment.stat().st_size, "each byte is read once"


def test_small_query_leaves_no_cache(path):
    """A query of a small run writes nothing into it."""
    fill(path, 0, 1)
    before = sorted(path.rglob("*"))
    assert count(path) == (2, 2.0)
    assert [place for place in sorted(path.rglob("*")) if "parquet" in place.name] == []
    assert [place for place in before if not place.exists()] == []


def test_compacted_run_is_read_from_its_parts(path, file_reads):
    """After compaction no line is read again; only newer lines are."""
    fill(path, 0, 1)
    done = compact(path)
    assert (done.rows["rollouts"], done.rows["steps"], done.rows["messages"]) == (2, 2, 4)
    assert done.compressed == 1
    file_reads.clear()
    assert count(path) == (2, 2.0)
    assert count(path, "select count(*), sum(n) from groups") == (1, 2)
    assert file_reads.bytes_read(path / "rollouts") == 0
    fill(path, 2)
    [new] = (path / "rollouts").glob("*.jsonl")
    file_reads.clear()
    assert count(path) == (3, 3.0)
    assert file_reads.bytes_read(path / "rollouts") <= new.stat().st_size
    assert count(path, "select count(*), sum(n) from groups") == (1, 3)
    assert len(parts(path)) == 1


def test_a_segment_truncated_after_its_part_was_made_is_reported(path):
    """A compressed segment that a part covers is not opened again, unless its size has changed."""
    fill(path, 0, 1)
    compact(path)
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes()[:100])
    with open_run(path) as run:
        assert run.sql(COUNT).fetchall() == [(2, 2.0)]
        assert [problem.file for problem in run.problems] == [f"rollouts/{segment.name}"]


def test_compaction_absorbs_older_parts(path):
    """However often a run is compacted, each table is one file; without new lines nothing is written."""
    for index in range(3):
        fill(path, index)
        compact(path)
        for table in TABLES:
            assert len(parts(path, table)) == 1
    before = parts(path)
    assert compact(path).compressed == 0
    assert parts(path) == before
    assert count(path) == (3, 3.0)


def test_open_session_is_not_compressed(path):
    """Compaction does not compress a segment that is still written, but covers it."""
    with create_run(path) as writer:
        write(writer)
        writer.flush()
        assert compact(path).compressed == 0
        assert [place.suffix for place in (path / "rollouts").iterdir()] == [".jsonl"]
        assert count(path) == (1, 1.0)
        write(writer, index=1)
    assert count(path) == (2, 2.0)
    assert compact(path).compressed == 1
    assert count(path) == (2, 2.0)
    assert len(list(RunReader(path).rollouts())) == 2


def test_large_remainder_is_kept(path, monkeypatch, file_reads):
    """A query that read much stores its part, and later parts follow it."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    ids = fill(path, 0, 1)
    assert count(path) == (2, 2.0)
    fill(path, 2)
    assert count(path) == (3, 3.0)
    assert len(parts(path)) == 2
    file_reads.clear()
    assert count(path) == (3, 3.0)
    assert file_reads.bytes_read(path / "rollouts") == 0
    with open_run(path) as run:
        assert {rollout.id for rollout in run.rollouts()} > set(ids)


def test_batches_are_bounded(path, monkeypatch):
    """Many batches give the same rows as one."""
    monkeypatch.setattr(build, "BATCH_BYTES", 1000)
    fill(path, *range(20))
    compact(path)
    assert count(path) == (20, 20.0)
    assert count(path, "select count(*), count(distinct rollout) from messages") == (40, 20)


def test_part_that_overlaps_is_ignored(path, monkeypatch):
    """If two builders raced and their parts cover the same lines, one of them counts."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    fill(path, 0, 1)
    count(path)
    first = parts(path)[0].parent
    kept = first.rename(path / "kept")
    fill(path, 2)
    count(path)
    kept.rename(first)
    assert len(parts(path)) == 2
    assert count(path) == (3, 3.0)


def test_part_without_its_beginning_is_ignored(path, monkeypatch):
    """A part whose predecessor is missing is not used."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    with create_run(path) as writer:
        for index in range(2):
            write(writer, index=index, reward=1.0)
            writer.flush()
            count(path)
    first, second = sorted(parts(path), key=os.path.getmtime)
    shutil.rmtree(first.parent)
    assert count(path) == (2, 2.0)
    assert second.exists()


def test_part_of_a_segment_that_is_gone_is_ignored(path):
    """A part of a segment that is gone is ignored: the files count, not what was derived from them."""
    fill(path, 0)
    fill(path, 1)
    compact(path)
    min((path / "rollouts").iterdir()).unlink()
    assert count(path) == (1, 1.0)


@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated", "zeroed", "footer", "directory", "foreign"])
def test_damaged_cache_is_rebuilt(path, damage):
    """Whatever the cache contains, the answer is right."""
    fill(path, *range(30))
    compact(path)
    for place in [place for place in (path / "cache").rglob("*") if place.is_file()]:
        data = place.read_bytes()
        place.unlink()
        if damage == "directory":
            place.mkdir()
        else:
            place.write_bytes(
                {
                    "garbage": b"\xff" * 100,
                    "empty": b"",
                    "truncated": data[: len(data) // 2],
                    "zeroed": data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :],
                    "footer": data[:-12] + b"\xff\xff\xff\x7f" + data[-8:],
                    "foreign": b"PAR1" + b"\x00" * 20 + b"PAR1",
                }[damage]
            )
    assert count(path) == (30, 30.0)
    assert count(path, "select count(*), sum(n) from groups") == (1, 30)


def test_cache_that_vanishes_is_not_needed(path, opened):
    """A part that is deleted while a run is open costs only time."""
    fill(path, 0, 1)
    compact(path)
    run = opened(path)
    assert run.sql(COUNT).fetchone() == (2, 2.0)
    result = run.sql("select * from rollouts")
    shutil.rmtree(path / "cache")
    assert run.sql(COUNT).fetchone() == (2, 2.0)
    assert len(result.fetchall()) == 2


def test_cache_of_another_layout_is_ignored(path):
    """Parts of an older or newer version are not used."""
    fill(path, 0)
    compact(path)
    [ours] = parts(path)
    replace_rows(ours, "* replace (7.0 as reward, 7.0 as line_reward)")
    described = ours.with_name("part.json")
    info = json.loads(described.read_bytes().partition(b"{")[1] + described.read_bytes().partition(b"{")[2])
    info |= {"layout": -1, "digests": {}}
    text = json.dumps(info).encode()
    described.write_bytes(sign(text, read_info(LocalFiles(path)).id) + text)
    assert count(path) == (1, 1.0)
    compact(path)
    assert ours not in parts(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_read_only_directory_by_permission(path, monkeypatch):
    """A run that cannot be written to is still queried."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    fill(path, 0)
    path.chmod(0o555)
    try:
        assert count(path) == (1, 1.0)
    finally:
        path.chmod(0o755)


def test_cache_that_cannot_be_written(path, monkeypatch):
    """If the cache cannot be written, queries work and compaction says so."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    fill(path, 0)
    (path / "cache").write_text("in the way")
    assert count(path) == (1, 1.0)
    with pytest.raises(StorageError, match="read-only, or the disk full"):
        compact(path)
    assert count(path) == (1, 1.0)


def test_compaction_makes_several_parts_if_one_could_not_be_read(path, monkeypatch):
    """Parts whose descriptions are too large together stay apart: the tables are the same, and are not rebuilt."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    with create_run(path) as writer, open_run(path) as run:
        for index in range(3):
            write(writer, index=index, reward=float(index))
            writer.flush()
            run.sql("select count(*) from rollouts, steps").fetchall()
        expected = run.sql("select size, mean, len(members) from groups").fetchall()
    monkeypatch.setattr(compaction, "MAX_DESCRIPTION_BYTES", 1)
    assert compact(path).rows["rollouts"] == 3
    found = sorted((path / "cache").glob("part-rollouts-*"))
    assert len(found) == 3
    with open_run(path) as run:
        assert run.sql("select size, mean, len(members) from groups").fetchall() == expected == [(3, 1.0, 3)]
    compact(path)
    assert sorted((path / "cache").glob("part-rollouts-*")) == found


def test_late_scores_after_compaction(path):
    """A reward that comes after compaction counts in rollouts and in groups."""
    one, _ = fill(path, 0, 1)
    compact(path)
    before = parts(path)
    with create_run(path, join=True) as writer:
        score(writer, one, 5.0)
    assert count(path) == (2, 6.0)
    assert count(path, "select mean, has_signal from groups") == (3.0, True)
    compact(path)
    assert parts(path) != before, "the rewards are taken in, so that nothing is joined any more"
    assert count(path) == (2, 6.0)
    assert count(path, "select mean, has_signal from groups") == (3.0, True)


def test_other_programs_read_late_rewards_after_compaction(path):
    """Even if only few rollouts have one: a program that reads the Parquet files joins no scores."""
    first, *_ = fill(path, *range(20))
    with create_run(path, join=True) as writer:
        score(writer, first, 5.0)
    compact(path)
    rewards = duckdb.sql(f"select id, reward from '{path}/cache/part-*/rollouts.parquet'").fetchall()
    assert (len(rewards), dict(rewards)[first]) == (20, 5.0)


def _compact_in_process(path, barrier):
    barrier.wait()
    compact(path)


def test_compactions_may_race(path):
    """Processes that compact at the same time leave a right answer and a working cache."""
    fill(path, *range(10))
    fill(path, *range(5, 15))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    workers = [context.Process(target=_compact_in_process, args=(path, barrier)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert count(path) == (15, 15.0)
    compact(path)
    assert [len(parts(path, table)) for table in TABLES] == [1] * len(TABLES)
    assert count(path) == (15, 15.0)


TABLES = ("rollouts", "steps", "other_messages")


def test_unfinished_files_are_left_alone(path):
    """A file that another process is writing is neither read nor deleted, unless it is old enough to be abandoned."""
    fill(path, 0)
    compact(path)
    fresh, old = path / "cache" / ".part-texts-f0", path / "cache" / ".part-texts-0d"
    for unfinished in (fresh, old):
        unfinished.mkdir()
        (unfinished / "steps.parquet").write_bytes(b"PAR1")
    os.utime(old, (0, 0))
    fill(path, 1)
    assert count(path) == (2, 2.0)
    compact(path)
    assert fresh.exists()
    assert not old.exists()
    assert count(path, "select count(*), sum(reward) from steps") == (2, 2.0)


def test_leftover_parts_go_with_the_next_compaction(path):
    """Whatever racing compactions left behind, the next one leaves one part of each table."""
    fill(path, 0, 1)
    compact(path)
    shutil.copytree(path / "cache", path / "kept")
    fill(path, 2)
    compact(path)
    for part in (path / "kept").glob("part-*"):
        shutil.copytree(part, path / "cache" / part.name)
        shutil.copytree(part, path / "cache" / f"{part.name}ff")
    assert count(path) == (3, 3.0)
    compact(path)
    assert [len(parts(path, table)) for table in TABLES] == [1] * len(TABLES)
    assert count(path) == (3, 3.0)


def test_nothing_builds_on_damage(path):
    """A damaged part is neither used nor merged into another, even if it is readable."""
    fill(path, 0, 1)
    compact(path)
    for place in parts(path):
        replace_rows(place, "* replace (7.0 as reward, 7.0 as line_reward)")
    assert count(path) == (2, 2.0)
    fill(path, 2)
    compact(path)
    assert count(path) == (3, 3.0)


def test_table_without_rows_is_not_scanned_again(path, file_reads):
    """After compaction it is known that a table has no rows, without scanning lines."""
    fill(path, 0, 1)
    compact(path)
    file_reads.clear()
    assert count(path, "select count(*) from calls") == (0,)
    assert file_reads.bytes_read(path / "rollouts") <= SEEK_TABLE_BYTES


def test_lines_without_rows_are_covered(path, monkeypatch, file_reads):
    """If many lines have no rows of a table, the next query does not read them again."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    fill(path, 0, 1)
    assert count(path, "select count(*) from calls") == (0,)
    assert len(parts(path)) == 1
    file_reads.clear()
    assert count(path, "select count(*) from calls") == (0,)
    assert file_reads.bytes_read(path / "rollouts") == 0


ASKED = ("groups", "steps", "messages", "scores")


@pytest.mark.parametrize("first", ASKED)
def test_a_cache_may_be_deleted_between_queries_of_different_tables(path, opened, monkeypatch, first):
    """Deleted files of tables that earlier queries used do not break a query of another table."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    one, *_ = fill(path, 0, 1, 2)
    with create_run(path, join=True) as writer:
        score(writer, one, 5.0)
    expected = {table: opened(path).sql(f"from {table} order by all").fetchall() for table in ASKED}
    for second in ASKED:
        run = opened(path)
        for table in (first, second):
            assert run.sql(f"from {table} order by all").fetchall() == expected[table]
        shutil.rmtree(path / "cache")
        for table in (second, first):
            assert run.sql(f"from {table} order by all").fetchall() == expected[table], (first, second, table)


def test_parts_of_another_key_or_run_are_not_used(path, monkeypatch):
    """Parts made with another key, or for another run, are not used, however plausible they are."""
    fill(path, 0)
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "theirs")
    compact(path)
    [theirs] = parts(path)
    replace_rows(theirs, "* replace (7.0 as reward, 7.0 as line_reward)")
    described = theirs.with_name("part.json")
    info = json.loads(described.read_bytes()[64:]) | {"digests": {}}
    for context in (read_info(LocalFiles(path)).id, "another run"):
        text = json.dumps(info).encode()
        described.write_bytes(sign(text, context) + text)
        assert count(path) == ((1, 7.0) if context == read_info(LocalFiles(path)).id else (1, 1.0))
    monkeypatch.delenv("ROLLTRACE_CACHE_KEY")
    assert count(path) == (1, 1.0)


def test_parts_of_a_read_only_run_are_in_the_cache_of_the_user(path, monkeypatch, tmp_path, file_reads):
    """A run whose cache cannot be written to is read once, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 1)
    fill(path, 0, 1)
    (path / "cache").write_text("in the way")
    assert count(path) == (2, 2.0)
    file_reads.clear()
    assert count(path) == (2, 2.0)
    assert file_reads.bytes_read(path / "rollouts") == 0
    assert list((tmp_path / "home").rglob("rollouts.parquet"))
