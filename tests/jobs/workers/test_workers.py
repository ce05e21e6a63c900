"""Playing in worker processes: the same rollouts as in one process, whatever happens to a worker."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rolltrace
from rollout_table import table
from rolltrace.check.check_run import check_run
from rolltrace.errors import InputError, WorkerError
from rolltrace.jobs import executors
from rolltrace.jobs.plan import Plan
from rolltrace.jobs.workers.group_worker import GroupWorker, SentGroup, WorkerSetup
from rolltrace.jobs.workers.local_worker import LocalWorkers
from rolltrace.jobs.workers.reports import Ended, GroupReport, Started
from rolltrace.jobs.workers.worker_executor import split_concurrency
from rolltrace.query.run_state import RunState, run_state
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.trace.score import GroupKey
from waiting import is_running, until
from worker_envs import OddGroup, SumGroup, Sums

TESTS = Path(__file__).parents[2]


def play(tmp_path, special=":", out="run", builder=SumGroup, **settings):
    tasks = Sums(str(tmp_path), special, builder)
    return rolltrace.play(tasks, "scripted:noisy", out=tmp_path / out, **{"groups": 12, "workers": 2, **settings})


def require_sound(path, rollouts):
    """The run is complete, every rollout is there once, and the ledgers add up."""
    with rolltrace.open_run(path) as run:
        ledgers = run.ledgers().values()
        [(count, slots, collisions)] = run.sql(
            """select count(*), count(distinct (iteration, "group", "index")), count(*) filter (collides) from rollouts
            where not retried"""
        )
        assert (count, slots, collisions) == (rollouts, rollouts, 0)
    assert all(ledger.is_balanced for ledger in ledgers)
    assert run_state(ledgers, rollouts, rollouts) is RunState.COMPLETE
    assert check_run(path).ok


def test_workers_play_the_same_rollouts(tmp_path):
    """The same seed gives the same rollouts as in one process, over several iterations, in processes that stay."""
    reports = []
    plan = {"groups": 20, "iterations": 3, "seed": 5}
    alone = rolltrace.play("calculator", "scripted:noisy", out=tmp_path / "alone", **plan)
    summary = rolltrace.play(
        "calculator", "scripted:noisy", out=tmp_path / "run", workers=2, on_group=reports.append, **plan
    )
    assert table(tmp_path / "run") == table(tmp_path / "alone")
    require_sound(tmp_path / "run", 240)
    assert summary.mean_reward == pytest.approx(alone.mean_reward)
    assert (summary.groups, summary.rollouts, summary.statuses) == (60, 240, {"ok": 240})
    assert (summary.ledger.recorded, summary.ledger.dispatched, summary.ledger.closed) == (240, 240, True)
    assert (summary.stop_reasons, summary.succeeded) == (alone.stop_reasons, True)
    assert {type(report) for report in reports} == {GroupReport}
    with rolltrace.open_run(tmp_path / "run") as run:
        assert len(run.ledgers()) == 3  # this process, and two workers for all iterations
        assert {member.id for report in reports for member in report.members} == {
            rollout.id for rollout in run.rollouts()
        }
        assert len(list(run.sql("select distinct session from rollouts"))) == 2


def test_whole_rollouts_return_if_they_are_asked_for(tmp_path):
    """They equal those of the run, with the scores of their group; without, one sentence says how to get them."""
    reports = []
    settings = {"policy": "scripted:noisy", "workers": 2, "groups": 3, "on_group": reports.append}
    rolltrace.play("preference", out=tmp_path / "run", return_rollouts=True, **settings)
    with rolltrace.open_run(tmp_path / "run") as run:
        for member in (member for report in reports for member in report.members):
            recorded = run.get(member.id)
            assert (member.rollout, member.rollout.scores) == (recorded, recorded.scores)
            assert member.rollout.reward == member.reward
            assert member.rollout.scores
    rolltrace.play("preference", out=tmp_path / "small", **settings)
    with pytest.raises(InputError, match="Expected return_rollouts=True where workers play"):
        _ = reports[-1].members[0].rollout


def test_groups_of_a_worker_that_dies_are_played_again(tmp_path):
    """What was in flight is played again with the same attempt, supersedes what was left of it, and is counted."""
    play(tmp_path, out="alone", workers=None)
    summary = play(tmp_path, "3:kill once", concurrency=16)
    assert (summary.workers_lost, summary.rollouts, summary.statuses) == (1, 48, {"ok": 48})
    assert 1 <= summary.groups_replayed <= 8
    assert (summary.ledger.in_flight, summary.ledger.closed, summary.ledger.is_balanced) == (0, True, True)
    assert table(tmp_path / "run") == table(tmp_path / "alone")
    require_sound(tmp_path / "run", 48)
    assert summary.succeeded
    with rolltrace.open_run(tmp_path / "run") as run:
        [(superseded, attempts)] = run.sql(
            "select count(*) filter (superseded), max(attempt) from every_rollout where \"group\" = '3'"
        )
        assert (superseded, attempts) == (3, 0)  # the members that were recorded before the worker died


def test_a_group_that_kills_three_workers_is_a_recorded_failure(tmp_path):
    """It is not tried again, also when the run is resumed, and takes no other group with it."""
    reports = []
    summary = play(tmp_path, "3:kill", retries=1, on_group=reports.append, return_rollouts=True)
    assert summary.workers_lost == 3
    assert summary.statuses == {"ok": 44, "error": 4}
    [(message, count)] = summary.errors.items()
    assert "runner · WorkerError: 3 workers died while they played this group" in message
    assert (count, summary.groups_without_reward, summary.ledger.complete) == (4, 1, True)
    [members] = [report.members for report in reports if report.group == "3"]
    assert [member.rollout.error.type for member in members] == ["WorkerError"] * 4
    require_sound(tmp_path / "run", 48)
    with rolltrace.open_run(tmp_path / "run") as run:
        assert set(run.sql("select attempt, error_layer from rollouts where status = 'error'")) == {(0, "runner")}
    assert rolltrace.play(Sums(str(tmp_path)), resume=tmp_path / "run", workers=2).groups == 0


def test_groups_beside_one_that_kills_its_worker_are_played(tmp_path):
    """After two deaths each group is played alone, so that only the one that kills is recorded as failed."""
    tasks = Sums(str(tmp_path), "1:kill", others="slow")
    summary = rolltrace.play(tasks, "scripted:noisy", out=tmp_path / "run", groups=3, workers=1)
    assert (summary.workers_lost, summary.statuses) == (3, {"ok": 8, "error": 4})
    require_sound(tmp_path / "run", 12)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("interrupt", "was ended by an env, for example with KeyboardInterrupt"),
        pytest.param("kill late", "ended with code 3", marks=pytest.mark.slow),
        pytest.param("fork and kill", "was killed by signal 9", marks=pytest.mark.slow),
    ],
)
def test_a_group_that_ends_its_worker_in_an_unusual_way_is_a_recorded_failure(tmp_path, kind, reason):
    """The worker closes its session, or dies after the group has ended, or leaves a process with its connection."""
    summary = play(tmp_path, f"1:{kind}", groups=3, group_size=2, workers=1)
    assert (summary.workers_lost, summary.statuses) == (3, {"ok": 4, "error": 2})
    [message] = summary.errors
    assert message.endswith(f"while they played this group; the last one {reason}")
    require_sound(tmp_path / "run", 6)


def test_every_string_of_an_env_may_return(tmp_path):
    """A name that is no Unicode text is sent back as in one process."""
    names = {}
    for workers in (None, 1):
        reports = []
        play(tmp_path, out=f"run-{workers}", builder=OddGroup, groups=1, workers=workers, on_group=reports.append)
        names[workers] = [report.task for report in reports]
    assert names[1] == names[None] == ["\ud800"]


class DoomedWorkers(LocalWorkers):
    """Worker processes of which some are killed at their start."""

    def __init__(self, doomed):
        self.doomed = doomed
        self.workers = []

    def start(self, setup, on_event):
        self.workers.append(worker := super().start(setup, on_event))
        if self.doomed(len(self.workers)):
            worker.kill()
        return worker


def test_replacements_that_die_at_their_start_are_replaced(tmp_path, monkeypatch):
    """Where a machine with several workers is lost, the first replacements may be started on it, too."""
    kind = DoomedWorkers(lambda number: number in {4, 5, 6})
    monkeypatch.setattr(executors, "LocalWorkers", lambda: kind)

    def lose_all(report):
        if report.group == "5":
            for worker in kind.workers[:3]:
                worker.kill()

    summary = play(tmp_path, workers=3, groups=40, concurrency=12, on_group=lose_all)
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (3, 160, True)
    require_sound(tmp_path / "run", 160)


def test_a_worker_that_can_never_start_is_given_up(tmp_path, monkeypatch, caplog):
    """After three starts, while another one plays; the play does not wait for it."""
    kind = DoomedWorkers(lambda number: number != 1)
    monkeypatch.setattr(executors, "LocalWorkers", lambda: kind)
    summary = play(tmp_path)
    assert (summary.workers_lost, summary.rollouts, summary.succeeded) == (0, 48, True)
    assert len(kind.workers) == 4
    assert "3 workers could not start; the last one was killed by signal 9. The others play without it." in caplog.text


def test_failures_of_the_env_raise_the_attempt(tmp_path):
    """A failure of the env or the policy is retried in its worker, and returns with its message."""
    summary = play(tmp_path, "3:raise", retries=1)
    assert summary.workers_lost == 0
    assert summary.errors == {"env · ValueError: this env fails": 4}
    with rolltrace.open_run(tmp_path / "run") as run:
        assert list(run.sql("select status, attempt, count(*) from rollouts group by all order by all")) == [
            ("error", 0, 4), ("error", 1, 4), ("ok", 0, 44)
        ]  # fmt: skip


COMMAND = (
    "run", "worker_envs:sums", "--arg", "folder=.", "--out", "run", "--groups", "6", "--workers", "2", "--policy",
    "scripted:noisy",
)  # fmt: skip


def command(tmp_path, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "rolltrace", *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
    )  # fmt: skip


def worker_pids(tmp_path):
    pids = {int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")}
    return pids - {os.getpid()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_signal_is_recorded_by_the_workers_and_the_run_resumed(tmp_path, number, code):
    """What is in flight is recorded as cancelled, every session is closed, and --resume --workers plays the rest."""
    play(tmp_path, out="alone", workers=None, groups=6)
    process = command(tmp_path, *COMMAND, "--arg", "special=2:wait")
    until(lambda: len(list(tmp_path.glob("waits-2-*"))) == 4)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    with rolltrace.open_run(tmp_path / "run") as run:
        assert all(ledger.closed and not ledger.in_flight for ledger in run.ledgers().values())
        assert list(run.sql("select count(*) from rollouts where status = 'cancelled' and \"group\" = '2'")) == [(4,)]
    assert not any(map(is_running, worker_pids(tmp_path)))
    (tmp_path / "go").touch()
    resumed = command(tmp_path, "run", "--resume", "run", "--workers", "2")
    assert "groups, mean reward" in resumed.communicate(timeout=60)[1]
    assert resumed.returncode == 0
    assert table(tmp_path / "run") == table(tmp_path / "alone")


def test_a_second_signal_does_not_wait_for_envs_that_block(tmp_path):
    """Workers record what is in flight even if an env blocks their event loop, and end."""
    process = command(tmp_path, *COMMAND, "--arg", "special=2:block", "--concurrency", "2")
    until(lambda: list(tmp_path.glob("waits-2-*")))
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    until(lambda: not any(map(is_running, worker_pids(tmp_path))))
    with rolltrace.open_run(tmp_path / "run") as run:
        assert ("cancelled",) in list(run.sql("select status from rollouts where \"group\" = '2'"))


def test_workers_end_when_the_process_that_plays_is_killed(tmp_path):
    """They record what is in flight as cancelled, and leave no process behind."""
    process = command(tmp_path, *COMMAND, "--arg", "special=all:wait")
    until(lambda: len(list(tmp_path.glob("waits-*"))) >= 8 and len(worker_pids(tmp_path)) == 2)
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_running, worker_pids(tmp_path))))
    with rolltrace.open_run(tmp_path / "run") as run:
        assert set(run.sql("select distinct status from rollouts")) == {("cancelled",)}
        assert sorted(ledger.closed for ledger in run.ledgers().values()) == [False, True, True]


class LocalGroup(SumGroup):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()


class LockedPolicy:
    name, version, context_length = "locked", None, None

    def __init__(self):
        self.lock = threading.Lock()

    async def complete(self, request):
        raise NotImplementedError

    def count_tokens(self, request):
        return None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": LockedPolicy()}, "Expected the policy to be picklable"),
        ({"roles": {"grader": LockedPolicy()}}, "Expected the grader to be picklable"),
        ({"trace": Recording(redact=lambda value: value)}, "Expected the redaction function to be picklable"),
        ({"builder": LocalGroup}, "Expected the group builder LocalGroup to be picklable"),
        ({"policy": "human"}, "got human: play without workers"),
        ({"concurrency": 1}, "Expected a concurrency of at least the number of workers, 2, got 1"),
        ({"workers": 0}, "Expected workers of 1 or more, got 0"),
    ],
)
def test_what_workers_cannot_play_is_refused(tmp_path, settings, message):
    """One sentence says what cannot be sent to another process, before there is a run."""
    settings = {"policy": "scripted:noisy", "workers": 2, **settings}
    tasks = Sums(str(tmp_path), builder=settings.pop("builder", SumGroup))
    with pytest.raises(InputError, match=message):
        rolltrace.play(tasks, settings.pop("policy"), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_an_error_in_a_worker_is_raised(tmp_path):
    """A policy that only the workers cannot make ends the play, and the run is closed."""
    policy = f"worker_envs:OnlyInParent,parent={os.getpid()}"
    with pytest.raises(InputError, match="no such policy here"):
        rolltrace.play(Sums(str(tmp_path)), policy, out=tmp_path / "run", workers=2)
    with rolltrace.open_run(tmp_path / "run") as run:
        assert all(ledger.closed for ledger in run.ledgers().values())


def test_an_exception_of_an_env_that_is_no_failure_is_raised(tmp_path):
    """One that does not derive from `Exception` ends the play, as in one process."""
    with pytest.raises(WorkerError, match="BaseException: this env fails"):
        play(tmp_path, "1:raise unusual", groups=2, workers=1)


def test_a_program_without_a_guard_is_told_so(tmp_path):
    """Each worker imports the main module, which must not play again."""
    (tmp_path / "program.py").write_text(
        "import rolltrace\nrolltrace.play('arithmetic', 'scripted:noisy', out='run', workers=1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "inside `if __name__ == '__main__':`" in ran.stderr
    assert ran.stderr.splitlines()[-1].endswith("3 workers could not start; the last one ended with code 1.")


def test_a_callback_that_raises_ends_the_workers(tmp_path):
    """The exception is raised, and no process is left."""
    with pytest.raises(ZeroDivisionError):
        play(tmp_path, "9:wait", on_group=lambda _: 1 / 0)
    until(lambda: not any(map(is_running, worker_pids(tmp_path))))


@pytest.mark.parametrize(("total", "workers", "shares"), [(64, 2, [32, 32]), (7, 3, [3, 2, 2]), (2, 2, [1, 1])])
def test_concurrency_is_the_total_over_all_workers(total, workers, shares):
    """It is divided among the workers."""
    assert split_concurrency(total, workers) == shares


def test_roles_that_workers_use_are_reported(tmp_path):
    """The summary says which roles the policy played itself, as in one process."""
    alone, summary = (
        rolltrace.play("rubric", "scripted:noisy", out=tmp_path / name, workers=workers)
        for name, workers in (("alone", None), ("run", 1))
    )
    assert summary.roles_played_by_policy == alone.roles_played_by_policy == ["grader"]
    assert table(tmp_path / "run") == table(tmp_path / "alone")


@contextlib.asynccontextmanager
async def group_worker(tmp_path, **plan):
    """A worker in this process that has started, and its events."""
    events = asyncio.Queue()
    with rolltrace.create_run(tmp_path / "run") as writer:
        setup = WorkerSetup(pickle.loads(pickle.dumps(writer)), "scripted:noisy", {}, Plan(**plan))
        worker = GroupWorker(setup, events.put_nowait)
        running = asyncio.create_task(worker.run())
        assert await events.get() == Started(worker.writer.session)
        yield worker, events
        worker.close()
        await running


def sent_group(tmp_path, number, kind=""):
    """A group of two rollouts."""
    group = Sums(str(tmp_path), others=kind).builder(number, episodes=2, seed=0)
    return pickle.dumps(SentGroup(number, group, GroupKey("train", 0, "sums", str(number))))


async def test_a_worker_that_has_started_has_a_ledger(tmp_path):
    """It names the job, so that a resume knows the session even if all processes are killed before the next sync."""
    async with group_worker(tmp_path) as (worker, _):
        ledgers = RunReader(tmp_path / "run").ledgers()
        assert ledgers[worker.writer.session].job in ledgers.keys() - {worker.writer.session}


async def test_a_worker_starts_a_group_when_it_has_room(tmp_path):
    """Groups beyond its concurrency wait, so that they do not hold envs meanwhile."""
    async with group_worker(tmp_path, concurrency=2) as (worker, events):
        worker.add(sent_group(tmp_path, 1, "slow"))
        worker.add(sent_group(tmp_path, 2))
        assert await events.get() == Ended(1)  # the second one would end first if both began at once


async def test_a_group_is_reported_when_it_is_on_disk(tmp_path, monkeypatch):
    """It makes room when it ends, but counts as played only after a flush: a worker that is killed loses the rest."""
    written = threading.Event()
    async with group_worker(tmp_path) as (worker, events):
        monkeypatch.setattr(worker.writer, "flush", written.wait)
        worker.add(sent_group(tmp_path, 1))
        assert await events.get() == Ended(1)
        await asyncio.sleep(0.1)
        assert events.empty()
        written.set()
        assert set((await events.get()).reports) == {1}


def test_metrics_of_each_iteration_are_logged(tmp_path):
    """A tracker gets the iterations that workers play, as in one process."""
    steps = []

    class Steps:
        def log(self, metrics, step):
            steps.append(step)

        def close(self):
            pass

    play(tmp_path, iterations=3, groups=3, log_to=[Steps()])
    assert sorted(set(steps)) == [0, 1, 2]
