"""Playing from synchronous code: inside a running event loop, as in a notebook, and with signals."""

import asyncio
import contextvars
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import rolltrace
from rolltrace.store.reader import RunReader
from rolltrace.trace.stop_reasons import Status

COLOUR = contextvars.ContextVar("colour", default="none")


class Patient:
    """Never answers, and prints when it is asked."""

    name, version, context_length = "patient", None, None

    async def complete(self, request):
        sys.stdout.write("asked\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    def count_tokens(self, request):
        return None


async def test_play_blocks_inside_a_running_loop(tmp_path):
    """As in a notebook's cell, the call returns when all is played, and the loop can be used after it."""
    summary = rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=3)
    assert summary.rollouts == 12
    assert summary.ledger.closed
    await asyncio.sleep(0)


async def test_play_async_is_public(tmp_path):
    """Inside a loop `play_async` does the same without blocking it."""
    summary = await rolltrace.play_async("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=3)
    assert summary.rollouts == 12


async def test_errors_and_context_cross_the_thread(tmp_path):
    """What is wrong is raised in the cell, and context variables have the values of the cell."""
    with pytest.raises(rolltrace.RolltraceError, match="arithmetic"):
        rolltrace.play("aritmetic", "scripted:noisy", out=tmp_path / "run")
    COLOUR.set("green")
    seen = []
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", on_group=lambda _: seen.append(COLOUR.get()))
    assert seen == ["green"]


def test_play_works_in_another_thread(tmp_path):
    """Outside the main thread no signal handler can be set, and none is."""
    summaries = []
    thread = threading.Thread(
        target=lambda: summaries.append(rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run"))
    )
    thread.start()
    thread.join()
    assert [summary.rollouts for summary in summaries] == [4]


def test_handlers_are_restored(tmp_path):
    """After a play SIGINT and SIGTERM have the handlers that they had before."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    during = []
    watch = lambda _: during.append(signal.getsignal(signal.SIGTERM))  # noqa: E731
    rolltrace.play("arithmetic", "scripted:noisy", out=tmp_path / "run", on_group=watch)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert during != [signal.SIG_DFL]


SCRIPT = """
import asyncio, signal, sys
import rolltrace
from test_signal_handling import Patient

def play():
    try:
        rolltrace.play("arithmetic", Patient(), out="run", groups=2)
    except BaseException as error:
        print(repr(error), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
        raise

async def notebook():
    play()

{start}
"""


@pytest.mark.parametrize("start", ["play()", "asyncio.run(notebook())"], ids=["script", "notebook"])
@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [(signal.SIGINT, "KeyboardInterrupt()", -signal.SIGINT), (signal.SIGTERM, "SystemExit(143)", 143)],
)
def test_a_signal_cancels_and_records(tmp_path, start, number, raised, code):
    """Interrupting a script or a cell records what is in flight as cancelled, closes the run, and raises."""
    (tmp_path / "script.py").write_text(SCRIPT.format(start=start))
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(__file__).rpartition("/")[0]},
    )  # fmt: skip
    try:
        for _ in range(8):
            assert process.stdout.readline() == "asked\n"
        process.send_signal(number)
        printed, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert printed == f"{raised} True\n"
    assert process.returncode == code
    assert "never retrieved" not in told
    assert [rollout.status for rollout in RunReader(tmp_path / "run").rollouts()] == [Status.CANCELLED] * 8
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.closed, ledger.in_flight, ledger.recorded) == (True, 0, 8)


def test_a_handler_of_the_callers_own_is_kept(tmp_path):
    """If SIGTERM has a handler already, a play leaves it in place."""
    script = textwrap.dedent("""
        import signal, rolltrace
        mine = lambda *_: None
        signal.signal(signal.SIGTERM, mine)
        kept = []
        look = lambda _: kept.append(signal.getsignal(signal.SIGTERM) is mine)
        rolltrace.play("arithmetic", "scripted:noisy", out="run", on_group=look)
        print(kept)
    """)
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "[True]\n"


def test_signals_of_forked_processes_are_their_own(tmp_path):
    """SIGTERM to a process that was forked during a play neither cancels nor ends the play."""
    script = textwrap.dedent("""
        import os, signal, rolltrace
        codes = []

        def fork(_):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
                while True:
                    signal.raise_signal(signal.SIGTERM)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        summary = rolltrace.play("arithmetic", "scripted:noisy", out="run", groups=20, concurrency=1, on_group=fork)
        print(summary.groups, set(codes))
    """)
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "20 {7}\n"), ran.stderr


def test_wakeup_descriptor_is_restored(tmp_path):
    """After a play the wakeup descriptor is that of before, and signals during the play are passed on to it."""
    script = textwrap.dedent("""
        import os, signal, socket, rolltrace
        receiver, sender = socket.socketpair()
        receiver.settimeout(60)
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        signal.signal(signal.SIGUSR1, lambda *_: None)
        send = lambda _: signal.raise_signal(signal.SIGUSR1)
        summary = rolltrace.play("arithmetic", "scripted:noisy", out="run", groups=1, on_group=send)
        print(summary.groups, signal.set_wakeup_fd(-1) == sender.fileno(), list(receiver.recv(9)))
    """)
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"1 True {[int(signal.SIGUSR1)]}\n"), ran.stderr
