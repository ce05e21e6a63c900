"""Regrading a run in an object store."""

import pytest

import rolltrace
from object_store import BUCKET

pytestmark = pytest.mark.core


def test_a_run_in_a_store_is_graded_where_it_is(store, tmp_path, monkeypatch):
    """The scores are written to the store, a second call finds them, and they become the rewards."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"s3://{BUCKET}/regrade"
    rolltrace.play("arithmetic", "scripted:noisy", out=address, groups=2, group_size=2)
    assert rolltrace.regrade(address, lambda rollout: 0.25).graded == 4
    first = rolltrace.regrade(address, "exact")
    again = rolltrace.regrade(address, "exact", as_reward=True)
    assert (first.graded, again.graded, again.graded_before, again.rewards) == (4, 0, 4, 4)
    with rolltrace.open_run(address) as run:
        counts = "select name, count(*) from scores where name in ('reward', 'regrade/exact@1') group by 1 order by 1"
        assert list(run.sql(counts)) == [("regrade/exact@1", 4), ("reward", 4)]
