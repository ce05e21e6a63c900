"""What a statement costs: only what it needs is read, once, within its bounds, and what is no longer used goes away."""

import gc
import os
import subprocess
import sys
import threading
import types
import weakref

import pytest

from answers import write
from rolltrace.errors import InputError, QueryTimeoutError
from rolltrace.query import database
from rolltrace.query import deadline as clock
from rolltrace.query import parquet_writer as build
from rolltrace.query import table_cache as state
from rolltrace.query.compact import compact
from rolltrace.query.parquet_parts import parquet_files
from rolltrace.query.run import open_run
from rolltrace.store import cursor
from rolltrace.store.create import create_run

COUNT = "select count(*) from rollouts"


@pytest.fixture
def run(path, opened):
    """A run of three rollouts."""
    with create_run(path) as writer:
        for index in range(3):
            write(writer, index=index)
    return opened(path)


def counted(monkeypatch, owner, name):
    """The arguments of each call of a function."""
    calls, original = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: (calls.append(given), original(*given))[1])
    return calls


def private_files(run):
    return [*run._database._private.rglob("*.parquet"), *run._database._private.rglob("*.ndjson")]


def test_only_what_is_needed_is_read(run, monkeypatch):
    """A table that an earlier statement named is not read for one that does not name it."""
    run.sql("select * from ledger").fetchall()
    run.sql("select * from messages").fetchall()
    small, batches = counted(monkeypatch, database, "small_rows"), counted(monkeypatch, state, "ParquetBatch")
    run.sql(COUNT).fetchall()
    assert small == []
    assert {table for table, *_ in batches} == {"rollouts", "scores"}


def test_tables_of_earlier_statements_stay(run, monkeypatch):
    """Asking in turn about tables that did not change makes no engine anew."""
    statements = [COUNT, "select * from ledger", "select * from steps", "select * from groups", "select * from runs"]
    for _ in range(2):
        for sql in statements:
            run.sql(sql).fetchall()
    made = counted(monkeypatch, database, "SqlSandbox")
    for sql in statements:
        run.sql(sql).fetchall()
    assert made == []


def test_compacted_segments_are_opened_once(run, path, monkeypatch, opened):
    """Segments that were read to their end, and cannot grow, are not opened again for every statement."""
    compact(path)
    again = opened(path)
    again.sql(COUNT).fetchall()
    touched = counted(monkeypatch, cursor, "open_segment")
    again.sql(COUNT).fetchall()
    again.sql("select sum(reward) from rollouts").fetchall()
    assert touched == []


@pytest.mark.parametrize("sql", ["select corrupt from rollouts", "select 'zstd .parquet'::int", "select error('zstd')"])
def test_words_of_a_user_blame_no_file(run, path, monkeypatch, opened, sql):
    """What a statement says is never taken for what is wrong with a file."""
    compact(path)
    again = opened(path)
    again.sql(COUNT).fetchall()
    read, made = counted(monkeypatch, build.ParquetBatch, "add"), counted(monkeypatch, database, "SqlSandbox")
    checked = counted(monkeypatch, database, "is_intact")
    with pytest.raises(InputError):
        again.sql(sql).fetchall()
    assert again.sql(COUNT).fetchone() == (3,)
    assert (read, made, checked) == ([], [], [])


def test_only_the_damaged_part_is_made_anew(run, path, monkeypatch, opened):
    """One damaged part costs its own table; the others stay, and so does the use of the cache."""
    compact(path)
    again = opened(path)
    again.sql("select count(*) from steps").fetchall()
    [damaged] = (path / "cache").glob("steps-*.parquet")
    data = damaged.read_bytes()
    damaged.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    kept = [part for part in parquet_files(path) if part != damaged]
    finished = counted(monkeypatch, build.ParquetBatch, "finish")
    assert again.sql("select count(*), sum(reward) from steps").fetchone() == (3, 3.0)
    assert parquet_files(path) == kept, "what is damaged helps nobody"
    assert again.sql("select count(*) from messages").fetchone() == (6,)
    assert [batch._table for batch, *_ in finished if batch._places] == ["steps"], "messages come from the cache"


