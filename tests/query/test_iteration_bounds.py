"""A statement about some iterations reads only the files that hold them."""

import math

import duckdb
import pytest

from answers import score, write
from file_reads import FileReads
from rolltrace.query import run_tables
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.sql_check import check_statement
from rolltrace.store.create import create_run

pytestmark = pytest.mark.core

ITERATIONS = 4


@pytest.fixture
def parts(path, monkeypatch):
    """The folders of a run's parts, by iteration: each iteration was stored when it ended."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    by_iteration = []
    with create_run(path) as writer, open_run(path) as run:
        for iteration in range(ITERATIONS):
            for index in range(3):
                one = write(writer, iteration=iteration, index=index, reward=float(iteration))
            score(writer, one, 9.0)
            writer.flush()
            run.sql("select count(*) from rollouts, steps").fetchall()
            known = {part for parts in by_iteration for part in parts}
            by_iteration.append({part for part in (path / "cache").glob("part-[rt]*") if part not in known})
    return by_iteration


QUESTIONS = [
    ("select count(*), sum(reward) from rollouts where iteration = 2", None),
    ("select count(*), sum(reward) from every_rollout r where r.iteration in (2, 2) and reward >= 0", None),
    ("select sum(size), sum(mean * n) from groups where iteration = ?", [2]),
    ("select count(*), sum(reward) * 13 / 3 from steps where iteration between $at and 2", {"at": 2}),
]


def test_other_files_are_not_read(path, parts, monkeypatch):
    """Files of other iterations are neither verified nor opened: the answer is the same without them."""
    for file in (file for folder in {*parts[0], *parts[1], *parts[3]} for file in folder.glob("*.parquet")):
        file.unlink()
    before = sorted((path / "cache").rglob("*"))
    reads = FileReads(monkeypatch)
    for sql, parameters in QUESTIONS:
        with open_run(path) as run:
            assert run.sql(sql, parameters).fetchall() == [(3, 13.0)], sql
    opened = [file for file in reads.opened(path / "cache") if file.suffix == ".parquet"]
    assert {file.parent for file in opened if "scores" not in file.name} == parts[2]
    assert reads.bytes_read(path / "rollouts") == 0
    assert sorted((path / "cache").rglob("*")) == before, "the other parts were not found to be damaged"


def test_rollouts_of_an_iteration_are_read_alone(path, parts):
    """Reading records by a condition on the iteration does not open files of other iterations, either."""
    for file in (file for folder in {*parts[0], *parts[1], *parts[3]} for file in folder.glob("*.parquet")):
        file.unlink()
    with open_run(path) as run:
        assert [rollout.index for rollout in run.rollouts(where="iteration = 2")] == [0, 1, 2]
        assert [rollout.index for rollout in run.rollouts("iteration = 2", order_by='"index" desc')] == [2, 1, 0]
        assert [group.size for group in run.groups("iteration = 2")] == [3]


ALL = None
INFINITE = math.inf
STATEMENTS = {
    "from rollouts where iteration = 2": (2, 2),
    "from rollouts as R where r.iteration = 2 and reward > 0": (2, 2),
    "from rollouts where iteration > 0 and (iteration <= 2 and iteration in (0, 5))": (0, 2),
    "from steps where 1 < iteration": (1, INFINITE),
    "from groups where iteration between 1 and 2 order by size limit 1": (1, 2),
    "select count(*) from (select reward from every_rollout where iteration = -1)": (-1, -1),
    "explain select 1 from rollouts where iteration = 2": (2, 2),
    "select 2 as iteration, count(*) from rollouts where iteration = 1 group by 1 having iteration = 2": (1, 1),
    "from rollouts": ALL,
    "from rollouts where iteration = 2 or reward = 0": ALL,
    "from rollouts where not (iteration = 2)": ALL,
    "from rollouts where iteration <> 2": ALL,
    "from rollouts where iteration = 2.5": ALL,
    "from rollouts where iteration = '2'": ALL,
    "from rollouts where iteration + 1 = 2": ALL,
    "from rollouts where iteration in (1, seed)": ALL,
    "from rollouts where metrics['iteration'] = 2": ALL,
    "from rollouts where iteration = (select min(iteration) from rollouts)": ALL,
    "with a as (from rollouts where iteration = 1) select count(*) from a where iteration <= 2": ALL,
    "from rollouts a join steps b on a.id = b.rollout where a.iteration = 1": ALL,
    "select (select count(*) from rollouts where x.iteration = 2) from (values (2)) x(iteration)": ALL,
    "from rollouts r(iteration, id) where iteration = 2": ALL,
    "from (select iteration - 1 as iteration from rollouts) where iteration = 2": ALL,
    "from calls where iteration = 2": ALL,
    "from scores where iteration = 2": ALL,
}


def test_bounds_are_those_of_every_row():
    """Bounds come only from conditions that each row of the only table must meet."""
    connection = duckdb.connect()
    for sql, bounds in STATEMENTS.items():
        assert check_statement(sql, connection).iterations == bounds, sql


def test_merged_parts_have_the_iterations_of_all(path, parts):
    """A compacted run answers for each iteration, and for one that it does not have."""
    compact(path)
    for iteration, count in [(0, 3), (3, 3), (4, 0)]:
        with open_run(path) as run:
            assert run.sql(f"select count(*) from rollouts where iteration = {iteration}").fetchall() == [(count,)]
