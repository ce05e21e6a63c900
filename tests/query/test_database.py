"""The cost of a statement: only what it needs is read, once, within its bounds, and unused resources are freed."""

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from itertools import count

import duckdb
import pytest

from answers import score, write
from rolltrace.errors import InputError, QueryTimeoutError, RolltraceError, StorageError
from rolltrace.query import compact as compaction
from rolltrace.query import database, late_rewards, part_processes
from rolltrace.query import part_writer as build
from rolltrace.query import run_tables as state
from rolltrace.query.compact import compact
from rolltrace.query.database import Database
from rolltrace.query.duckdb_engine import QueryDeadline
from rolltrace.query.list_numbers import query_list_numbers
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.run_files import LocalFile, LocalFiles
from rolltrace.trace.score import GroupKey

COUNT = "select count(*) from rollouts"


@pytest.fixture
def run(path, opened):
    """A run of three rollouts."""
    with create_run(path) as writer:
        for index in range(3):
            write(writer, index=index)
    return opened(path)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder of temporary folders, for this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def connections(monkeypatch):
    """The connections to DuckDB that were opened, as weak references."""
    made, connect = [], duckdb.connect

    def note(*arguments, **options):
        connection = connect(*arguments, **options)
        made.append(weakref.ref(connection))
        return connection

    monkeypatch.setattr(duckdb, "connect", note)
    return made


def parts(folder, table="*"):
    """The files of a table below a folder."""
    return set(folder.rglob(f"{table}.parquet"))


def row_count(paths):
    """How many rows these files have together."""
    return sum(duckdb.execute(f"select count(*) from '{path}'").fetchall()[0][0] for path in paths)


def test_texts_are_read_when_they_are_queried(path, opened, temporary):
    """A statement about rollouts builds no other table, also of a growing run; a later one has all their texts."""
    count = "select count(*), count(distinct rollout) from {}"
    with create_run(path) as writer:
        run = opened(path)
        for index in range(4):
            write(writer, index=index)
            writer.flush()
            assert run.sql(COUNT).fetchall() == [(index + 1,)]
            assert not parts(temporary, "steps") | parts(temporary, "*messages")
        for rollouts in (4, 5):
            assert run.sql(count.format("messages join rollouts on rollout = rollouts.id")).fetchall()[0][1] == rollouts
            assert run.sql(count.format("steps")).fetchall() == [(rollouts, rollouts)]
            write(writer, index=rollouts)
            writer.flush()
        assert run.sql(COUNT).fetchall() == [(6,)]
        assert row_count(parts(temporary, "steps")) == 5


def test_texts_are_those_of_the_held_rollouts(path, opened):
    """After `hold`, tables that are built later cover the same lines as the first ones."""
    with create_run(path) as writer:
        write(writer, index=0)
        writer.flush()
        run = opened(path)
        run.hold()
        write(writer, index=1)
        writer.flush()
        for table in ("rollouts", "steps"):
            assert run.sql(f"select count(*) from {table}").fetchall() == [(1,)]


