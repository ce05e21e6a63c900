"""Hostile statements, a damaged cache and careless copies cannot change the tables."""

import random
import shutil
import subprocess
import sys

import pytest

from rolltrace import open_run
from rolltrace.errors import InputError, RolltraceError
from rolltrace.query.compact import compact
from rolltrace.store.create import create_run
from rolltrace.store.layout import read_info
from rolltrace.store.parts import find_parts
from rolltrace.store.run_files import LocalFiles

NUMBERS = "select count(*), sum(reward), min(id), max(task), sum(seconds) >= 0 from rollouts"


def record(path, count=60, **options):
    """A run with rewards 0, 1, 2 and so on."""
    with create_run(path, **options) as run:
        for index in range(count):
            with run.rollout(env="e", task=f"t{index}", group="g", index=index) as recorder:
                recorder.step(prompt=f"question {index}", response="answer", reward=float(index))
    return path


def test_damage_in_the_cache_never_gives_other_numbers(tmp_path):
    """Any flipped bit of a table's file is noticed: the answer is that of the lines, also after compacting."""
    run = record(tmp_path / "run")
    compact(run)
    [part] = (run / "cache").glob("part-*/rollouts.parquet")
    shutil.copytree(part.parent, tmp_path / "sound")
    sound = part.read_bytes()
    with open_run(run) as opened:
        right = opened.sql(NUMBERS).fetchall()
    rng = random.Random(0)
    for number in range(40):
        damaged = bytearray(sound)
        damaged[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
        for old in (run / "cache").glob("part-*"):
            shutil.rmtree(old)
        shutil.copytree(tmp_path / "sound", part.parent)
        part.write_bytes(damaged)
        assert not any(
            found.table("rollouts").is_intact for found in find_parts(run, read_info(LocalFiles(run)).id, "rollouts")
        )
        if number % 4 == 0:
            compact(run)
        with open_run(run) as opened:
            assert opened.sql(NUMBERS).fetchall() == right


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_now_is_in_utc(tmp_path, zone):
    """Times are in UTC, also those that the engine computes."""
    run = record(tmp_path / "run", 3)
    sql = (
        "select count(*) filter (started_at > now()), count(*) filter (started_at > now() - interval 1 hour) "
        "from rollouts"
    )
    code = f"import rolltrace; print(rolltrace.open_run({str(run)!r}).sql({sql!r}).fetchall())"
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"TZ": zone, "PATH": ""}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[(0, 3)]\n"


def test_a_time_with_a_zone_is_a_clear_error(tmp_path, monkeypatch):
    """A type that DuckDB returns only with another package gives an error that says to cast, not a traceback."""
    monkeypatch.setitem(sys.modules, "pytz", None)
    with open_run(record(tmp_path / "run", 1)) as opened:
        with pytest.raises(InputError, match="::timestamp"):
            opened.sql("select now() as moment").fetchall()
        assert opened.sql("select now()::timestamp is not null").fetchall() == [(True,)]


def test_links_and_copies_count_once(tmp_path):
    """A link to a run beside it is skipped, and a copy is refused by name."""
    record(tmp_path / "runs" / "a", 5)
    (tmp_path / "runs" / "latest").symlink_to("a")
    with open_run(tmp_path / "runs") as opened:
        assert opened.sql("select count(*) from rollouts").fetchall() == [(5,)]
    shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / "backup")
    with pytest.raises(InputError, match="copies of the same run"):
        open_run(tmp_path / "runs")


@pytest.mark.parametrize(
    "sql",
    [
        "select b.sql from (with duckdb_views as (select 1 x) select * from duckdb_views) a, duckdb_views b",
        "select * from (with sqlite_master as (select 1 x) select * from sqlite_master) a, sqlite_master b",
        "select * from (with pragma_database_list as (select 1 x) from pragma_database_list), pragma_database_list",
        "select * from (with _places as (select 1 x) select * from _places) a, _places b",
        "select * from (with _score_places as (select 1 x) select * from _score_places) a, _score_places b",
        "select json_serialize_plan('select current_setting(''temp_directory'') as x', optimize := true)",
        "select json_serialize_sql('select 1')",
        "select json_deserialize_sql(json_serialize_sql('select 1'))",
    ],
)
def test_no_name_of_the_engine_can_be_shadowed(tmp_path, sql):
    """A WITH query cannot shadow a name of the engine for use elsewhere, and no text is planned as SQL."""
    with (
        open_run(record(tmp_path / "run", 1)) as opened,
        pytest.raises(RolltraceError, match=r"WITH query|not allowed"),
    ):
        opened.sql(sql)


def test_compactions_at_once_all_succeed(tmp_path):
    """Three concurrent compactions of a run with new lines succeed, and the numbers are right."""
    run = record(tmp_path / "run", 30)
    compact(run)
    record(run, 30, join=True)
    words = [sys.executable, "-m", "rolltrace", "compact", str(run)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    ended = [(process.communicate()[1], process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0, 0], ended
    with open_run(run) as opened:
        assert opened.sql("select count(*) from every_rollout").fetchall() == [(60,)]