@pytest.fixture
def time_passes(monkeypatch):
    """A clock that is moved by hand."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_making_tables_is_bounded(path, opened, monkeypatch, time_passes):
    """Reading lines for a statement ends with its time, and what was made of them is not made again."""
    monkeypatch.setattr(build, "BATCH_BYTES", 5000)
    with create_run(path) as writer:
        for index in range(40):
            write(writer, index=index)
    run = opened(path)
    add, read = build.ParquetBatch.add, []

    def add_slowly(self, line, place):
        if self._table == "rollouts":
            read.append(place)
            time_passes[0] += 1.0
        add(self, line, place)

    monkeypatch.setattr(build.ParquetBatch, "add", add_slowly)
    with pytest.raises(QueryTimeoutError, match="longer than 30 seconds"):
        run.sql(COUNT, timeout=30)
    assert len(read) == 30
    assert run.sql(COUNT, timeout=30).fetchone() == (40,)
    assert 40 <= len(read) < 50, "only what was not a part yet is read again"
    assert not list(run._database._private.rglob("*.ndjson"))


def test_tiny_timeouts_never_hang(run):
    """However little time there is, a statement ends: in its answer or in an error."""
    for timeout in (1e-9, 1e-5, 1e-4, 1e-3):
        with pytest.raises(QueryTimeoutError):
            run.sql(
                "select sum(sqrt(a.range * b.range)) from range(10000000) a, range(1000000) b", timeout=timeout
            ).fetchall()
    assert run.sql(COUNT, timeout=600).fetchone() == (3,)


def test_interrupting_goes_on():
    """What was interrupted before it began, and so did not notice, is interrupted again."""
    calls, noticed = [], threading.Event()

    def interrupt():
        calls.append(None)
        if len(calls) == 3:
            noticed.set()

    bounded = clock.QueryDeadline(0.001)
    with bounded.limit(interrupt):
        assert noticed.wait(60)
    with pytest.raises(QueryTimeoutError):
        bounded.check()


def test_checking_does_not_wait_for_tables(run):
    """While tables are being made, a statement is checked at once, and one with a bound does not wait longer."""
    asked = run._database
    with asked._lock:
        assert asked.check("select 1").tables == set()
        with pytest.raises(InputError, match="no table"):
            run.sql("select * from nothing")
        with pytest.raises(QueryTimeoutError):
            run.sql(COUNT, timeout=0.05)
    assert run.sql(COUNT).fetchone() == (3,)


def test_engines_are_bounded(path, run):
    """Threads, memory and disk have bounds, which are shared between making tables and answering."""
    with open_run(path, memory="512MiB", threads=1) as bounded:
        bounded.sql(COUNT).fetchall()
        settings = "select current_setting('threads'), current_setting('memory_limit')"
        settings += ", current_setting('max_temp_directory_size')"
        for connection in (bounded._database.connection, bounded._database._engines[False]._connection):
            assert connection.execute(settings).fetchone() == (1, "256.0 MiB", "18.6 GiB")
    run.sql(COUNT).fetchall()
    assert run._database.connection.execute("select current_setting('threads')").fetchone() == (2,)
    with pytest.raises(InputError, match="at least one thread"):
        open_run(path, threads=0)


def test_replaced_engines_go_away(path, opened):
    """An engine lives while someone reads from it, and no longer."""
    with create_run(path) as writer:
        write(writer)
        writer.flush()
        run = opened(path)
        begun = run.sql("select id from rollouts")
        first = weakref.ref(run._database._engines[False])
        write(writer, index=1)
        writer.flush()
        assert run.sql(COUNT).fetchone() == (2,)
        gc.collect()
        assert first() is not None
        assert len(begun.fetchall()) == 1, "a result is of the moment in which it was asked for"
        gc.collect()
        assert first() is None


def test_following_takes_bounded_work_and_space(path, opened, monkeypatch):
    """However often a growing run is asked, files stay few, and rows are written again only as sizes double."""
    merged = counted(monkeypatch, state.RunTables, "merge")
    with create_run(path) as writer:
        run = opened(path)
        for index in range(32):
            write(writer, index=index)
            writer.flush()
            assert run.sql(COUNT).fetchone() == (index + 1,)
    parts = run._database.runs[0].parts["rollouts"]
    assert len(parts) <= 6
    assert len(private_files(run)) <= 2 * len(parts) + 4
    rewritten = sum(part.label.facts.rows for _, table, group in merged if table == "rollouts" for part in group)
    assert rewritten <= 32 * 6


def test_small_parts_grow_into_the_cache(path, opened, monkeypatch):
    """A run that is followed leaves parts for others as soon as they are worth it, and uses them itself."""
    monkeypatch.setattr(state, "MIN_CACHED_BYTES", 4000)
    with create_run(path) as writer:
        run = opened(path)
        for index in range(12):
            write(writer, index=index)
            writer.flush()
            run.sql(COUNT).fetchall()
    kept = list((path / "cache").glob("rollouts-*.parquet"))
    assert 1 <= len(kept) < 12
    assert set(kept) <= {part.path for part in run._database.runs[0].parts["rollouts"]}
    again = counted(monkeypatch, build.ParquetBatch, "add")
    assert opened(path).sql(COUNT).fetchone() == (12,)
    assert len([1 for batch, *_ in again if batch._table == "rollouts"]) < 12


def test_first_questions_of_threads_share_a_database(run, monkeypatch):
    """However many threads ask first, there is one database."""
    made = counted(monkeypatch, sys.modules["rolltrace.query.run"], "Database")
    barrier, answers = threading.Barrier(8), []

    def ask():
        barrier.wait()
        answers.append(run.sql(COUNT).fetchone())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [(3,)] * 8
    assert len(made) == 1


def test_result_of_a_closed_run_says_so(run):
    """Reading on after the run was closed is an error that says what to do; what was taken before is right."""
    result = run.sql("select range from range(100000)")
    assert result.fetchone() == (0,)
    unread = run.sql(COUNT)
    folder = run._database._private
    run.close()
    assert not folder.exists()
    for late in (result, unread):
        with pytest.raises(InputError, match="closed"):
            late.fetchall()
    assert run.sql(COUNT).fetchone() == (3,)


def test_closing_while_rows_are_read(run):
    """A thread that reads while another closes the run gets an error, and the program goes on."""
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
import os, sys
from rolltrace import open_run

run = open_run(sys.argv[1])
count = "select count(*) from rollouts"
assert run.sql(count).fetchone() == (3,)
before = run.sql("select id from rollouts")
inherited = run.sql("select range from range(5000)")
assert inherited.fetchone() == (0,)
folder = run._database._private
child = os.fork()
if child == 0:
    try:
        inherited.fetchall()
    except ValueError as error:
        assert "forked" in str(error)
    else:
        raise AssertionError
    assert run.sql(count).fetchone() == (3,)
    assert run._database._private != folder
    run.close()
    del run, before, inherited
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
idle = os.fork()
if idle == 0:
    sys.exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(idle, 0)[1]) == 8
assert folder.is_dir()
assert run.sql(count).fetchone() == (3,)
assert len(before.fetchall()) == 3
assert len(inherited.fetchall()) == 4999
run.close()
assert not folder.exists()
"""


def test_forked_process_leaves_its_parent_alone(run, path):
    """A child asks for itself, and ends without taking its parent's tables or breaking."""
    done = subprocess.run([sys.executable, "-c", FORKING, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_closing_in_another_process_does_nothing(run, monkeypatch):
    """What belongs to the parent is not closed, and not deleted, by a child."""
    run.sql(COUNT).fetchall()
    asked = run._database
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: -1)
        asked.close()
    assert not asked.is_closed
    assert asked._private.is_dir()