def test_new_lines_are_read_when_the_revision_changes(path, opened, monkeypatch):
    """With a `revision`, new lines are read only when it changes."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    with create_run(path) as writer:
        run, revision = opened(path), [0]
        run.revision = lambda: revision[0]
        for index in range(3):
            write(writer, index=index)
            writer.flush()
            assert run.sql(COUNT).fetchall() == [(max(index, 1),)]
            revision[0] = index
            assert run.sql(COUNT).fetchall() == [(index + 1,)]
    for file in path.glob("cache/part-*/rollouts.parquet"):
        file.unlink()
    assert run.sql(COUNT).fetchall() == [(3,)]


@pytest.fixture
def fail_open(monkeypatch):
    """Lets files with a prefix fail to open; returns the names of all that are opened."""
    real, opened, failing = LocalFiles.open, [], []

    def open_or_fail(files, name):
        opened.append(name)
        if name.startswith(tuple(failing)):
            raise OSError(errno.ESTALE, "gone for now")
        return real(files, name)

    def start(prefix):
        failing[:] = [prefix] if prefix else []
        opened.clear()
        return opened

    monkeypatch.setattr(LocalFiles, "open", open_or_fail)
    return start


@pytest.fixture
def two_sessions(path, run):
    """The same run with a rollout of another session."""
    with create_run(path, join=True, continues=()) as writer:
        write(writer, group="other")
    return run


def test_ledgers_that_could_not_be_read_are_read_again(two_sessions, fail_open):
    """They decide which sessions count, so what could be read of them is not kept."""
    fail_open("ledger")
    two_sessions.sql("from rollouts").fetchall()
    assert {problem.message for problem in two_sessions.problems} == {"gone for now"}
    fail_open("")
    two_sessions.sql("from rollouts").fetchall()
    assert two_sessions.problems == ()


def test_ledgers_are_not_read_again_because_of_other_files(path, two_sessions, fail_open):
    """A segment that can never be read costs one more try in each statement."""
    bad = f"rollouts/{min((path / 'rollouts').iterdir()).name}"
    fail_open(bad)
    two_sessions.sql("from rollouts").fetchall()
    opened = fail_open(bad)
    two_sessions.sql("from rollouts").fetchall()
    assert opened[0] == bad
    assert not any(name.startswith("ledger") for name in opened)


def test_numbers_of_incomplete_tables_are_queried_again(run, fail_open):
    """Also if the problem is no longer known, because another reader could read the file."""
    run.revision = lambda: "same"
    fail_open("rollouts")
    assert run.sql(COUNT).fetchall() == [(0,)]
    fail_open("")
    run.clear_failures()
    numbers = query_list_numbers(run)
    assert (numbers.totals.rollouts, numbers.is_incomplete) == (3, False)


def test_numbers_without_bytes_that_a_disk_cannot_read_are_incomplete(run, monkeypatch):
    """The bytes are not tried again by this reader, and may be readable by another one."""

    def fail(*_):
        raise OSError(errno.EIO, "broken sector")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "read", fail)
        assert run.sql(COUNT).fetchall() == [(0,)]
    assert query_list_numbers(run).is_incomplete


def test_scores_that_cannot_be_read_are_an_error(path, run, fail_open):
    """They are not left out silently."""
    with create_run(path, join=True, continues=()) as writer:
        score(writer, write(writer), 0.5)
    assert len(list(run.scores())) == 1
    fail_open("scores")
    with pytest.raises(StorageError, match="gone for now"):
        list(run.scores())


def test_a_rollout_is_not_said_to_be_missing_while_nothing_can_be_read(path, run, monkeypatch):
    """An id that cannot be looked for is an error of the storage."""
    [(rollout,)] = run.sql("select min(id) from rollouts").fetchall()

    def fail(*_):
        raise OSError(errno.ESTALE, "gone for now")

    with monkeypatch.context() as patch, open_run(path) as other:
        patch.setattr(LocalFiles, "list_files", fail)
        with pytest.raises(StorageError, match="gone for now"):
            other.get(rollout)


def test_many_late_rewards_are_stored_once(path, opened, monkeypatch):
    """Late rewards are in the part of their rollouts, which replaces the one without them; statements need no join."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    stored = f"select count(*), sum(reward) from '{path}/cache/part-*/rollouts.parquet'"
    with create_run(path) as writer:
        ids = [write(writer, index=index, reward=0.0) for index in range(10)]
        writer.flush()
        run = opened(path)
        assert run.sql("select sum(reward) from rollouts").fetchall() == [(0.0,)]
        for value in (1.0, 2.0):
            for one in ids:
                score(writer, one, value)
            writer.flush()
            assert run.sql("select sum(reward) from rollouts").fetchall() == [(10 * value,)]
            assert run.sql("select sum(mean * n) from groups").fetchall() == [(10 * value,)]
            assert duckdb.sql(stored).fetchall() == [(10, 10 * value)]
        score(writer, ids[0], 5.0)
        writer.flush()
        assert run.sql("select sum(reward) from rollouts").fetchall() == [(23.0,)]
    assert opened(path).sql("select sum(reward) from rollouts").fetchall() == [(23.0,)]


