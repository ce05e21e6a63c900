"""The copied tables of one iteration have its rows, as the tables of the run have them."""

from contextlib import closing

import pytest

from rolltrace.check.table_source import TableSource
from rolltrace.errors import InputError
from rolltrace.query.copied_tables import COPIED_TABLES, CopiedTables
from rolltrace.query.run import open_run

OWN = "select id from rollouts where not retried and iteration = 1"
EXPECTED = {
    "rollouts": "not retried and iteration = 1",
    "groups": "iteration = 1",
    "steps": f"rollout in ({OWN})",
    "messages": f"rollout in ({OWN})",
    "scores": f"rollout in ({OWN}) or (rollout is null and iteration = 1)",
    "calls": f"rollout in ({OWN}) or (rollout is null and iteration = 1)",
}


def test_they_have_the_rows_of_the_iteration(seeded):
    """All columns are the same, also those of scores and calls that are about groups."""
    seeded.score({seeded.records(iteration=1)[0]["id"]: 0.5, seeded.records(iteration=2)[0]["id"]: 0.5}, "late")
    seeded.change(seeded.records(iteration=1)[3:4], lambda one: one.update(attempt=1))
    seeded.change(seeded.records(iteration=1)[2:3], lambda one: one.update(index=one["index"] + 1))
    assert EXPECTED.keys() == COPIED_TABLES
    with open_run(seeded.path) as run, closing(CopiedTables(run, 1)) as tables:
        assert run.sql("select count(*) from rollouts where retried and iteration = 1").fetchall() == [(1,)]
        for table, condition in EXPECTED.items():
            expected = run.sql(f"select * from {table} where {condition} order by all").fetchall()
            rows = [tuple(row.values()) for row in tables.rows(f"select * from {table} order by all")]
            assert len(rows) >= 8
            assert rows == expected, table


def test_statements_may_be_nested_and_wrong(seeded):
    """Each statement has a cursor of its own, and a wrong one has an error of this library."""
    with open_run(seeded.path) as run, closing(TableSource(run, 1)) as source:
        counts = [
            next(source.rows(f"select count(*) as n from steps where rollout = '{row['id']}'"))["n"]
            for row in source.rows("select id from rollouts limit 3")
        ]
        assert all(counts)
        with pytest.raises(InputError, match="nothing"):
            next(source.rows("select nothing from rollouts"))


def test_an_iteration_without_rollouts_has_empty_tables(seeded):
    """No error."""
    with open_run(seeded.path) as run, closing(CopiedTables(run, 99)) as tables:
        for table in COPIED_TABLES:
            assert [*tables.rows(f"from {table}")] == []
