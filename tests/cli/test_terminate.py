"""SIGTERM while rollouts are in flight: they are recorded, the session is closed, the exit code is 143."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading

import pytest
from aiohttp import web

from loopback import serving
from rolltrace.check.check_run import check_run
from rolltrace.query.run import open_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.stop_reasons import Status
from run_states import states

IN_FLIGHT = 64

STUBBORN = """
import asyncio, signal, sys, threading, time
from rolltrace import Env, Message, Observation, StepResult

def say():
    print("playing", file=sys.stderr, flush=True)

class Swallows(Env):
    async def initial_observation(self):
        return Observation([Message("user", "What is 1 + 1?")])

    async def step(self, completion):
        say()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("cancelled", file=sys.stderr, flush=True)

class Blocks(Swallows):
    async def step(self, completion):
        say()
        time.sleep(3600)

class BlocksTheHandler(Swallows):
    async def step(self, completion):
        def receive():  # in this thread, so that the signal does not interrupt the call in the main thread
            time.sleep(0.5)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        threading.Thread(target=receive).start()
        say()
        time.sleep(3600)

class LeavesAThread(Swallows):
    async def step(self, completion):
        say()
        await asyncio.to_thread(time.sleep, 3600)

class NeverCloses(Swallows):
    async def step(self, completion):
        say()
        await asyncio.sleep(3600)

    async def close(self):
        await asyncio.sleep(3600)
"""


@contextlib.contextmanager
def started(folder, *words, module="rolltrace"):
    """The command in its own process, which is killed if it does not end."""
    command = [sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check_record(path, cancelled):
    """Asserts that rollouts in flight are recorded as cancelled, the ledger is closed and complete, and audits pass."""
    reader = RunReader(path)
    rollouts = list(reader.rollouts())
    assert not reader.read_errors
    assert sum(rollout.status is Status.CANCELLED for rollout in rollouts) >= cancelled
    assert {rollout.stop_reason for rollout in rollouts} == {"cancelled"}
    [ledger] = reader.ledgers().values()
    assert ledger.closed
    assert ledger.complete
    assert ledger.dispatched == ledger.recorded == len(rollouts)
    assert check_run(path).ok


@pytest.mark.parametrize("env", ["arithmetic", "preference"])
def test_sigterm_records_what_was_in_flight(tmp_path, env):
    """After SIGTERM all 64 rollouts in flight are recorded as cancelled and the exit code is 143."""
    asked = 0
    is_full = threading.Event()

    async def never(request):
        nonlocal asked
        await request.read()
        asked += 1
        if asked == IN_FLIGHT:
            is_full.set()
        await asyncio.Event().wait()
        return web.Response()

    with serving(never) as url:
        words = ["run", env, "--policy", f"openai:m@{url}", "--groups", "300", "--out", "run"]
        with started(tmp_path, *words) as process:
            assert is_full.wait(60)
            process.send_signal(signal.SIGTERM)
            printed, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert printed == ""
    assert "Terminated. The rollouts in flight are recorded as cancelled in run." in told.splitlines()[-1]
    assert not any(word in told for word in ("Traceback", "Unclosed", "never retrieved", "was destroyed"))
    check_record(tmp_path / "run", IN_FLIGHT)


def test_sigterm_ends_a_demo(tmp_path):
    """A demo ends like a run."""
    (tmp_path / "mine.py").write_text(NEVER_ANSWERS)
    with started(tmp_path, "demo", "--policy", "mine:Silent", "--out", "run") as process:
        assert process.stderr.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 143, told
    check_record(tmp_path / "run", 4)


def test_stubborn_envs_do_not_keep_a_process_alive(tmp_path):
    """An env that swallows its cancellation, blocks the loop or a thread, or never closes is recorded and left.

    So is one that blocks the main thread in a call that the signal did not interrupt.
    """
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    envs = {"Swallows": 4, "Blocks": 1, "BlocksTheHandler": 1, "LeavesAThread": 4, "NeverCloses": 4}
    with contextlib.ExitStack() as stack:
        processes = {}
        for env in envs:
            processes[env] = stack.enter_context(started(tmp_path, "run", f"stubborn:{env}", "--out", env))
        for env, process in processes.items():
            assert process.stderr.readline() == "playing\n"
            if env != "BlocksTheHandler":  # it sends the signal itself
                process.send_signal(signal.SIGTERM)
        codes = {}
        for env, process in processes.items():
            process.communicate(timeout=120)
            codes[env] = process.returncode
    assert codes == dict.fromkeys(envs, 143)
    for env, cancelled in envs.items():
        check_record(tmp_path / env, cancelled)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGTERM, signal.SIGINT, 143),
        (signal.SIGINT, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 1),
    ],
)
def test_a_second_signal_does_not_wait_for_envs(tmp_path, first, second, code):
    """Rollouts in flight are recorded and the process ends, although an env swallows its cancellation."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with started(tmp_path, "run", "stubborn:Swallows", "--out", "run") as process:
        for _ in range(4):
            assert process.stderr.readline() == "playing\n"
        process.send_signal(first)
        for _ in range(4):
            assert process.stderr.readline() == "cancelled\n"
        process.send_signal(second)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in told
    check_record(tmp_path / "run", 4)


