"""Metrics reach trackers while a run is recorded, with the numbers of the run, and never stop it."""

import os
import signal
import subprocess
import sys
import threading
import types
from collections import defaultdict
from contextvars import ContextVar

import pytest
from click.testing import CliRunner

import rolltrace
from rolltrace.cli.app import cli
from rolltrace.metrics import live_metrics
from rolltrace.query.iteration_metrics import iteration_metrics

pytestmark = pytest.mark.core


class Tracker:
    """Keeps what is logged, and lets a test wait for it."""

    def __init__(self):
        self.calls = []
        self.steps = defaultdict(dict)
        """By step, the latest value of each metric."""
        self.is_closed = False
        self._arrived = threading.Condition()

    def log(self, metrics, step):
        with self._arrived:
            self.calls.append((step, sorted({name.split("/")[1] for name in metrics})))
            self.steps[step] |= metrics
            self._arrived.notify_all()

    def close(self):
        self.is_closed = True

    def wait_for(self, count):
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.calls) >= count, 60)
        return self.calls


def play(run, iteration, rewards=(0.0, 1.0), **fields):
    """Record one group, and return the ids of its members."""
    place = {"env": "sums", "task": "1", "group": "1", "iteration": iteration, **fields}
    ids = []
    for index, reward in enumerate(rewards):
        with run.rollout(index=index, **place) as r:
            r.step("17 + 25?", "42", reward)
            ids.append(r.id)
    return ids


def recorded(path):
    """The metrics of a finished run by iteration, of all splits together."""
    steps = defaultdict(dict)
    with rolltrace.open_run(path) as run:
        for (_, iteration), metrics in iteration_metrics(run).items():
            steps[iteration] |= metrics
    return {iteration: pytest.approx(metrics) for iteration, metrics in steps.items()}


def test_an_iteration_is_logged_when_the_next_one_begins(tmp_path):
    """Metrics come live; the last iteration when the run is closed; and they are those of the finished run."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, tracker)
        play(run, 0, [0.0, 1.0, 1.0])
        play(run, 1)
        assert tracker.wait_for(1) == [(0, ["train"])]
        play(run, 5)
        assert tracker.wait_for(2)[1:] == [(1, ["train"])]
    assert tracker.calls[2:] == [(5, ["train"])]
    assert tracker.is_closed
    assert tracker.steps == recorded(tmp_path / "run")


def test_an_iteration_waits_for_its_rollouts_in_flight(tmp_path):
    """Where iterations overlap, an iteration is logged once, when its last rollout has ended."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, to=[tracker])
        with run.rollout(env="sums", task="2", group="2", index=0, iteration=0) as slow:
            for iteration in range(2):
                play(run, iteration)
                play(run, iteration, split="test")
            assert tracker.wait_for(1) == [(0, ["test"])]
            slow.step("1 + 1?", "2", 1.0)
        assert tracker.wait_for(2)[1:] == [(0, ["train"])]
    assert tracker.calls[2:] == [(1, ["test", "train"])]
    assert tracker.steps[0]["rollout/train/rollouts"] == 3
    assert metrics.failed == 0


def test_splits_are_apart(tmp_path):
    """An evaluation neither completes an iteration of training nor mixes with it; at the end both are one call."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, tracker)
        play(run, 0)
        play(run, 3, [1.0, 1.0], split="test")
        metrics.log()
        assert [step for step, _ in tracker.wait_for(2)] == [0, 3]
        play(run, 3)
        play(run, 4, split="test")
        assert tracker.wait_for(2) == [(0, ["train"]), (3, ["test"])]  # of the split test, 3 was logged
    assert sorted(tracker.calls[2:]) == [(3, ["train"]), (4, ["test"])]
    assert tracker.steps == recorded(tmp_path / "run")


def test_late_scores_are_logged_at_the_end(tmp_path):
    """A reward that comes after its iteration was logged corrects it when the run is closed."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, tracker)
        first, _ = play(run, 0)
        play(run, 1)
        tracker.wait_for(1)
        assert tracker.steps[0]["rollout/train/reward/mean"] == 0.5
        run.score(first, "reward", 7.0)
    assert [step for step, _ in tracker.calls] == [0, 0, 1]
    assert tracker.steps[0]["rollout/train/reward/mean"] == 4.0
    assert tracker.steps == recorded(tmp_path / "run")