@pytest.mark.parametrize("at_once", [1, 16])
def test_late_rewards_of_many_parts_are_stored_in_turns(path, opened, monkeypatch, at_once):
    """Rewards are looked up for some parts at a time; parts with few of them are joined by statements instead."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(late_rewards, "PARTS_AT_ONCE", at_once)
    ids = []
    for session in range(5):
        with create_run(path, join=session > 0) as writer:
            ids += [write(writer, group=str(session), index=index, reward=0.0) for index in range(20)]
        opened(path).sql(COUNT).fetchall()
    assert len(list(path.glob("cache/part-rollouts-*"))) == 5
    with create_run(path, join=True) as writer:
        for number, one in enumerate(ids):
            if number < 60 or number == 99:  # all of three parts, none of the fourth, one of the last
                score(writer, one, float(number))
    run = opened(path)
    expected = [(float(number) if number < 60 or number == 99 else 0.0,) for number in range(100)]
    for _ in range(2):
        assert run.sql('select reward from rollouts order by "group", "index"').fetchall() == expected
    run.close()
    stored = duckdb.sql(f"select sum(reward) from '{path}/cache/part-*/rollouts.parquet'").fetchall()
    assert stored == [(sum(range(60)) + (99 if at_once == 16 else 0),)]


def test_a_replaced_part_stays_while_a_result_needs_it(path, opened, monkeypatch):
    """A replaced part is deleted with a later statement."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    with create_run(path) as writer:
        ids = [write(writer, index=index, reward=0.0) for index in range(10)]
        writer.flush()
        run = opened(path)
        result = run.sql("select reward from rollouts")
        [replaced] = path.glob("cache/part-rollouts-*")
        for value in (1.0, 2.0):
            for one in ids:
                score(writer, one, value)
            writer.flush()
            assert run.sql("select sum(reward) from rollouts").fetchall() == [(10 * value,)]
            assert replaced.exists() is (value == 1.0)
            if value == 1.0:
                assert result.fetchall() == [(0.0,)] * 10
                del result


def test_only_what_is_needed_is_read(path, opened, temporary, file_reads):
    """A folder is not read for a statement that names none of its tables."""
    with create_run(path) as writer:
        write(writer)
        writer.flush()
        run = opened(path)
        for table in ("ledger", "messages", "rollouts"):
            assert run.sql(f"select * from {table}").fetchall()
        write(writer, index=1)
        writer.flush()
        file_reads.clear()
        assert run.sql(COUNT).fetchone() == (2,)
    assert file_reads.opened(path / "ledger") == []
    assert run.sql("select count(*) from messages").fetchone() == (4,)


def test_tables_of_earlier_statements_stay(run, connections):
    """Alternating queries of unchanged tables open no further connection."""
    statements = [COUNT, "select * from ledger", "select * from steps", "select * from groups", "select * from runs"]
    for _ in range(2):
        for sql in statements:
            run.sql(sql).fetchall()
    assert connections
    connections.clear()
    for sql in statements:
        run.sql(sql).fetchall()
    assert connections == []


def test_compacted_segments_are_opened_once(run, path, file_reads, opened):
    """Compressed segments that were read to their end are not opened again for every statement."""
    compact(path)
    again = opened(path)
    again.sql(COUNT).fetchall()
    assert file_reads.opened(path / "rollouts")
    file_reads.clear()
    again.sql(COUNT).fetchall()
    again.sql("select sum(reward) from rollouts").fetchall()
    assert file_reads.opened(path / "rollouts") == []


@pytest.mark.parametrize("sql", ["select corrupt from rollouts", "select 'zstd .parquet'::int", "select error('zstd')"])
def test_text_of_a_statement_is_not_taken_for_damage(run, path, temporary, connections, file_reads, opened, sql):
    """An error whose text comes from the statement is not mistaken for a damaged file."""
    compact(path)
    again = opened(path)
    again.sql(COUNT).fetchall()
    connections.clear()
    file_reads.clear()
    before = parts(temporary)
    with pytest.raises(InputError):
        again.sql(sql).fetchall()
    assert again.sql(COUNT).fetchone() == (3,)
    assert (connections, file_reads.opened(path), parts(temporary)) == ([], [], before)


def test_only_the_damaged_part_is_rebuilt(run, path, temporary, opened):
    """A part with a damaged file is rebuilt; the others stay, and the cache is still used."""
    with create_run(path, join=True) as writer:
        score(writer, None, 1.0, group=GroupKey("train", 0, "sums", "g"))
    compact(path)
    again = opened(path)
    for table in ("steps", "scores"):
        again.sql(f"select count(*) from {table}").fetchall()
    [damaged], [intact] = parts(path, "steps"), parts(path, "scores")
    data = damaged.read_bytes()
    damaged.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    assert again.sql("select count(*), sum(reward) from steps").fetchone() == (3, 3.0)
    assert not damaged.exists(), "a damaged part is deleted"
    assert parts(path, "scores") == {intact}
    assert again.sql("select count(*) from scores").fetchone() == (1,)
    assert parts(temporary, "scores") == set(), "scores come from the cache"


