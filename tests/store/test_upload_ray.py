"""Actors of a Ray cluster that record into an object store, each node with its own spool."""

import pytest

import rolltrace
from object_store import BUCKET
from ray_cluster import IGNORED_RAY_WARNINGS, free_processors, ray_cluster
from rollout_table import table
from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError
from rolltrace.query.run_state import RunState, run_state
from rolltrace.store.create import create_run
from waiting import until
from worker_envs import Sums

pytestmark = [pytest.mark.core, *IGNORED_RAY_WARNINGS]


@pytest.fixture(scope="module")
def cluster(s3_server, tmp_path_factory):
    """Two nodes with the settings of the store, each with its own folder, as on two machines."""
    settings = {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server.endpoint,
    }  # fmt: skip
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    with ray_cluster([{**settings, "XDG_CACHE_HOME": str(folder)} for folder in folders]) as cluster:
        cluster.folders = folders
        yield cluster


def require_complete(address, alone, rollouts):
    """Asserts that every rollout is there once, as in one process, and that everything is counted."""
    assert table(address) == table(alone)
    with rolltrace.open_run(address) as run:
        ledgers = run.ledgers().values()
        assert list(run.sql("select count(*), count(*) filter (collides) from rollouts")) == [(rollouts, 0)]
        [(lines,)] = run.sql("select count(*) from every_rollout")
    assert all(ledger.is_balanced for ledger in ledgers)
    assert sum(ledger.recorded - ledger.not_uploaded for ledger in ledgers) <= lines  # a lost session may count more
    assert run_state(ledgers, rollouts, rollouts) is RunState.COMPLETE
    assert check_run(address).ok


def test_groups_of_an_actor_that_dies_are_in_the_store_once(store, cluster, tmp_path):
    """Each actor writes its own session to the store; groups that are played again supersede the lost ones."""
    address = f"s3://{BUCKET}/ray/killed"
    plan = {"groups": 20, "concurrency": 16}
    rolltrace.play(Sums(str(tmp_path)), "scripted:noisy", out=tmp_path / "alone", **plan)
    tasks = Sums(str(tmp_path), "3:kill once")
    summary = rolltrace.play(tasks, "scripted:noisy", out=address, ray=True, workers=2, **plan)
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (1, 80, True)
    require_complete(address, tmp_path / "alone", 80)
    with rolltrace.open_run(address) as run:
        assert len(run.ledgers()) >= 3  # this process, and the actors
    until(lambda: free_processors() == 2)


def test_nodes_without_settings_give_a_clear_error(store, cluster):
    """A worker on a node that cannot reach the object store gives one clear error."""
    address = f"s3://{BUCKET}/ray/denied"
    options = {"runtime_env": {"env_vars": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}}}
    with pytest.raises(InputError, match=r"A worker cannot read the run .* every machine has to see it"):
        rolltrace.play("arithmetic", "scripted:noisy", out=address, ray=True, workers=1, ray_options=options)
    until(lambda: free_processors() == 2)


def test_a_node_that_is_lost_and_returns_costs_nothing(store, cluster, tmp_path, monkeypatch):
    """Rollouts that the node had not uploaded are played again, and still count when it uploads its spool later."""
    address = f"s3://{BUCKET}/ray/lost"
    plan = {"groups": 30, "concurrency": 8}
    finished = []

    def remove_node(report):
        finished.append(report.group)
        if len(finished) == 8:
            cluster.remove_node(cluster.extra_nodes[0], allow_graceful=False)

    tasks = Sums(str(tmp_path), others="slow")
    rolltrace.play(tasks, "scripted:noisy", out=tmp_path / "alone", **plan)
    summary = rolltrace.play(tasks, "scripted:noisy", out=address, ray=True, workers=2, on_group=remove_node, **plan)
    assert len(set(finished)) == len(finished) == 30
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (1, 120, True)
    require_complete(address, tmp_path / "alone", 120)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cluster.folders[0]))
    create_run(address, join=True, continues=()).close()
    assert not list(cluster.folders[0].rglob(f"{summary.run}-*/rollouts/*"))
    require_complete(address, tmp_path / "alone", 120)