def test_nothing_is_logged_twice_without_a_change(tmp_path):
    """Closing logs only what is new, although it looks at every iteration."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, tracker)
        for iteration in range(4):
            play(run, iteration, [0.1, 0.2, 0.7])
            metrics.log()
            tracker.wait_for(iteration + 1)
    assert [step for step, _ in tracker.calls] == [0, 1, 2, 3]


def test_a_resumed_iteration_is_complete(tmp_path):
    """A session that completes an iteration logs the rollouts of earlier sessions, too, and no other iterations."""
    with rolltrace.create_run(tmp_path / "run") as run:
        play(run, 0)
        play(run, 1)
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run", join=True) as run:
        rolltrace.log_metrics(run, tracker)
        play(run, 1, group="2")
    assert [step for step, _ in tracker.calls] == [1]
    assert tracker.steps[1]["rollout/train/rollouts"] == 4
    assert tracker.steps[1] == recorded(tmp_path / "run")[1]


def test_a_run_of_the_past(tmp_path):
    """All iterations of a path are logged before the call returns."""
    with rolltrace.create_run(tmp_path / "run") as run:
        for iteration in range(3):
            play(run, iteration)
    tracker = Tracker()
    metrics = rolltrace.log_metrics(tmp_path / "run", tracker)
    assert tracker.is_closed
    assert [step for step, _ in tracker.calls] == [0, 1, 2]
    assert tracker.steps == recorded(tmp_path / "run")
    metrics.close()
    assert len(tracker.calls) == 3


def test_play_logs(tmp_path):
    """`play` logs each iteration, with the numbers of its run."""
    tracker = Tracker()
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=2, iterations=3, log_to=tracker)
    assert [step for step, _ in tracker.calls] == [0, 1, 2]
    assert tracker.steps == recorded(tmp_path / "run")


class Broken(Tracker):
    """Fails, and says a secret."""

    def log(self, metrics, step):
        super().log(metrics, step)
        raise ConnectionError("no answer from https://user:hunter2secret@host")


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, caplog):
    """Failures are counted and logged once, without secrets; other trackers get everything; the end tries again."""
    broken, good = Broken(), Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, [broken, good])
        for iteration in range(2):
            play(run, iteration)
            metrics.log()
            good.wait_for(iteration + 1)
    assert metrics.failed == 4
    [warning] = caplog.messages
    assert warning.startswith("Could not log to Broken: ConnectionError: no answer from https://[redacted]@host.")
    assert [step for step, _ in broken.calls] == [0, 1, 0, 1]
    assert good.steps == recorded(tmp_path / "run")


class Exits(Tracker):
    """Ends the program, as it thinks."""

    def log(self, metrics, step):
        raise SystemExit("log in first")


def test_a_tracker_that_exits_is_one_that_fails(tmp_path, caplog):
    """Other trackers get everything, and the failure is counted."""
    good = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, [Exits(), good])
        play(run, 0)
    assert metrics.failed == 1
    assert "Could not log to Exits: SystemExit: log in first." in caplog.text
    assert good.steps == recorded(tmp_path / "run")


def test_a_tracker_that_hangs_does_not_stop_the_run(tmp_path, monkeypatch, caplog):
    """Recording goes on, and closing waits for a bounded time."""
    monkeypatch.setattr(live_metrics, "CLOSE_SECONDS", 0.0)
    release = threading.Event()

    class Hanging(Tracker):
        def log(self, metrics, step):
            super().log(metrics, step)
            release.wait()

    tracker = Hanging()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, tracker)
        for iteration in range(3):
            play(run, iteration)
        tracker.wait_for(1)
    release.set()
    metrics._thread.join()
    assert "Could not log to any tracker: one did not answer within 0 s." in caplog.text
    assert metrics.failed == 1
    assert len(recorded(tmp_path / "run")) == 3


def test_a_forked_process_does_not_log(tmp_path):
    """A process that is forked records, and its parent alone logs; the numbers are of both."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, tracker)
        child = os.fork()
        if not child:
            play(run, 0, group="2")
            run.flush()
            os._exit(len(run.observers) + len(tracker.calls))
        assert os.waitpid(child, 0)[1] == 0
        play(run, 0)
    assert tracker.steps[0]["rollout/train/rollouts"] == 4