def test_making_tables_is_bounded(path, opened, temporary, monkeypatch):
    """Reading lines for a statement counts for its time-out, and finished parts are not rebuilt."""
    monkeypatch.setattr(build, "BATCH_BYTES", 5000)
    with create_run(path) as writer:
        for index in range(100):
            write(writer, index=index)
    run = opened(path)
    seconds = count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))  # each look at the clock takes a second
    with pytest.raises(QueryTimeoutError, match="longer than 80 seconds"):
        run.sql(COUNT, timeout=80)
    assert 0 < row_count(parts(temporary, "rollouts")) < 100
    assert run.sql(COUNT, timeout=80).fetchone() == (100,), "only what was not a part yet is read again"


def test_tiny_timeouts_never_hang(run):
    """However short the time-out, a statement ends with its answer or an error."""
    for timeout in (1e-9, 1e-5, 1e-4, 1e-3):
        with pytest.raises(QueryTimeoutError):
            run.sql(
                "select sum(sqrt(a.range * b.range)) from range(10000000) a, range(1000000) b", timeout=timeout
            ).fetchall()
    assert run.sql(COUNT, timeout=600).fetchone() == (3,)


def test_interrupting_is_repeated():
    """An interrupt that comes before the statement began, and had no effect, is repeated."""
    calls, noticed = [], threading.Event()

    def interrupt():
        calls.append(None)
        if len(calls) == 3:
            noticed.set()

    bounded = QueryDeadline(0.001)
    with bounded.limit(interrupt):
        assert noticed.wait(60)
    with pytest.raises(QueryTimeoutError):
        bounded.check()


def test_checking_does_not_wait_for_tables(run, path, monkeypatch):
    """While tables are being built, a statement is checked at once, and one with a time-out does not wait longer."""
    reading, may_go_on, pread = threading.Event(), threading.Event(), os.pread

    def wait(*arguments):
        reading.set()
        assert may_go_on.wait(60)
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", wait)
    answers = []
    maker = threading.Thread(target=lambda: answers.append(run.sql(COUNT).fetchone()))
    maker.start()
    assert reading.wait(60)
    with pytest.raises(InputError, match="no table"):
        run.sql("select * from nothing")
    with pytest.raises(QueryTimeoutError):
        run.sql(COUNT, timeout=0.05)
    assert answers == []
    may_go_on.set()
    maker.join()
    assert answers == [(3,)]


def test_engines_are_bounded(path, run, connections):
    """Threads, memory and disk are bounded, in total for building tables and answering."""

    def settings():
        names = ("threads", "memory_limit", "max_temp_directory_size")
        sql = f"select {', '.join(f'current_setting({name!r})' for name in names)}"
        return [connection().execute(sql).fetchone() for connection in connections]

    with open_run(path, memory="512MiB", threads=1) as bounded:
        bounded.sql(COUNT).fetchall()
        assert settings() == [(1, "256.0 MiB", "18.6 GiB")] * 2
    connections.clear()
    run.sql(COUNT).fetchall()
    assert [threads for threads, *_ in settings()] == [2, 2]
    with pytest.raises(InputError, match="at least one thread"):
        open_run(path, threads=0)


def test_snapshots_share_an_engine(path, opened, connections, monkeypatch):
    """A growing run is answered by one engine; earlier tables stay while a result is read from them."""
    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 2)
    with create_run(path) as writer:
        run = opened(path)

        def grow(index):
            write(writer, index=index)
            writer.flush()
            assert run.sql(COUNT).fetchone() == (index + 1,)
            [_, answers] = connections
            schemas = "select count(*) from duckdb_schemas() where schema_name like '\\_snapshot%' escape '\\'"
            return answers().execute(schemas).fetchone()[0]

        assert grow(0) == 1
        begun = run.sql("select id from rollouts")
        assert grow(1) == 2
        assert len(begun.fetchall()) == 1, "a result is of the moment in which it was asked for"
        assert grow(2) == 1
        assert parts(path / "cache", "rollouts"), "it also reads parts that are published meanwhile"


