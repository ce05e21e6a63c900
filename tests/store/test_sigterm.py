"""SIGTERM, as cluster schedulers send it: open rollouts are recorded, runs are closed, and the process ends."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rolltrace.store.reader import RunReader

PROLOGUE = """
import os, signal, sys, threading
from rolltrace.store.create import create_run
path = sys.argv[1]

def begin(run, index):
    r = run.rollout(env="sums", task="t", group="g", index=index)
    r.step("1 + 1?", "2", 0.5)
    r.send([{"role": "user", "content": "and then?"}])
    return r

def wait(is_ready=lambda: print("ready", flush=True)):
    # Again and again: Python forgets a signal that comes just before it waits for a lock, until the wait is over.
    is_ready()
    while True:
        threading.Event().wait(0.05)
"""


def terminated(tmp_path, body, prologue=PROLOGUE):
    """The exit status of a program that is sent SIGTERM when it is ready; its later output is printed."""
    command = [sys.executable, "-c", prologue + textwrap.dedent(body), str(tmp_path / "run")]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline() == "ready\n", program.communicate()[1]
        program.send_signal(signal.SIGTERM)
        said, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert errors == ""
    return program.returncode, said


def outcomes(path):
    """The index, status and number of steps of each rollout, and whether all sessions are closed."""
    reader = RunReader(path)
    rollouts = sorted((rollout.index, rollout.status.value, len(rollout.steps)) for rollout in reader.rollouts())
    ledgers = reader.ledgers().values()
    assert all(ledger.is_balanced for ledger in ledgers)
    return rollouts, all(ledger.closed and not ledger.in_flight for ledger in ledgers)


def test_open_rollouts_are_recorded_as_cancelled(tmp_path):
    """Open rollouts of all threads are recorded with their steps, the run is closed, and the process ends."""
    status, _ = terminated(
        tmp_path,
        """
        run = create_run(path)
        begin(run, 0).end()
        mine = begin(run, 1)
        theirs = []
        thread = threading.Thread(target=lambda: theirs.append(begin(run, 2)) or threading.Event().wait(), daemon=True)
        thread.start()
        while not theirs:
            pass
        wait()
        """,
    )
    assert status == -signal.SIGTERM
    assert outcomes(tmp_path / "run") == ([(0, "ok", 1), (1, "cancelled", 1), (2, "cancelled", 1)], True)
    cancelled = [rollout for rollout in RunReader(tmp_path / "run").rollouts() if rollout.index == 1]
    assert (cancelled[0].reward, cancelled[0].reward_so_far, cancelled[0].stop_reason) == (None, 0.5, "cancelled")
    assert cancelled[0].pending_messages[-1].content == "and then?"


def test_several_runs(tmp_path):
    """Every open run is closed; one that was closed before stays as it is."""
    status, _ = terminated(
        tmp_path,
        """
        runs = [create_run(f"{path}{number}") for number in range(3)]
        open_rollouts = [begin(run, 0) for run in runs[:2]]
        begin(runs[2], 0).end()
        runs[2].close()
        wait()
        """,
    )
    assert status == -signal.SIGTERM
    assert [outcomes(tmp_path / f"run{number}") for number in range(3)] == [
        ([(0, "cancelled", 1)], True), ([(0, "cancelled", 1)], True), ([(0, "ok", 1)], True),
    ]  # fmt: skip


def test_it_can_be_turned_off(tmp_path):
    """With `handle_sigterm=False` the signal has its default action, at once."""
    status, _ = terminated(
        tmp_path,
        """
        run = create_run(path, handle_sigterm=False)
        r = begin(run, 0)
        run.flush()
        wait()
        """,
    )
    assert status == -signal.SIGTERM
    assert outcomes(tmp_path / "run") == ([], False)


@pytest.mark.parametrize("when", ["before", "after"])
def test_handlers_of_the_program_are_left_alone(tmp_path, when):
    """A handler that the program has installed, before or after, is called, and stays when the run is closed."""
    install = "signal.signal(signal.SIGTERM, mine)"
    status, said = terminated(
        tmp_path,
        f"""
        def mine(*_):
            run.close()
            print("mine", signal.getsignal(signal.SIGTERM) is mine, flush=True)
            sys.exit(7)
        {install if when == "before" else ""}
        run = create_run(path)
        {install if when == "after" else ""}
        r = begin(run, 0)
        wait()
        """,
    )
    assert (status, said) == (7, "mine True\n")
    assert RunReader(tmp_path / "run").ledgers().popitem()[1].in_flight == 1


def test_default_action_is_restored(tmp_path):
    """When the last run is closed, SIGTERM has its default action; a run created in a thread does not change it."""
    program = """
        first, second = create_run(path), create_run(path + "2")
        handled = signal.getsignal(signal.SIGTERM)
        assert handled is not signal.SIG_DFL
        first.close()
        assert signal.getsignal(signal.SIGTERM) is handled
        second.close()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        runs = []
        thread = threading.Thread(target=lambda: runs.append(create_run(path + "3")))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(program), str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_forked_children_end_their_own(tmp_path):
    """A child records its own open rollouts and not its parent's, which continues; an idle child leaves nothing."""
    status, said = terminated(
        tmp_path,
        """
        run = create_run(path)
        parents = begin(run, 0)
        children = []
        for number in range(2):
            ready, told = os.pipe()
            children.append(os.fork())
            if children[-1] == 0:
                childs = begin(run, 1) if number else None
                wait(lambda: os.write(told, b"x"))
            os.read(ready, 1)
        for child in children:
            os.kill(child, signal.SIGTERM)
        assert [os.waitpid(child, 0)[1] for child in children] == [signal.SIGTERM] * 2
        parents.step("and?", "3", 0.5)
        wait()
        """,
    )
    assert (status, said) == (-signal.SIGTERM, "")
    assert outcomes(tmp_path / "run") == ([(0, "cancelled", 2), (1, "cancelled", 1)], True)
    assert len(RunReader(tmp_path / "run").ledgers()) == 2


