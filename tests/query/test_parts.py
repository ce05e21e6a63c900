"""Parts: every value of a record is in its column, whichever process built the part."""

import contextlib
import errno
import gc
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from answers import score, write
from batches import hold_back
from examples import examples
from rolltrace.errors import QueryTimeoutError
from rolltrace.processes import worker_process
from rolltrace.query import late_rewards, part_processes, part_writer, run_tables
from rolltrace.query.arrow_columns import ArrowTable
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_summary import summarize
from rolltrace.query.table_schema import NUMBER_MAP
from rolltrace.store.create import create_run
from rolltrace.store.layout import SegmentName
from rolltrace.store.parts import Part, PartInfo, RowStats, find_parts, publish_part
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.segment_reader import existing_segments
from rolltrace.temp_folders import FileLock
from rolltrace.trace.codec import add_checksum
from waiting import until

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.floats() | st.booleans() | st.integers(-(10**6), 10**6)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])
TIMES = st.datetimes(timezones=ZONES).filter(lambda time: 1 < time.year < 9999)
VALUES = {
    "VARCHAR": TEXT,
    "JSON": st.recursive(st.booleans() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(),
    "BOOLEAN": st.booleans(),
    "TIMESTAMP": TIMES,
    "VARCHAR[]": st.lists(TEXT, max_size=3),
    "MAP(VARCHAR, DOUBLE)": st.dictionaries(TEXT, NUMBER, max_size=3),
    "MAP(VARCHAR, BIGINT)": st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1), max_size=3),
}
ROWS = st.lists(st.fixed_dictionaries({kind: st.none() | values for kind, values in VALUES.items()}), max_size=20)


def as_given(kind, value):
    """A value as it is given to the table: JSON as bytes, numbers that are not finite as text."""
    if kind == "JSON" and value is not None:
        return json.dumps(value, ensure_ascii=False).encode()
    if kind == "DOUBLE" and value is not None and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def as_answered(kind, value):
    """A value as a query returns it."""
    if kind == "TIMESTAMP" and value is not None:
        return value.astimezone(UTC).replace(tzinfo=None, fold=0)
    if kind == "JSON" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    return {name: float(number) for name, number in value.items()} if kind.endswith("DOUBLE)") and value else value


@settings(max_examples=examples(100))
@given(ROWS, ROWS)
def test_columns_hold_what_they_were_given(first, second):
    """Every value is read back, in every type, among nulls, and from several chunks."""
    table = ArrowTable({kind: kind for kind in VALUES})
    for rows in filter(None, (first, second)):
        columns = {kind: [as_given(kind, row[kind]) for row in rows] for kind in VALUES}
        table.append(columns)
    with duckdb.connect() as connection, table.registered(connection) as source:
        answered, again = (connection.execute(f"from {source}").fetchall() for _ in range(2))
    expected = [tuple(as_answered(kind, row[kind]) for kind in VALUES) for row in (*first, *second)]
    assert repr(answered) == repr(again) == repr(expected)  # `repr`, because NaN is not equal to itself


REPEATED = {
    "VARCHAR": ("it's", "\x00"),
    "JSON": ({"a": "it's"}, []),
    "BIGINT": (-(2**63), 0),
    "DOUBLE": (0.0, -0.0),
    "BOOLEAN": (True, False),
    "TIMESTAMP": (datetime(2026, 11, 18, 1, 2, 3, 4, UTC), datetime(9998, 1, 1, tzinfo=UTC)),
    "VARCHAR[]": (["it's", ""], []),
    "MAP(VARCHAR, DOUBLE)": ({}, {"a": math.nan}),
    "MAP(VARCHAR, BIGINT)": ({"a": 2**63 - 1}, {}),
}


@pytest.mark.parametrize("chunks", ["xx x", "xx xyx", "nn xn", "nn", "x ny yy"])
def test_repeated_values_are_read_back(chunks):
    """A value that all rows have, or all until then, is the same as if it were among others, in every type."""
    table = ArrowTable({kind: kind for kind in VALUES})
    known = {kind: {"x": x, "y": y, "n": None} for kind, (x, y) in REPEATED.items()}
    for chunk in chunks.split():
        table.append({kind: [as_given(kind, values[one]) for one in chunk] for kind, values in known.items()})
    with duckdb.connect() as connection, table.registered(connection) as source:
        answered = connection.execute(f"from {source}").fetchall()
    rows = chunks.replace(" ", "")
    expected = [tuple(as_answered(kind, values[one]) for kind, values in known.items()) for one in rows]
    assert repr(answered) == repr(expected)