def test_following_takes_bounded_work_and_space(path, opened, temporary):
    """However often a growing run is queried, files stay few, and rows are rewritten only as sizes double."""
    seen, rows_written = set(), 0
    with create_run(path) as writer:
        run = opened(path)
        for index in range(32):
            write(writer, index=index)
            writer.flush()
            assert run.sql(COUNT).fetchone() == (index + 1,)
            new = parts(temporary, "rollouts") - seen
            rows_written += row_count(new)
            seen |= new
            assert len(parts(temporary)) <= 12
    assert 32 <= rows_written <= 32 * 7


def test_small_parts_grow_into_the_cache(path, opened, temporary, monkeypatch):
    """A run that is followed stores parts as soon as they are large enough, and uses them itself."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 4000)
    with create_run(path) as writer:
        run = opened(path)
        for index in range(12):
            write(writer, index=index)
            writer.flush()
            run.sql(COUNT).fetchall()
    cached = parts(path / "cache", "rollouts")
    assert 1 <= len(cached) < 12
    assert row_count(parts(temporary, "rollouts")) < 12
    run.close()
    assert opened(path).sql(COUNT).fetchone() == (12,)
    assert row_count(cached | parts(temporary, "rollouts")) == 12, "only what is not in the cache is read"


def test_first_queries_of_threads_share_a_database(run, temporary, monkeypatch):
    """However many threads query first, the tables are built once, in one folder."""
    barrier, answers, folders = threading.Barrier(8), [], []
    mkdtemp = tempfile.mkdtemp

    def make_slowly(*arguments, **options):
        for _ in range(100):
            time.sleep(0)  # lets the other threads query meanwhile
        folders.append(mkdtemp(*arguments, **options))
        return folders[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_slowly)

    def ask():
        barrier.wait()
        answers.append(run.sql(COUNT).fetchone())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(3,)] * 8
    assert len(folders) == 1
    assert len(parts(temporary, "rollouts")) == 1


def test_result_of_a_closed_run_says_so(run, temporary):
    """Reading on after the run was closed is an error that says what to do; rows taken before are right."""
    result = run.sql("select range from range(100000)")
    assert result.fetchone() == (0,)
    unread = run.sql(COUNT)
    assert list(temporary.iterdir())
    run.close()
    assert list(temporary.iterdir()) == []
    for late in (result, unread):
        with pytest.raises(InputError, match="closed"):
            late.fetchall()
    assert run.sql(COUNT).fetchone() == (3,)


def test_closing_may_be_interrupted(run, temporary, monkeypatch):
    """Another Ctrl-C while `close` waits for a thread leaves nothing behind."""
    run.sql(COUNT).fetchall()
    assert list(temporary.iterdir())

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Database, "_stop_making", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    assert list(temporary.iterdir()) == []


def test_a_callback_may_close_the_run(run, path, monkeypatch):
    """Closing does not wait for the tables that its own thread is making."""
    monkeypatch.setattr(database, "CLOSE_TIMEOUT_SECONDS", 3600.0)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    for number in range(2):
        with create_run(path, join=True) as writer:
            write(writer, group=f"more {number}")
    closing = open_run(path, on_progress=lambda _: closing.close())
    ends = []

    def ask():
        try:
            closing.sql(COUNT).fetchall()
        except RolltraceError as error:
            ends.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert "closed" in str(ends[0])
    assert run.sql(COUNT).fetchall() == [(5,)]


def test_a_compaction_ends_although_its_files_are_damaged(run, path, monkeypatch):
    """It tries some times, and then says why it gave up."""
    merge = compaction._merge_parts

    def damage_and_merge(*arguments):
        for file in (path / "cache").rglob("rollouts.parquet"):
            file.write_bytes(b"damaged")
        return merge(*arguments)

    monkeypatch.setattr(state, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    run.sql(COUNT).fetchall()
    with create_run(path, join=True) as writer:
        write(writer, group="more")
    run.sql(COUNT).fetchall()
    monkeypatch.setattr(compaction, "_merge_parts", damage_and_merge)
    with pytest.raises(StorageError, match="damaged repeatedly"):
        compact(path)


def test_closing_while_rows_are_read(run):
    """A thread that reads while another closes the run gets an error, and the program continues."""
    result = run.sql("select a.range from range(10000000) a, range(1000000) b")
    reading, ends = threading.Event(), []

    def read():
        try:
            for _ in result:
                reading.set()
        except InputError as error:
            ends.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait()
    run.close()
    thread.join()
    assert "closed" in ends[0]


FORKING = """
import os, sys, tempfile
from pathlib import Path
from rolltrace import open_run