@pytest.mark.parametrize(("name", "word", "code"), [("SIGINT", "Interrupted", 1), ("SIGTERM", "Terminated", 143)])
def test_a_signal_before_the_run_exists(tmp_path, name, word, code):
    """A command that ends before there is a run says so, and does not offer to resume it."""
    (tmp_path / "early.py").write_text(EARLY.format(name=name))
    with started(tmp_path, "run", "early:Env", "--out", "run") as process:
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told.splitlines()[-1]) == (code, f"{word}. Nothing was recorded.")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_run_that_ended_during_group_grading_is_interrupted(tmp_path, name):
    """Every reader says that the run is interrupted, and `--resume` plays the group again."""
    (tmp_path / "graded.py").write_text(GRADED)
    with started(tmp_path, "run", "graded:Graded", *TWO_GRADINGS) as process:
        read_until(process, "the second grading")
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=60)
    check_interrupted_grading(tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_second_signal_does_not_wait_for_a_group_grader(tmp_path, name):
    """The run is interrupted also if the grader swallows its cancellation."""
    (tmp_path / "graded.py").write_text(GRADED)
    with started(tmp_path, "run", "graded:Swallows", *TWO_GRADINGS) as process:
        read_until(process, "the second grading")
        process.send_signal(getattr(signal, name))
        read_until(process, "cancelled")
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=60)
    check_interrupted_grading(tmp_path)


def test_sigterm_during_group_grading_in_an_event_loop(tmp_path):
    """A run of `play_async`, which SIGTERM ends without cancelling, is interrupted too."""
    (tmp_path / "graded.py").write_text(GRADED)
    with started(tmp_path, module="graded") as process:
        read_until(process, "the second grading")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    check_interrupted_grading(tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_run_that_ended_before_a_retry_is_interrupted(tmp_path, name):
    """A failed game whose retry was due is unfinished, for every reader and for `--resume`."""
    (tmp_path / "failing.py").write_text(FAILING)
    words = ["--policy", "scripted:noisy", "--group-size", "1", "--retries", "1", "--out", "run"]
    with started(tmp_path, "run", "failing:Failing", *words) as process:
        read_until(process, "closing")
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=60)
    with open_run(tmp_path / "run") as run:
        rollouts = run.sql("select attempt, seat, status, stop_reason, retried from rollouts order by all").fetchall()
    assert rollouts == [
        (0, 0, "error", "error", True),
        (0, 1, "cancelled", "episode_aborted", True),
        (1, 0, "cancelled", "cancelled", False),
        (1, 1, "cancelled", "cancelled", False),
    ]
    assert states(tmp_path / "run") == "interrupted"
    assert check_run(tmp_path / "run").ok
    with started(tmp_path, "run", "--resume", "run", "--json") as process:
        printed, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert json.loads(printed)["groups"] == 1
    assert states(tmp_path / "run") == "complete"


