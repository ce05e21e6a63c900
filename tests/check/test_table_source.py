"""The tables of a check: a large run is read in batches, with the same findings as from tables in memory."""

from contextlib import closing

import pytest

from rolltrace.check import check_run as check_module
from rolltrace.check import table_source
from rolltrace.check.check_run import check_run
from rolltrace.check.table_source import TableSource
from rolltrace.query.copied_tables import CopiedTables
from rolltrace.query.run import open_run

_ONE_BY_ONE = "select id, iteration from rollouts order by iteration, id"
_COUNT = "select count(*) as n from rollouts"


@pytest.fixture
def faulty(seeded):
    """A run with faults of several kinds, among them one rollout that was played again."""
    first, second = (seeded.records(iteration=number) for number in (1, 2))
    seeded.change(first[3:4], lambda one: one.update(attempt=1))
    seeded.change(first[2:3], lambda one: one.update(index=one["index"] + 1))
    seeded.change(second[:3], lambda one: one.update(task="another"))
    seeded.change(second[4:6], lambda one: one["messages"][0].update(content="another question"))
    seeded.score({one["id"]: number % 3 for number, one in enumerate([*first, *second])}, "advantage")
    return seeded.path


def _findings(path):
    return {
        one.audit: (one.count, one.findings, one.note, one.error) for one in check_run(path, skip=["integrity"]).results
    }


@pytest.mark.parametrize("rollouts", [pytest.param(1, marks=pytest.mark.slow), 10, 10_000])
def test_batches_have_the_findings_of_the_whole_run(faulty, monkeypatch, rollouts):
    """Each audit finds the same, with the same rollouts, whether all is in memory, or a few iterations at a time."""
    expected = _findings(faulty)
    assert sum(count > 0 for count, *_ in expected.values()) >= 3
    monkeypatch.setattr(check_module, "_MAX_COPIED", 0)
    monkeypatch.setattr(table_source, "BATCH_ROLLOUTS", rollouts)
    assert _findings(faulty) == expected


def test_each_rollout_is_in_one_batch(faulty, monkeypatch):
    """Batches have whole iterations; parts of a large iteration have each of its rollouts once."""
    monkeypatch.setattr(table_source, "BATCH_ROLLOUTS", 3)
    with open_run(faulty) as run, closing(TableSource(run, copies=False)) as source:
        everything = [*source.rows(_ONE_BY_ONE)]
        assert [*source.rows_in_batches(_ONE_BY_ONE)] == everything
        assert [*source.rows_in_batches(_ONE_BY_ONE, splits_iterations=True)] == everything
        sizes = [row["n"] for row in source.rows_in_batches(_COUNT)]
        parts = [row["n"] for row in source.rows_in_batches(_COUNT, splits_iterations=True)]
    assert sum(sizes) == sum(parts) == len(everything)
    assert max(parts) <= 3 < min(sizes)


def test_the_same_statement_runs_once(faulty, monkeypatch):
    """Audits that ask the same share the rows, unless there are many."""
    statements = []
    run_it = CopiedTables.rows
    monkeypatch.setattr(CopiedTables, "rows", lambda self, sql: statements.append(sql) or run_it(self, sql))
    with open_run(faulty) as run, closing(TableSource(run)) as source:
        assert [*source.rows(_COUNT)] == [*source.rows(_COUNT)]
        assert statements == [_COUNT]
        monkeypatch.setattr(table_source, "_MAX_KEPT_ROWS", 2)
        assert [*source.rows(_ONE_BY_ONE)] == [*source.rows(_ONE_BY_ONE)]
        assert statements == [_COUNT, _ONE_BY_ONE, _ONE_BY_ONE]