NAMES = st.lists(st.sampled_from(["a", "A", "é", "", "\x00", "a\x00", '"', "key"]) | TEXT, max_size=3, unique=True)
MAPS = NAMES.flatmap(
    lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, NUMBER)), min_size=1, max_size=4)
)
MANY_NAMES = [{str(name): 0.5 for name in range(1000)}] * 2


@settings(max_examples=examples(100))
@given(st.lists(MAPS, min_size=1, max_size=4))
@example([MANY_NAMES])
@example([[{"a": 1}, {"a": 2}], [{"b": 3}], [{"a": 4}, {"b": 5}], [{"a": 6}]])
def test_maps_with_the_same_names_hold_them(chunks):
    """Whatever the names are, and however they change from chunk to chunk; in order."""
    table = ArrowTable({"map": NUMBER_MAP, "chunk": "BIGINT"})
    for number, maps in enumerate(chunks):
        table.append({"map": maps, "chunk": [number] * len(maps)})
    with duckdb.connect() as connection, table.registered(connection) as source:
        answered = connection.execute(f"select map from {source}").fetchall()
    assert repr(answered) == repr([(as_answered(NUMBER_MAP, one),) for maps in chunks for one in maps])


@pytest.mark.parametrize(
    ("chunks", "streams"),
    [
        ([[{"a": 1}], [{"a": 2}]], 1),
        ([[{str(name): 1}] for name in range(10)], 2),
        ([[{str(name): 1 for name in range(1000)}]], 1),
        ([[{}], [{}]], 1),
    ],
)
def test_tables_are_read_as_few_streams(chunks, streams):
    """Names that are different in each line cost no more than others."""
    table = ArrowTable({"map": NUMBER_MAP})
    for maps in chunks:
        table.append({"map": maps})
    with duckdb.connect() as connection, table.registered(connection) as source:
        assert source.count("select") == streams


def answers(path):
    """The rows of the tables, in a fixed order."""
    with open_run(path) as run:
        rows = [
            run.sql(f"select * from {table} order by all").fetchall()
            for table in ("rollouts", "steps", "messages", "scores", "groups")
        ]
        return rows, [(error.file, error.offset) for error in run.problems]


@pytest.fixture
def long_run(path, monkeypatch):
    """A run of many segments, with damage and late scores."""
    for session in range(4):
        with create_run(path, join=session > 0, trace=Recording(segment_bytes=4000)) as writer:
            for index in range(20):
                write(writer, group=str(session), index=index, tags=("ü",), metrics={"length": index / 3})
                if index % 5 == 0:
                    score(writer, write(writer, group=f"late {session}", index=index), float(index))
    damaged = sorted((path / "rollouts").iterdir())[3]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    return path