FAILING = """
import asyncio, pathlib, sys
from rolltrace import Env, EnvGroupBuilder, Message, Observation, StepResult

class Fails(Env):
    async def initial_observation(self):
        return Observation([Message("user", "What is 1 + 1?")])

    async def step(self, completion):
        if pathlib.Path("failed").exists():
            return StepResult(reward=1.0, done=True)
        pathlib.Path("failed").touch()
        raise ValueError("the board is broken")

class ClosesSlowly(Fails):
    async def step(self, completion):
        if pathlib.Path("closed").exists():
            return StepResult(reward=1.0, done=True)
        await asyncio.sleep(3600)

    async def close(self):
        if not pathlib.Path("closed").exists():
            pathlib.Path("closed").touch()
            print("closing", file=sys.stderr, flush=True)
            while True:
                await asyncio.sleep(0.05)

class Failing(EnvGroupBuilder):
    seats = 2

    async def make_episode(self, number):
        return [Fails(), ClosesSlowly()]
"""


def read_until(process, line):
    """Reads standard error of the process, up to this line."""
    for read in process.stderr:
        if read.rstrip("\n") == line:
            return
    raise AssertionError(f"the process ended before it wrote {line!r}")


def check_interrupted_grading(folder):
    """Asserts that the second of two groups was not graded, and that a resumed session completes the run."""
    with open_run(folder / "run") as run:
        assert run.sql("select status, count(reward) from rollouts group by all").fetchall() == [("ok", 2)]
    assert states(folder / "run") == "interrupted"
    [result] = check_run(folder / "run", only=["interrupted_run"]).results
    assert [finding.data for finding in result.findings] == [{"planned": 4, "finished": 2}]
    with started(folder, "run", "--resume", "run", "--json") as process:
        printed, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert json.loads(printed)["groups"] == 1
    assert states(folder / "run") == "complete"
    assert not check_run(folder / "run", only=["interrupted_run"]).results[0].findings


TWO_GRADINGS = ["--policy", "scripted:noisy", "--group-size", "2", "--iterations", "2", "--out", "run"]
GRADED = """
import asyncio, pathlib, sys
import rolltrace
from rolltrace import Env, EnvGroupBuilder, Grade, Message, Observation, StepResult

class Sum(Env):
    async def initial_observation(self):
        return Observation([Message("user", "What is 1 + 1?")])

    async def step(self, completion):
        return StepResult(reward=0.0, done=True)

class Graded(EnvGroupBuilder):
    async def make_episode(self, number):
        return [Sum()]

    async def grade_group(self, rollouts):
        gradings = pathlib.Path("gradings")
        number = len(gradings.read_text()) + 1 if gradings.exists() else 1
        gradings.write_text("x" * number)
        if number == 2:
            print("the second grading", file=sys.stderr, flush=True)
            await self.hang()
        return {rollout.id: Grade(1.0) for rollout in rollouts}

    async def hang(self):
        while True:  # a signal that comes just before an event loop waits is handled when the loop wakes up
            await asyncio.sleep(0.05)

class Swallows(Graded):
    async def hang(self):
        while True:
            try:
                await super().hang()
            except asyncio.CancelledError:
                print("cancelled", file=sys.stderr, flush=True)

if __name__ == "__main__":
    asyncio.run(
        rolltrace.play_async("graded:Graded", "scripted:noisy", out="run", groups=1, group_size=2, iterations=2)
    )
"""

EARLY = """
import os, signal
os.kill(os.getpid(), signal.{name})
if signal.{name} == signal.SIGINT:
    os.kill(os.getpid(), signal.SIGINT)  # the first waits for the play to be cancelled
raise ImportError
"""

NEVER_ANSWERS = """
import asyncio, sys

class Silent:
    name, version, context_length = "silent", None, None
    def count_tokens(self, request):
        return None
    async def complete(self, request):
        print("asked", file=sys.stderr, flush=True)
        await asyncio.sleep(3600)
"""