def test_a_forked_child_that_records_nothing_has_the_default_action(tmp_path):
    """SIGTERM ends such a child at once, also in a call into C; one that records handles it until its run is closed."""
    status, said = terminated(
        tmp_path,
        """
        import itertools, time
        run = create_run(path)
        handler = signal.getsignal(signal.SIGTERM)
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(told, b"x")
            sum(itertools.repeat(0))  # never returns, so no handler in Python is run
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
        assert ended == (child, signal.SIGTERM)
        child = os.fork()
        if child == 0:
            before = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            begin(run, 1).end()
            during = signal.getsignal(signal.SIGTERM) is handler
            run.close()
            after = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            os._exit(7 if before and during and after else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert signal.getsignal(signal.SIGTERM) is handler
        wait()
        """,
    )
    assert (status, said) == (-signal.SIGTERM, "")
    assert outcomes(tmp_path / "run") == ([(1, "ok", 1)], True)


SILENT = """
import asyncio, os, signal, sys, threading, rolltrace
from rolltrace.envs.registry import load_env
path = sys.argv[1]

class Silent:
    name, version, context_length, asked = "silent", None, None, 0
    def count_tokens(self, request):
        return None
    async def complete(self, request):
        self.asked += 1
        if self.asked == 4:
            print("ready", flush=True)
        await asyncio.Event().wait()
"""

PLAYERS = {
    "play_async": """
asyncio.run(rolltrace.play_async("arithmetic", Silent(), out=path, groups=1))
""",
    "runner": """
async def main():
    builder = load_env("arithmetic", {}).builder(0, episodes=4, seed=0)
    async for _ in rolltrace.Runner(Silent(), sink=run).play([builder]):
        pass
run = rolltrace.create_run(path)
asyncio.run(main())
""",
    "runner in a thread": """
async def main():
    builder = load_env("arithmetic", {}).builder(0, episodes=4, seed=0)
    async for _ in rolltrace.Runner(Silent(), sink=run).play([builder]):
        pass
run = rolltrace.create_run(path)
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
while True:
    threading.Event().wait(0.05)
""",
}