def test_processes_make_the_same_parts(long_run, monkeypatch):
    """Several processes build the same tables as one, and both report the damage."""
    alone = answers(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    with open_run(long_run, partial=True) as run:
        run.sql("select count(*) from rollouts").fetchall()
        assert run.coverage < 1, "the first of several batches is ready"
    assert answers(long_run) == alone
    assert alone[1]


def test_making_parts_leaves_no_garbage(long_run, tmp_path):
    """A process that makes parts turns the garbage collector off, so garbage would pile up from part to part."""
    run = LocalFiles(long_run)
    segments = existing_segments(run, "rollouts")
    try:
        for number in range(2):  # the first part also leaves the garbage of imports
            gc.collect()
            part_processes._build(run, ("rollouts", "texts"), segments, None, str(tmp_path / str(number)))
        assert gc.collect() == 0
    finally:
        gc.enable()
        part_processes._worker_connection.cache_clear()


def test_partial_answers_come_from_the_newest_segments(long_run, monkeypatch):
    """A run opened with `partial` answers with what is ready, and in the end with everything."""
    everything = answers(long_run)[0][0]
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    may_go_on = hold_back(monkeypatch, "rollouts")
    with open_run(long_run, partial=True) as run:
        seen = [run.sql("select * from rollouts order by all").fetchall()]
        may_go_on.set()
        while run.coverage < 1:
            seen.append(run.sql("select * from rollouts order by all").fetchall())
        assert run.sql("select * from rollouts order by all").fetchall() == everything
    assert 0 < len(seen[0]) < len(everything)
    assert max(row[0] for row in seen[0]) == max(row[0] for row in everything)
    assert [len(rows) for rows in seen] == sorted(len(rows) for rows in seen)


def test_partial_answers_do_not_wait_for_late_scores(long_run, monkeypatch):
    """Until processes have read the scores, rollouts have the rewards of their lines; then all readers have them."""
    with open_run(long_run) as run:
        late = {rollout.id: rollout.reward for rollout in run.rollouts()}
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    may_go_on = hold_back(monkeypatch, "scores", first=0)
    with open_run(long_run, partial=True) as run:
        while run.sql("select count(*) from rollouts").fetchall() != [(len(late),)]:
            assert run.coverage < 1
        assert {rollout.reward for rollout in run.rollouts()} == {1.0}
        assert {run.get(rollout).reward for rollout in late} == {1.0}
        assert run.coverage < 1
        may_go_on.set()
        while run.coverage < 1:
            run.refresh()
        assert {rollout.id: rollout.reward for rollout in run.rollouts()} == late
        assert {rollout: run.get(rollout).reward for rollout in late} == late


def parts_with_rewards(path):
    """The stored parts of rollouts that include late rewards."""
    return [part for part in find_parts(path, RunReader(path).info.id, "rollouts") if part.info.scores_covered]


@pytest.fixture
def scored_run(path, monkeypatch):
    """A run of four segments with a late score for every rollout; each is a part of its own."""
    for session in range(4):
        with create_run(path, join=session > 0) as writer:
            for index in range(10):
                score(writer, write(writer, group=str(session), index=index), float(index))
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(run_tables, "PARTS_AT_ONCE", 1)
    monkeypatch.setattr(late_rewards, "PARTS_AT_ONCE", 1)
    return path


REWARDS = "select count(*), sum(reward) from rollouts"


def read_on(run):
    """Let a partial reader read everything."""
    until(lambda: run.continue_reading() or not run.is_unfinished)


def test_a_run_is_read_on_and_its_late_rewards_are_stored_in_turns(scored_run):
    """Statements of one revision add nothing; each call of `continue_reading` does, until every part is up to date."""
    with open_run(scored_run, partial=True) as run:
        run.revision = lambda: "one"
        first = run.sql(REWARDS).fetchall()
        coverage = run.coverage
        assert run.sql(REWARDS).fetchall() == first
        assert run.coverage == coverage < 1
        while run.coverage < 1:
            run.continue_reading()
            [(rollouts, scores)] = run.sql("select (select count(*) from rollouts), count(*) from scores").fetchall()
            assert scores == 0 or rollouts == 40, "rollouts are read first"
            assert run.coverage == 1 or not parts_with_rewards(scored_run), (
                "rewards are stored after everything is read"
            )
        stored = []
        while run.is_unfinished:
            for _ in range(4):
                assert run.sql(REWARDS).fetchall() == [(40, 180.0)]
            stored.append(len(parts_with_rewards(scored_run)))
            run.continue_reading()
        assert run.sql(REWARDS).fetchall() == [(40, 180.0)]
    assert stored == [1, 2, 3]
    assert len(parts_with_rewards(scored_run)) == 4


def test_scores_that_processes_read_are_not_read_twice(scored_run, monkeypatch):
    """Rollouts are read first, also if processes had begun to read scores."""
    may_go_on = hold_back(monkeypatch, "scores")
    with open_run(scored_run, partial=True) as run:
        assert run.sql("select count(*) from scores").fetchall() == [(10,)]
        until(lambda: run.sql("select count(*) from rollouts").fetchall() == [(40,)])
        assert run.sql("select count(*) from scores").fetchall() == [(10,)]
        assert run.coverage < 1
        may_go_on.set()
        read_on(run)
        assert run.sql("select count(*) from scores").fetchall() == [(40,)]
        assert run.problems == ()


def test_late_scores_stay_while_texts_are_read(scored_run, monkeypatch):
    """If processes read texts later than the rollouts, these keep their rewards, and the texts are read to the end."""
    with monkeypatch.context() as once, open_run(scored_run) as run:
        once.setattr(part_processes, "BATCH_BYTES", 1 << 20)
        assert run.sql(REWARDS).fetchall() == [(40, 180.0)]
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 10_000)
    with create_run(scored_run, join=True) as writer, open_run(scored_run) as run:
        [rollout] = run.rollouts(where="reward = 0", limit=1)
        score(writer, rollout.id, 100.0)
    may_go_on = hold_back(monkeypatch, "texts")
    with open_run(scored_run, partial=True) as run:
        run.revision = lambda: "one"
        assert run.sql(REWARDS).fetchall() == [(40, 280.0)]
        assert run.sql("select count(*) from steps").fetchall() == [(10,)]
        assert run.coverage < 1
        assert sum(rollout.reward for rollout in run.rollouts()) == run.get(rollout.id).reward + 180.0 == 280.0
        assert run.sql(REWARDS).fetchall() == [(40, 280.0)]
        may_go_on.set()
        read_on(run)
        assert run.sql("select count(*) from steps").fetchall() == [(40,)]


