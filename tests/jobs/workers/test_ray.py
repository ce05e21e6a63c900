"""Playing in a Ray cluster of several nodes."""

import sys
import time

import pytest
from click.testing import CliRunner

import rolltrace
from rolltrace.check.check_run import check_run
from rolltrace.cli.run import run as run_command
from rolltrace.errors import InputError
from rolltrace.jobs.executors import ExecutorSettings
from rolltrace.query.run_state import RunState, run_state
from waiting import until
from worker_envs import Sums

pytestmark = [
    pytest.mark.core,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own processes and sockets
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose first node has no processor for actors, and three nodes that have one each."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.extra_nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=cluster.address)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def ray_processors():
    """The processors that no actor has."""
    return sys.modules["ray"].available_resources().get("CPU", 0)


def table(path):
    """The rollouts that a run shows, without ids, times and sessions."""
    sql = "select * exclude (id, run, session, started_at, ended_at, seconds) from rollouts order by all"
    with rolltrace.open_run(path) as run:
        return [str(row) for row in run.sql(sql)]


def test_without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    """The command needs the extra only for --ray, and no run is made."""
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(run_command, ["arithmetic", "--out", str(tmp_path / "run"), "--ray"])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "Expected the package ray for --ray (ray=): pip install 'rolltrace[ray]'."
    assert not (tmp_path / "run").exists()
    assert not ExecutorSettings().uses_workers


def test_options_of_ray_need_ray(tmp_path):
    """They are refused without it."""
    with pytest.raises(InputError, match="Expected ray_options only with ray="):
        rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", ray_options={"num_cpus": 1})


def test_an_env_that_kills_its_actor_is_a_recorded_failure(tmp_path, cluster):
    """As with worker processes: the other groups are played, and this one is recorded as failed."""
    tasks = Sums(str(tmp_path), "3:kill")
    summary = rolltrace.play(tasks, "scripted:noisy", out=tmp_path / "run", ray=True, workers=2, groups=8)
    assert (summary.workers_lost, summary.statuses) == (3, {"ok": 28, "error": 4})
    until(lambda: ray_processors() == 3)  # the actors have ended


def test_a_callback_that_raises_cancels_what_actors_play(tmp_path, cluster):
    """Rollouts in flight are recorded as cancelled, also where an env blocks, and the sessions are closed."""

    def stop(report):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rolltrace.play(
            Sums(str(tmp_path), "3:wait"), "scripted:noisy", out=tmp_path / "run", ray=True, groups=8, on_group=stop
        )
    with rolltrace.open_run(tmp_path / "run") as run:
        assert ("cancelled", "3") in list(run.sql('select distinct status, "group" from rollouts'))
        assert all(ledger.closed and not ledger.in_flight for ledger in run.ledgers().values())


def test_options_are_those_of_ray(tmp_path, cluster):
    """What Ray does not know is refused in one sentence, and no run is made."""
    with pytest.raises(InputError, match="Expected options of a Ray actor"):
        rolltrace.play(
            "arithmetic", "scripted:noisy", out=tmp_path / "run", ray=True, ray_options={"number_of_cpus": 1}
        )
    assert not (tmp_path / "run").exists()
    options = {"num_cpus": 0.5, "scheduling_strategy": "DEFAULT"}
    assert rolltrace.play(
        "arithmetic", "scripted:noisy", out=tmp_path / "run", ray=True, ray_options=options, workers=4, concurrency=4
    ).succeeded


def test_actors_without_room_are_not_waited_for(tmp_path, cluster):
    """Of more workers than fit, the others play; the end does not wait for those that never started."""
    started = time.monotonic()
    summary = rolltrace.play(
        "arithmetic", "scripted:noisy", out=tmp_path / "run", ray=True, workers=9, groups=4, iterations=2
    )
    assert summary.succeeded
    assert time.monotonic() - started < 50  # 10 s for the start, once, where closing would take 60 s


def test_a_node_that_is_killed_costs_nothing(tmp_path, cluster):
    """2,000 groups, one of three nodes killed half-way: every group once, the ledger adds up, the same rewards."""
    plan = {"groups": 2000, "group_size": 2, "seed": 3}
    finished = []

    def count(report):
        finished.append(report.group)
        if len(finished) == 1000:
            cluster.remove_node(cluster.extra_nodes[0], allow_graceful=False)

    summary = rolltrace.play(
        "arithmetic", "scripted:noisy", out=tmp_path / "run", ray=True, workers=3, on_group=count, **plan
    )
    alone = rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "alone", **plan)
    assert len(finished) == len(set(finished)) == 2000
    assert summary.workers_lost == 1
    assert (summary.rollouts, summary.rewarded, summary.succeeded) == (4000, 4000, True)
    assert summary.mean_reward == pytest.approx(alone.mean_reward)
    assert table(tmp_path / "run") == table(tmp_path / "alone")
    with rolltrace.open_run(tmp_path / "run") as run:
        ledgers = run.ledgers().values()
        assert list(run.sql("select count(*), count(*) filter (collides) from rollouts")) == [(4000, 0)]
    assert all(ledger.is_balanced for ledger in ledgers)
    assert sum(ledger.recorded for ledger in ledgers) >= 4000
    assert run_state(ledgers, 4000, 4000) is RunState.COMPLETE
    assert check_run(tmp_path / "run").ok