@pytest.mark.parametrize("player", PLAYERS)
def test_rollouts_of_a_runner_are_recorded_as_cancelled(tmp_path, player):
    """Rollouts that a runner has in flight are recorded like those of a recorder."""
    status, _ = terminated(tmp_path, PLAYERS[player], SILENT)
    assert status == -signal.SIGTERM
    assert outcomes(tmp_path / "run") == ([(index, "cancelled", 0) for index in range(4)], True)


def test_a_play_beside_an_open_run(tmp_path):
    """A play ends as usual while another run is open, whose rollouts are recorded too; the handler is restored."""
    status, said = terminated(
        tmp_path,
        """
        run = rolltrace.create_run(path + "1")
        r = run.rollout(env="sums", task="t", group="g", index=7)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            rolltrace.play("arithmetic", Silent(), out=path, groups=1)
        finally:
            print(sys.exception(), signal.getsignal(signal.SIGTERM) is handler, flush=True)
        """,
        SILENT,
    )
    assert (status, said) == (143, "143 True\n")
    assert outcomes(tmp_path / "run") == ([(index, "cancelled", 0) for index in range(4)], True)
    assert outcomes(tmp_path / "run1") == ([(7, "cancelled", 0)], True)


def test_a_stubborn_play_beside_an_open_run(tmp_path):
    """A second signal ends the process at once, and the other run is closed too."""
    status, _ = terminated(
        tmp_path,
        """
        class Stubborn(Silent):
            async def complete(self, request):
                try:
                    await super().complete(request)
                except asyncio.CancelledError:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await super().complete(request)
        run = rolltrace.create_run(path + "1")
        r = run.rollout(env="sums", task="t", group="g", index=7)
        rolltrace.play("arithmetic", Stubborn(), out=path, groups=1)
        """,
        SILENT,
    )
    assert status == 143
    assert outcomes(tmp_path / "run") == ([(index, "cancelled", 0) for index in range(4)], True)
    assert outcomes(tmp_path / "run1") == ([(7, "cancelled", 0)], True)


def test_default_action_after_a_play_in_which_the_last_run_was_closed(tmp_path):
    """When a play ends and no run is open, SIGTERM has its default action again."""
    program = """
        run = rolltrace.create_run(path + "1")
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        rolltrace.play("arithmetic", "scripted:noisy", out=path, on_group=lambda _: run.close())
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """
    command = [sys.executable, "-c", SILENT + textwrap.dedent(program), str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_at_random_moments(tmp_path):
    """Whatever the signal interrupts, it ends the process, the run is closed, and nothing is in flight."""
    moment = random.Random(7)
    body = """
        run = create_run(path)
        def work(first):
            index = first
            while True:
                with run.rollout(env="sums", task="t", group="g", index=index) as r:
                    r.step("1 + 1?", "2", 1.0)
                index += 2
        threading.Thread(target=work, args=(1,), daemon=True).start()
        while run.ledger.recorded < 100:
            run.flush()
        print("ready", flush=True)
        work(0)
        """
    for number in range(8):
        place = tmp_path / str(number)
        place.mkdir()
        command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(body), str(place / "run")]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout.readline() == "ready\n"
        time.sleep(moment.random() / 20)  # so that each is interrupted at another place
        program.send_signal(signal.SIGTERM)
        try:
            assert program.wait(120) == -signal.SIGTERM
        finally:
            program.kill()
            program.communicate()
        reader = RunReader(place / "run")
        ids = [rollout.id for rollout in reader.rollouts()]
        [ledger] = reader.ledgers().values()
        assert ledger.is_balanced
        assert ledger.closed
        assert ledger.recorded == len(ids) == len(set(ids))
