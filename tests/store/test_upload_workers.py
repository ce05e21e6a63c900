"""Workers that record into an object store."""

import pytest

import rolltrace
from object_store import BUCKET
from rollout_table import table
from worker_envs import Sums

pytestmark = pytest.mark.core


def test_groups_of_a_worker_that_dies_are_in_the_store_once(store, tmp_path, monkeypatch):
    """Rollouts that the lost worker had uploaded, or left in its spool, are superseded."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"s3://{BUCKET}/workers"
    plan = {"groups": 20, "concurrency": 16}
    rolltrace.play(Sums(str(tmp_path)), "scripted:noisy", out=tmp_path / "alone", **plan)
    summary = rolltrace.play(Sums(str(tmp_path), "3:kill once"), "scripted:noisy", out=address, workers=2, **plan)
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (1, 80, True)
    assert table(address) == table(tmp_path / "alone")
    with rolltrace.open_run(address) as run:
        assert list(run.sql("select count(*), count(*) filter (collides) from rollouts")) == [(80, 0)]
        assert all(ledger.is_balanced for ledger in run.ledgers().values())
