"""Playing in a Ray cluster of several nodes."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import rolltrace
from ray_cluster import IGNORED_RAY_WARNINGS, free_processors, ray_cluster
from rollout_table import table
from rolltrace.check.check_run import check_run
from rolltrace.cli.app import cli
from rolltrace.cli.run import run as run_command
from rolltrace.errors import InputError
from rolltrace.jobs.executors import ExecutorSettings
from rolltrace.jobs.workers import ray_worker
from rolltrace.jobs.workers.ray_worker import default_workers
from rolltrace.jobs.workers.reports import decode_events
from rolltrace.query.run_state import RunState, run_state
from waiting import is_running, until
from worker_envs import Sums

TESTS = Path(__file__).parents[2]
pytestmark = [pytest.mark.core, *IGNORED_RAY_WARNINGS]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of three nodes for actors."""
    with ray_cluster([{}, {}, {}]) as cluster:
        yield cluster


def test_without_ray_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    """The command needs the extra only for --ray, and no run is made."""
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(cli, [run_command.name, "arithmetic", "--out", str(tmp_path / "run"), "--ray"])
    assert result.exit_code == 2
    assert result.stderr == "Error: Expected the package ray for --ray (ray=): pip install 'rolltrace[ray]'.\n"
    assert not (tmp_path / "run").exists()
    assert not ExecutorSettings().uses_workers


def test_options_of_ray_need_ray(tmp_path):
    """They are refused without it."""
    with pytest.raises(InputError, match="Expected ray_options only with ray="):
        rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", ray_options={"num_cpus": 1})


@pytest.mark.parametrize(
    ("kind", "reason"), [("kill", "was lost: "), ("interrupt", "was ended by an env, for example ")]
)
def test_an_env_that_ends_its_actor_is_a_recorded_failure(tmp_path, cluster, kind, reason):
    """As with worker processes: the other groups are played, and this one is recorded as failed."""
    tasks = Sums(str(tmp_path), f"3:{kind}")
    summary = rolltrace.play(tasks, "scripted:noisy", out=tmp_path / "run", ray=True, workers=2, groups=8)
    assert (summary.workers_lost, summary.statuses) == (3, {"ok": 28, "error": 4})
    [message] = summary.errors
    assert f"3 workers died while they played this group; the last one {reason}" in message
    until(lambda: free_processors() == 3)  # the actors have ended


def test_an_actor_that_cannot_be_reached_is_killed_and_replaced(tmp_path, cluster, monkeypatch):
    """Its groups are played again by others, so it must not play on, nor hold its processor."""
    calls = itertools.count()

    def decode(data):
        if next(calls) == 4:
            raise ConnectionError("the network is down")
        return decode_events(data)

    monkeypatch.setattr(ray_worker, "decode_events", decode)
    plan = {"groups": 40, "concurrency": 8}
    summary = rolltrace.play(
        Sums(str(tmp_path), others="slow"), "scripted:noisy", out=tmp_path / "run", ray=True, workers=2, **plan
    )
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (1, 160, True)
    rolltrace.play(Sums(str(tmp_path)), "scripted:noisy", out=tmp_path / "alone", **plan)
    assert table(tmp_path / "run") == table(tmp_path / "alone")
    until(lambda: free_processors() == 3 and not any(map(is_running, pids(tmp_path) - {os.getpid()})))


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


def test_whole_rollouts_return_from_actors_if_they_are_asked_for(tmp_path, cluster):
    """They equal those of the run, with the scores of their group."""
    reports = []
    settings = {"out": tmp_path / "run", "ray": True, "workers": 2, "groups": 3, "on_group": reports.append}
    rolltrace.play("preference", "scripted:noisy", return_rollouts=True, **settings)
    members = [member for report in reports for member in report.members]
    with rolltrace.open_run(tmp_path / "run") as run:
        recorded = [run.get(member.id) for member in members]
    assert [member.rollout for member in members] == recorded
    assert [member.rollout.scores for member in members] == [rollout.scores for rollout in recorded]