def test_rewards_are_stored_also_if_the_first_statement_is_about_one_iteration(scored_run):
    """Such a statement reads everything, and stores nothing itself."""
    with open_run(scored_run) as run:
        run.revision = lambda: "one"
        assert run.sql(f"{REWARDS} where iteration = 0").fetchall() == [(40, 180.0)]
        assert parts_with_rewards(scored_run) == []
        assert run.sql(REWARDS).fetchall() == [(40, 180.0)]
    assert len(parts_with_rewards(scored_run)) == 4


def test_a_partial_reader_has_the_scores_of_a_short_run(path):
    """What this process reads itself it reads to the end, also if the first call is `get`."""
    with create_run(path) as writer:
        rollout = write(writer)
        score(writer, rollout, 7.0)
    with open_run(path, partial=True) as run:
        assert run.get(rollout).reward == 7.0
    with open_run(path, partial=True) as run:
        assert [one.reward for one in run.rollouts(limit=1)] == [7.0]


def test_the_newest_segments_of_all_sessions_come_first(long_run, monkeypatch):
    """Segments are read by the time at which they were written, not by session."""
    segments = sorted((long_run / "rollouts").iterdir())
    first_session = SegmentName.parse(segments[0].name).session
    own = [segment for segment in segments if SegmentName.parse(segment.name).session == first_session]
    for segment in segments:
        newest = segment in own[-3:]
        os.utime(segment, (2_000_000_000, 2_000_000_000) if newest else (1_000_000_000, 1_000_000_000))
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    hold_back(monkeypatch, "rollouts")
    with open_run(long_run, partial=True) as run:
        assert run.sql("select distinct session from rollouts").fetchall() == [(first_session,)]
        assert run.coverage < 1