def test_closing_the_metrics_leaves_the_run_open(tmp_path):
    """After `close` nothing is logged, and recording goes on."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run") as run:
        metrics = rolltrace.log_metrics(run, tracker)
        play(run, 0)
        metrics.close()
        play(run, 1)
    assert [step for step, _ in tracker.calls] == [0]
    assert len(recorded(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("wandbb", r"There is no tracker 'wandbb'. Did you mean 'wandb'\?"),
        ("tensorboard", r"as in tensorboard:DIR"),
        (5, r"Expected a tracker such as 'wandb' or 'tensorboard:DIR', got int: 5"),
        ("nothing_installed", r"pip install nothing_installed"),
    ],
)
def test_wrong_trackers(tmp_path, monkeypatch, to, message):
    """A tracker that is unknown, incomplete or not installed is refused at once, before a run is made."""
    monkeypatch.setitem(rolltrace.metrics.trackers._TRACKERS, "nothing_installed", Tracker)
    with pytest.raises(rolltrace.errors.InputError, match=message):
        rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", log_to=to)
    assert not (tmp_path / "run").exists()


def test_wrong_runs(tmp_path):
    """What is not a run is refused in a sentence."""
    with pytest.raises(rolltrace.errors.InputError, match="Expected a run that is being recorded, or the path of one"):
        rolltrace.log_metrics(5, to=Tracker())


def test_a_run_whose_trace_is_off(tmp_path, caplog):
    """A loop goes on when its recording is turned off: it has no metrics, and a warning says why."""
    tracker = Tracker()
    with rolltrace.create_run(tmp_path / "run", trace="off") as run:
        metrics = rolltrace.log_metrics(run, to=tracker)
        with run.rollout(env="sums", task="1+1", group="1+1", index=0) as r:
            r.step("1+1?", "2", reward=1.0)
    assert (metrics.failed, tracker.calls) == (0, [])
    assert "because the trace of" in caplog.text


def test_a_tracker_that_cannot_be_opened(tmp_path, monkeypatch):
    """The error names the tracker, hides secrets, and closes trackers that were opened before."""
    module = types.ModuleType("wandb")
    module.run = None

    def init(**settings):
        raise PermissionError("api_key=abcdefgh is wrong")

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    opened = Tracker()
    run = rolltrace.create_run(tmp_path / "run")
    with run, pytest.raises(rolltrace.errors.InputError, match=r"to wandb: PermissionError: api_key=\[redacted\]"):
        rolltrace.log_metrics(run, [opened, "wandb"])
    assert opened.is_closed
    assert run.observers == []


class FakeTrackio(types.ModuleType):
    """The module trackio, as far as it is used; each of its runs is a tracker."""

    def __init__(self):
        super().__init__("trackio")
        self.runs = {}
        self.context_vars = types.SimpleNamespace(current_run=ContextVar("current_run", default=None))

    def init(self, project, *, name, config, resume, embed):
        run = self.runs.setdefault((project, name), Tracker())
        run.finish = run.close
        self.context_vars.current_run.set(run)
        return run


@pytest.fixture
def trackio(monkeypatch):
    module = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_the_command_logs(tmp_path, trackio):
    """`--log-to` logs each iteration; a run that is resumed continues its line, and trackers are not in its record."""
    words = ["run", "arithmetic", "--groups", "2", "--iterations", "2", "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(cli, [*words, "--log-to", "trackio:my secret place"])
    assert shown.exit_code == 0, shown.output
    [((project, name), tracker)] = trackio.runs.items()
    assert project == "my secret place"
    assert name.startswith("run-")
    assert tracker.steps == recorded(tmp_path / "run")
    assert b"secret place" not in b"".join(
        path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()
    )


def test_a_tracker_run_of_our_own_is_not_the_current_one(tmp_path, trackio):
    """A program does not get our run as its current one; we use its own if it has one, and leave that open."""
    with rolltrace.create_run(tmp_path / "run") as run:
        rolltrace.log_metrics(run, "trackio")
        assert trackio.context_vars.current_run.get() is None
        play(run, 0)
    own = trackio.init("mine", name="mine", config={}, resume="never", embed=False)
    rolltrace.log_metrics(tmp_path / "run", "trackio")
    assert own.steps == recorded(tmp_path / "run")
    assert not own.is_closed
    assert len(trackio.runs) == 2


def test_a_resumed_command_logs(tmp_path, trackio):
    """`--log-to` is allowed with `--resume`."""
    config = {"groups": 2, "out": tmp_path / "run", "policy": "scripted:noisy"}
    rolltrace.play("arithmetic", **config)
    [segment] = (tmp_path / "run").glob("rollouts/*")
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:-1]))  # as a killed process leaves it
    shown = CliRunner().invoke(cli, ["run", "--resume", str(tmp_path / "run"), "--log-to", "trackio"])
    assert shown.exit_code == 0, shown.output
    [tracker] = trackio.runs.values()
    assert tracker.steps == recorded(tmp_path / "run")
    assert tracker.steps[0]["rollout/train/rollouts"] == 8


PROGRAM = """
import signal, sys, threading, rolltrace

class Print:
    logged = threading.Event()

    def log(self, metrics, step):
        print(step, metrics["rollout/train/rollouts"], flush=True)
        self.logged.set()

    def close(self):
        print("closed", flush=True)

run = rolltrace.create_run(sys.argv[1])
rolltrace.log_metrics(run, Print())
for iteration in range(2):
    with run.rollout(env="sums", task="1", group="1", index=0, iteration=iteration) as r:
        r.step("17 + 25?", "42", 1.0)
Print.logged.wait()
if sys.argv[2] == "SIGTERM":
    signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.parametrize("end", ["SIGTERM", "exit"])
def test_a_program_that_ends_logs_the_rest(tmp_path, end):
    """A program that does not close its run logs its last iteration nevertheless, also on SIGTERM."""
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), end]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.returncode == (-signal.SIGTERM if end == "SIGTERM" else 0)
    assert ran.stdout.split("\n") == ["0 1.0", "1 1.0", "closed", ""]