def folders():
    return set(Path(tempfile.gettempdir()).iterdir())

def in_child(action):
    child = os.fork()
    if child == 0:
        action()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert folders() == before

def ask():
    try:
        inherited.fetchall()
    except ValueError as error:
        assert "forked" in str(error)
    else:
        raise AssertionError
    assert run.sql(count).fetchone() == (3,)
    assert len(folders() - before) == 1
    run.close()
    assert folders() == before

run = open_run(sys.argv[1])
count = "select count(*) from rollouts"
assert run.sql(count).fetchone() == (3,)
ids = run.sql("select id from rollouts")
inherited = run.sql("select range from range(5000)")
assert inherited.fetchone() == (0,)
before = folders()
assert len(before) == 1
for action in (ask, run.close, lambda: None):
    in_child(action)
assert run.sql(count).fetchone() == (3,)
assert len(ids.fetchall()) == 3
assert len(inherited.fetchall()) == 4999
run.close()
assert folders() == set()
"""


def test_forked_process_leaves_its_parent_alone(run, path, temporary):
    """A child can query, close or exit without deleting its parent's tables."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(path)], capture_output=True, text=True, check=False,
        env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


LEAVING_GARBAGE = """
import gc, os

os.register_at_fork(after_in_child=lambda: [[] for _ in range(100_000)])  # enough for a collection
import duckdb
import rolltrace.query.run

def leave_garbage():
    relation = duckdb.connect().sql("select range from range(5000)")
    relation.fetchall()
    cycle = [relation]
    cycle.append(cycle)

gc.disable()
leave_garbage()
gc.enable()
child = os.fork()
assert gc.isenabled()
if child == 0:
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_forked_process_does_not_collect_the_garbage_of_its_parent():
    """A database that is garbage is not destroyed in a child, where its threads do not exist."""
    done = subprocess.run([sys.executable, "-c", LEAVING_GARBAGE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["rollouts", "steps"])
def test_numbers_of_steps_are_with_their_rollout(path, opened, first):
    """A rollout has the sum of each reward component, and the mean of each metric without a value of its own."""
    with create_run(path) as writer:
        for index in range(4):
            with writer.rollout(env="e", task="t", group="g", index=index) as rollout:
                rollout.metric("own", 7.0)
                for turn in range(index):
                    parts = {"a": 1.5, "b": float("nan")} if turn == 1 else {"a": 1, "c": float("inf")}
                    rollout.step("q", "a", 1.0, reward_data=parts, metrics={"own": 1.0, "length": turn, **parts})
    run = opened(path)
    run.sql(f"select * from {first}").fetchall()
    rows = run.sql('select step_reward_data, step_metrics from rollouts order by "index"').fetchall()
    infinite, nan = float("inf"), pytest.approx(float("nan"), nan_ok=True)
    assert rows == [
        ({}, {}),
        ({"a": 1.0, "c": infinite}, {"length": 0.0, "a": 1.0, "c": infinite}),
        ({"a": 2.5, "c": infinite, "b": nan}, {"length": 0.5, "a": 1.25, "c": infinite, "b": nan}),
        ({"a": 3.5, "c": infinite, "b": nan}, {"length": 1.0, "a": pytest.approx(3.5 / 3), "c": infinite, "b": nan}),
    ]


def test_columns_that_begin_and_end_alike_keep_what_is_between(path, opened):
    """Columns with one value are made in a faster way; others that only look like it are not."""
    with create_run(path) as writer:
        for index, (task, tags, metrics) in enumerate([("x", [], {}), ("y", ["t"], {"m": 1.0}), ("x", [], {})]):
            with writer.rollout(env="e", task=task, group="g", index=index, tags=tags) as rollout:
                for name, value in metrics.items():
                    rollout.metric(name, value)
    rows = opened(path).sql('select env, task, tags, metrics from rollouts order by "index"').fetchall()
    assert rows == [("e", "x", [], {}), ("e", "y", ["t"], {"m": 1.0}), ("e", "x", [], {})]