@contextlib.contextmanager
def command(folder, *words):
    """A command in a process group of its own, as a shell starts it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the command would inherit that it is ignored
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "rolltrace", "run", *words], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def played_groups(path):
    """The groups of a run that were not cancelled, with the number of their rollouts."""
    sql = """select "group", count(*) from rollouts where status = 'ok' group by 1 order by 1"""
    with rolltrace.open_run(path) as run:
        assert all(ledger.is_balanced for ledger in run.ledgers().values())
        return dict(run.sql(sql).fetchall())


@pytest.mark.parametrize("own", [True, False], ids=["a cluster of its own", "a cluster that stays"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_signal_is_recorded_by_the_actors_and_the_run_resumed(tmp_path, cluster, number, code, own):
    """What was in flight is recorded as cancelled, no process is left, and --resume plays the rest."""
    ray = ("--ray=local", "--ray-option", "num_cpus=0.1") if own else (f"--ray={cluster.address}",)
    arguments = ("--arg", "folder=" + str(tmp_path), "--arg", "special=2:wait", "--groups", "6", "--out", "run")
    with command(tmp_path, "worker_envs:sums", *arguments, "--workers", "2", *ray) as process:
        until(lambda: len(list(tmp_path.glob("waits-2-*"))) == 4 or process.poll() is not None)
        assert len(processes_of_session(process.pid)) > (1 if own else 0)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # a terminal sends it to the group
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    with rolltrace.open_run(tmp_path / "run") as run:
        assert all(ledger.closed and not ledger.in_flight for ledger in run.ledgers().values())
        assert len(run.ledgers()) == 3
        assert list(run.sql("select count(*) from rollouts where status = 'cancelled' and \"group\" = '2'")) == [(4,)]
    assert played_groups(tmp_path / "run").get("2") is None
    until(lambda: not any(map(is_running, pids(tmp_path))) and not processes_of_session(process.pid))
    until(lambda: free_processors() == 3)
    (tmp_path / "go").touch()
    with command(tmp_path, "--resume", "run", f"--ray={cluster.address}", "--workers", "2") as resumed:
        _, errors = resumed.communicate(timeout=90)
    assert resumed.returncode == 0, errors
    assert played_groups(tmp_path / "run") == {str(group): 4 for group in range(6)}
    until(lambda: free_processors() == 3 and not any(map(is_running, pids(tmp_path))))


def test_a_second_signal_does_not_wait_for_envs_that_block_actors(tmp_path, cluster):
    """The actors record what is in flight even if an env blocks their event loop, and end."""
    arguments = ("--arg", f"folder={tmp_path}", "--arg", "special=2:block", "--groups", "6", "--out", "run")
    ray = (f"--ray={cluster.address}", "--workers", "2", "--concurrency", "2")
    with command(tmp_path, "worker_envs:sums", *arguments, *ray) as process:
        until(lambda: list(tmp_path.glob("waits-2-*")) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    until(lambda: free_processors() == 3 and not any(map(is_running, pids(tmp_path))))
    with rolltrace.open_run(tmp_path / "run") as run:
        assert ("cancelled",) in list(run.sql("select status from rollouts where \"group\" = '2'"))


def processes_of_session(session):
    """The processes that a command has started, with those of its own cluster."""
    stats = [stat for path in Path("/proc").glob("[0-9]*") if (stat := _stat(path))]
    return [stat[0] for stat in stats if stat[3] == str(session)]


def _stat(path):
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return []


def pids(folder):
    """The processes that played."""
    return {int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")}


def test_by_default_there_are_as_many_workers_as_fit(cluster):
    """One for each processor of the cluster, or as many as their `num_cpus` allow."""
    assert [default_workers(options) for options in ({}, {"num_cpus": 1.5}, {"num_cpus": 0.5}, {"num_cpus": 9})] == [
        3, 2, 6, 1,
    ]  # fmt: skip


PROGRAM = """
import sys, rolltrace
from worker_envs import SumGroup, Sums
class OwnGroup(SumGroup):
    env = "own"
address, folder = sys.argv[1:]
tasks = Sums(folder, builder=OwnGroup)
print(rolltrace.play(tasks, "scripted:noisy", out=folder + "/run", ray=address, workers=1, groups=2).rollouts)
"""


def test_classes_of_the_program_itself_are_played(tmp_path, cluster):
    """Actors do not import the main module of the program, so its classes are sent to them."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])}
    words = [sys.executable, "-W", "ignore", "program.py", cluster.address, str(tmp_path)]
    ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1:] == ["8"], ran.stderr


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


def test_actors_without_room_are_not_waited_for(tmp_path, cluster, caplog):
    """Of more workers than fit, the others play; the end does not wait for those that never started."""
    summary = rolltrace.play(
        "arithmetic", "scripted:noisy", out=tmp_path / "run", ray=True, workers=9, groups=4, iterations=2
    )
    assert summary.succeeded
    assert "did not close" not in caplog.text


def test_a_node_that_is_killed_costs_nothing(tmp_path, cluster):
    """2,000 groups, one of three nodes killed half-way: every group once, the ledger adds up, the same rewards."""
    plan = {"groups": 2000, "group_size": 2, "seed": 3}
    finished = []
    until(lambda: free_processors() == 3)  # the actors of other tests have ended

    def count(report):
        finished.append(report.group)
        if len(finished) == 1000:
            until(lambda: len(list((tmp_path / "run" / "ledger").iterdir())) == 4)  # ours, and those of three workers
            cluster.remove_node(cluster.extra_nodes[0], allow_graceful=False)
            until(lambda: sum(node["Alive"] for node in sys.modules["ray"].nodes()) == 3)  # or the others play the rest

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
    found, alone_found = ({one.audit for one in check_run(tmp_path / name).with_findings} for name in ("run", "alone"))
    assert found == alone_found | {"open_sessions"}  # that of the lost worker