def test_a_partial_summary_is_about_one_part(long_run, monkeypatch):
    """The numbers of a partial summary are consistent although processes continue, and it says what they cover."""
    whole = summarize(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    reported = []
    may_go_on = hold_back(monkeypatch, "rollouts")
    part = summarize(long_run, partial=True)
    may_go_on.set()
    everything = summarize(long_run, on_progress=reported.append)
    assert 0 < part.coverage < 1
    assert 0 < part.rollouts < whole.rollouts
    assert part.rollouts == sum(row.rollouts for row in part.iterations) == sum(part.statuses.values())
    for name in ("rollouts", "groups", "statuses", "stop_reasons", "finished", "lost"):
        assert getattr(everything, name) == getattr(whole, name)
    assert reported == sorted(reported)
    assert reported[-1] == 1


def test_a_killed_process_costs_only_time(long_run, monkeypatch):
    """The process that runs the query reads the lines itself."""
    alone = answers(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    monkeypatch.setattr(part_processes, "_build", _kill_itself)
    assert answers(long_run) == alone


def test_later_readers_know_the_places_of_damage(long_run, monkeypatch):
    """Stored parts list unreadable lines, whichever process built them, also after merging."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(part_writer, "BATCH_BYTES", 9000)
    places = answers(long_run)[1]
    assert any(offset is not None for _, offset in places)
    assert answers(long_run)[1] == places
    compact(long_run)
    assert answers(long_run)[1] == places


def test_ids_are_found_in_every_chunk_and_in_merged_parts(path, monkeypatch):
    """A part knows its first and last id, so that no part is scanned for an id outside."""
    monkeypatch.setattr(part_writer, "_CHUNK_LINES", 2)
    monkeypatch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
    ids = []
    for session in range(2):
        with create_run(path, join=session > 0) as writer:
            ids += [write(writer, group=str(session), index=index) for index in range(6)]
        with open_run(path) as run:
            assert run.sql("select count(*) from rollouts").fetchall() == [(len(ids),)]
    for _ in range(2):
        with RunReader(path) as reader:
            assert [reader.id_index.contains(one) for one in ids] == [True] * len(ids)
        compact(path)


@pytest.mark.parametrize("ends_at_once", [True, False])
def test_a_process_that_does_not_start_costs_only_time(long_run, monkeypatch, ends_at_once):
    """The process that runs the query reads the lines itself."""
    alone = answers(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    if ends_at_once:
        monkeypatch.setattr(worker_process, "_START", "raise SystemExit(1)")
    else:
        monkeypatch.setattr(worker_process.subprocess, "Popen", _fail_to_fork)
    assert answers(long_run) == alone


def _fail_to_fork(*_, **__):
    raise BlockingIOError("Resource temporarily unavailable")


def test_two_readers_do_not_make_the_same_parts(long_run, monkeypatch):
    """While one reader builds the parts of a run, another waits for them and uses them."""
    everything = answers(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    monkeypatch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(answers, long_run) for _ in range(2)]
        assert [one.result()[0] for one in both] == [everything[0], everything[0]]
    cached = duckdb.sql(f"select count(*) from '{long_run}/cache/part-*/rollouts.parquet'").fetchall()
    assert cached == [(len(everything[0][0]),)]


@given(st.lists(st.integers(0, 20)), st.integers(1, 20))
def test_batches_are_as_large_as_allowed(sizes, most):
    """Batches keep the order of the items, none is empty or too large, and no two neighbours would fit into one."""
    batches = part_writer.in_batches(sizes, float, most)
    assert [size for batch in batches for size in batch] == sizes
    assert all(len(batch) == 1 or sum(batch) <= most for batch in batches)
    assert all(sum(batch) + after[0] > most for batch, after in itertools.pairwise(batches))


def test_damaged_parts_of_another_process_are_not_used(long_run, tmp_path, monkeypatch):
    """If one file of what it made is damaged, no line is read twice, and none is lost."""
    everything = answers(long_run)
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    copy = shutil.copytree(long_run, tmp_path / "copy")
    assert answers(copy) == everything
    for file in copy.glob("cache/part-*/rollouts.parquet"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    lock = FileLock(long_run / "cache" / ".rollouts-texts.lock")
    assert part_processes.acquire_lock(lock)
    waits = []

    def make_parts(_):
        """What the other process does while this one waits."""
        if not waits:
            for part in copy.glob("cache/part-*"):
                shutil.copytree(part, long_run / "cache" / part.name)
            lock.release()
        waits.append(1)

    monkeypatch.setattr(run_tables, "time", SimpleNamespace(sleep=make_parts))
    assert answers(long_run) == everything
    assert waits


def _kill_itself(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("column", "table"), [("env_args", "rollouts"), ("extra", "steps")])
def test_escaped_surrogates(path, monkeypatch, column, table):
    """A surrogate pair in free-form text is one character; half of a pair costs its line only, in all tables."""
    with create_run(path) as writer:
        for index in range(4):
            field = {column: {"k": f"MARK{index}"}}
            write(writer, index=index, **(field if table == "rollouts" else {"step": field}))
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    for index, text in ((1, rb"\ud83d\ude00"), (2, rb"\ud83d")):
        lines[index] = add_checksum(lines[index].replace(b"MARK", text).rpartition(b',"crc":"')[0] + b"}")
    segment.write_bytes(b"".join(lines))
    monkeypatch.setattr(part_writer, "_CHUNK_LINES", 100)
    with open_run(path) as run:
        source = "rollouts join steps on steps.rollout = rollouts.id"
        rows = run.sql(f"""select "index", {table}.{column} ->> 'k' from {source} order by 1""").fetchall()
        assert rows == [(0, "MARK0"), (1, "\N{GRINNING FACE}1"), (3, "MARK3")]
        assert [error.offset for error in run.problems] == [len(lines[0]) + len(lines[1])]


@pytest.mark.slow
def test_a_column_may_have_more_than_two_gigabytes():
    """Steps that share a long response repeat its text, so that a few lines can make a column of any size."""
    table, text = ArrowTable({"text": "VARCHAR", "json": "JSON"}), "x" * 2**20
    for _ in range(35):
        table.append({"text": [text] * 64, "json": [b"{}"] * 64})
    with duckdb.connect() as connection, table.registered(connection) as source:
        assert connection.execute(f"select sum(length(text)) from {source}").fetchall() == [(35 * 64 * 2**20,)]


def test_a_null_in_place_of_a_free_form_value_is_null(path):
    """Lines of other writers may have one; a value beside it is long enough that its nesting is looked at."""
    with create_run(path) as writer:
        for text in ("MARK", "long " * 100):
            write(writer, env_args={"k": text}, step={"extra": {"k": text}})
    [segment] = (path / "rollouts").iterdir()
    first, second = segment.read_bytes().splitlines(keepends=True)
    first = add_checksum(first.replace(b'{"k":"MARK"}', b"null").rpartition(b',"crc":"')[0] + b"}")
    segment.write_bytes(first + second)
    with open_run(path) as run:
        for table, column in (("rollouts", "env_args"), ("steps", "extra")):
            assert run.sql(f"select {column} is null from {table} order by 1").fetchall() == [(False,), (True,)]
        assert not run.problems


@pytest.mark.parametrize("bad", [b'"\xff"', b"[" * 200 + b"]" * 200], ids=["not UTF-8", "deep"])
def test_a_free_form_value_that_cannot_be_a_row_costs_its_line(path, monkeypatch, bad):
    """The lines before and after it, which become columns together with it, have rows; it is reported."""
    with create_run(path) as writer:
        for index in range(9):
            write(writer, index=index, step={"extra": {"k": "MARK"}})
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[6] = add_checksum(lines[6].replace(b'"MARK"', bad).rpartition(b',"crc":"')[0] + b"}")
    segment.write_bytes(b"".join(lines))
    with open_run(path) as run:
        rows = run.sql(
            """select "index" from rollouts join steps on steps.rollout = rollouts.id order by 1"""
        ).fetchall()
        assert rows == [(index,) for index in range(9) if index != 6]
        assert [error.offset for error in run.problems] == [len(b"".join(lines[:6]))]


@pytest.mark.parametrize("text", [r"\ud83d", r"\\ud83d", "\\" * 3 + r"uDC00"])
def test_text_that_looks_like_an_escaped_surrogate(path, text):
    """Free-form text with a backslash and digits stays text, and breaks no table."""
    with create_run(path) as writer:
        write(writer, env_args={"k": text})
    with open_run(path) as run:
        assert run.sql("select env_args ->> 'k' from rollouts").fetchall() == [(text,)]
        assert not run.problems


def test_no_text_is_stored_twice(path):
    """A response is stored with its step, and is in `messages` once, although two steps share it."""
    with create_run(path) as writer:
        write(writer)
    [segment] = (path / "rollouts").iterdir()
    line = json.loads(segment.read_bytes())
    del line["crc"]
    line["steps"].append(line["steps"][0] | {"step": 1})
    line["steps"].append(line["steps"][0] | {"step": 2, "response": {"role": "assistant", "content": "elsewhere"}})
    line["messages"][1] |= {"content": "once", "reasoning": "why"}
    segment.write_bytes(add_checksum(json.dumps(line).encode()))
    with open_run(path) as run:
        said = run.sql("select position, step, role, content, reasoning from messages order by all").fetchall()
        assert said[1:] == [(1, 1, "assistant", "once", "why")]
        assert (said[0][:3], len(said)) == ((0, None, "user"), 2)
        responses = run.sql("select step, response from steps order by all").fetchall()
        assert responses == [(0, "once"), (1, "once"), (2, "elsewhere")]
    assert compact(path).rows["messages"] == 2
    [stored] = duckdb.sql(f"select content from '{path}/cache/part-*/other_messages.parquet'").fetchall()
    assert stored == (said[0][3],)


READER = """
import sys
from rolltrace.query import part_processes, run_tables
part_processes.BATCH_BYTES, run_tables.MIN_CACHED_BYTES = 9000, 1
from rolltrace.query.compact import compact
from rolltrace.store.parts import Part, PartInfo, RowStats, find_parts, publish_part
from rolltrace.query.run import open_run
print("ready", flush=True)
if sys.argv[2] == "compact":
    compact(sys.argv[1])
else:
    with open_run(sys.argv[1]) as run:
        run.sql("select count(*) from messages").fetchall()
"""


def kill_readers(path, rng):
    """Starts two readers and a compaction, and kills each at a random moment."""
    started = [
        subprocess.Popen([sys.executable, "-c", READER, str(path), action], stdout=subprocess.PIPE)
        for action in ("read", "read", "compact")
    ]
    for process in started:
        process.stdout.readline()
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 0.7))
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_readers_that_are_killed_leave_nothing_wrong(long_run, rounds):
    """Whenever processes that build parts are killed, what they leave is ignored or right."""
    everything = answers(long_run)[0]
    rng = random.Random(rounds)
    for _ in range(rounds):
        kill_readers(long_run, rng)
        assert answers(long_run)[0] == everything
        if rng.random() < 0.3:
            shutil.rmtree(long_run / "cache", ignore_errors=True)
    compact(long_run)
    assert answers(long_run)[0] == everything


def test_a_reader_that_waited_and_is_closed_keeps_no_lock(long_run, monkeypatch, tmp_path):
    """A reader that waited for another's parts builds none itself, and after it is closed others can lock."""
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    other = FileLock(long_run / "cache" / ".rollouts.lock")
    assert part_processes.acquire_lock(other)
    files = LocalFiles(long_run)
    waiting, segments = (
        part_processes.PartProcesses(files, ("rollouts",), tmp_path),
        existing_segments(files, "rollouts"),
    )
    assert not waiting.start(segments, {})
    other.release()
    assert not waiting.start(segments, {}), "the caller looks once more for parts of the other process"
    assert waiting.pending
    waiting.close()
    assert other.acquire()
    other.release()


def test_parts_of_the_same_lines_are_published_together(path, monkeypatch):
    """Parts are stored together also if only the texts are large, so that no other process reads the lines again."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 30)
    with create_run(path) as writer:
        for index in range(10):
            with writer.rollout(env="e", task="t", group="g", index=index) as rollout:
                for turn in range(5):
                    rollout.step(f"question {turn}", f"answer {turn}", 1.0)
    with open_run(path) as run:
        assert run.sql("select count(*) from rollouts join steps on rollout = id").fetchall() == [(50,)]
        rollouts, texts = (find_parts(path, run.info.id, kind) for kind in ("rollouts", "texts"))
    assert [part.info.ranges for part in rollouts] == [part.info.ranges for part in texts] != []


def test_a_part_that_cannot_be_published_stays_private(tmp_path, monkeypatch):
    """Nothing is left of a copy to a cache on another file system whose disk is full."""
    part = Part(tmp_path / "part", PartInfo(kind="rollouts", ranges={}, stats=RowStats(rows={"rollouts": 1})))
    part.path.mkdir()
    part.table("rollouts").path.write_bytes(b"rows")
    cache, rename, copytree = tmp_path / "cache", Path.rename, shutil.copytree

    def rename_nearby(path, target):
        if path == part.path:
            raise OSError(errno.EXDEV, "another file system")
        return rename(path, target)

    def copy_until_full(*paths):
        copytree(*paths)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "rename", rename_nearby)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", copy_until_full)
        with pytest.raises(OSError, match="full"):
            publish_part(part, cache, "run")
    assert part.table("rollouts").is_intact
    assert list(cache.iterdir()) == []
    published = publish_part(part, cache, "run")
    assert list(cache.iterdir()) == [published.path]
    assert published.table("rollouts").is_intact


def test_a_reader_that_timed_out_keeps_no_lock(long_run, monkeypatch):
    """Others can build parts once the processes of a timed-out reader have ended."""
    everything = answers(long_run)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 9000)
    with open_run(long_run) as run:
        with pytest.raises(QueryTimeoutError):
            run.sql("select count(*) from rollouts", timeout=0.05)
        with ThreadPoolExecutor() as threads:
            assert threads.submit(answers, long_run).result(timeout=120) == everything


def test_a_run_that_is_held_survives_the_loss_of_its_cache(long_run, monkeypatch):
    """The same lines are read again after the cache is lost, and no later ones."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    with open_run(long_run) as run:
        run.hold()
        [before] = run.sql("select count(*), sum(reward) from rollouts").fetchall()
        with create_run(long_run, join=True) as writer:
            write(writer, group="later")
        shutil.rmtree(long_run / "cache")
        assert run.sql("select count(*), sum(reward) from rollouts").fetchall() == [before]
        assert run.sql("select count(distinct rollout) from steps").fetchall() == [before[:1]]
