import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from rolltrace.errors import EnvError, InputError, WorkerError
from rolltrace.processes.child_processes import stop_all_children
from rolltrace.processes.pool import ProcessPool
from waiting import is_running

POOL = ProcessPool()

FOREVER = "any(False for _ in iter(int, 1))"
SLEEP = "__import__('time').sleep(3600)"
PROCESS = "__import__('os').getpid()"
needs_handles = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for another's child")
SCRIPT = """
import os, sys, threading, time
from rolltrace.processes.pool import ProcessPool
POOL = ProcessPool()
print(POOL.run_sync(eval, "__import__('os').getpid()", cpu_seconds=5), flush=True)
"""


def named_pipe(directory, name="pipe"):
    os.mkfifo(directory / name)
    return directory / name


def tells(pipe):
    """An expression with which a worker writes its process id, so that the reader knows that the work has begun."""
    return f"__import__('pathlib').Path({str(pipe)!r}).write_text(str({PROCESS}))"


def waits(pipe):
    """An expression with which a worker waits until something is written."""
    return f"__import__('pathlib').Path({str(pipe)!r}).read_text()"


@pytest.fixture
def workers():
    """A pool that no other test uses."""
    workers = ProcessPool()
    yield workers
    workers.stop()


async def test_the_loop_goes_on_meanwhile_and_may_cancel(tmp_path):
    """Waiting for a worker does not block the event loop; cancelling the wait ends the work."""
    pipe = named_pipe(tmp_path)
    asking = asyncio.create_task(POOL.run(eval, f"{tells(pipe)} and {FOREVER}", cpu_seconds=3600))
    worker = int(await asyncio.to_thread(pipe.read_text))
    assert is_running(worker)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    stop_all_children()
    assert not is_running(worker)
    assert await POOL.run(eval, "6 * 7", cpu_seconds=5) == 42


def test_any_thread_may_ask_and_many_at_once():
    """Event loops of several threads share the workers, and each gets its own answer."""
    found = {}

    def run(number):
        async def ask():
            texts = [f"{number} * 1000 + {place}" for place in range(8)]
            return await asyncio.gather(*(POOL.run(eval, text, cpu_seconds=5) for text in texts))

        found[number] = asyncio.run(ask())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number * 1000 + place for place in range(8)] for number in range(4)}


def run_script(text, **options):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]  # some versions warn of forks in threads
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_no_process_is_left_behind():
    """A program that exits ends its workers, also in the middle of work, and prints nothing about it."""
    text = SCRIPT + (
        f"threading.Thread(target=POOL.run_sync, args=(eval, {FOREVER!r}), kwargs={{'cpu_seconds': 0.2}}).start()\n"
        "threading.excepthook = print\n"
    )
    ended = run_script(text)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not is_running(int(ended.stdout.split()[0]))


def test_a_forked_process_has_workers_of_its_own():
    """A forked child does not share its parent's pipes, so no answer goes to the wrong process."""
    text = SCRIPT + (
        "child = os.fork()\n"
        "print(POOL.run_sync(eval, \"__import__('os').getpid()\", cpu_seconds=5), flush=True)\n"
        "child and os.waitpid(child, 0)\n"
    )
    ended = run_script(text)
    first, *later = map(int, ended.stdout.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert first in later
    assert len(set(later)) == 2
    assert not any(map(is_running, later))


def has_ended(handle):
    """Whether the process ends soon; it is killed if it does not."""
    ended = select.select([handle], [], [], 30)[0]
    if not ended:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)
    return bool(ended)


@needs_handles
@pytest.mark.parametrize("work", [FOREVER, SLEEP])
def test_workers_end_with_a_killed_caller(work, tmp_path):
    """Workers of a killed caller notice its death, busy or idle, and end before their time is up."""
    pipe = named_pipe(tmp_path)
    last = f"POOL.run_sync(eval, {f'{tells(pipe)} and {work}'!r}, cpu_seconds=3600)"
    caller = subprocess.Popen([sys.executable, "-c", SCRIPT + last], stdout=subprocess.PIPE, text=True)
    handle = os.pidfd_open(int(pipe.read_text()))
    caller.kill()
    caller.communicate()
    assert has_ended(handle)


@needs_handles
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_process_keeps_no_worker_alive(busy, tmp_path):
    """A forked child closes its copies of the pipes, so that the workers end with the process that started them."""
    pipe = named_pipe(tmp_path)
    if busy:
        work = f"lambda: POOL.run_sync(eval, {f'{tells(pipe)} and {SLEEP}'!r}, cpu_seconds=3600)"
        first = f"threading.Thread(target={work}, daemon=True).start(); open({str(pipe)!r}).read()\n"
    else:
        first = ""
    text = SCRIPT + first + "child = os.fork() or time.sleep(3600)\nprint(child, flush=True)\ntime.sleep(3600)"
    caller = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    handle = os.pidfd_open(int(caller.stdout.readline()))
    child = int(caller.stdout.readline())
    caller.kill()
    caller.wait()
    ended, outlived = has_ended(handle), is_running(child)
    os.kill(child, signal.SIGKILL)
    caller.communicate()
    assert (ended, outlived) == (True, True)


def test_a_sigterm_to_the_whole_job_ends_no_worker(workers):
    """A scheduler sends SIGTERM to every process; a worker ignores it, so that no call fails because of it."""
    process = workers.run_sync(os.getpid, cpu_seconds=5)
    os.kill(process, signal.SIGTERM)
    assert workers.run_sync(os.getpid, cpu_seconds=5) == process


def test_a_call_starts_no_thread(workers, monkeypatch):
    """A call is bounded without a timer thread, which would cost more than most calls."""
    monkeypatch.setenv("ROLLTRACE_WORKERS", "1")
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread)))
    assert [workers.run_sync(abs, -number, cpu_seconds=5) for number in range(5)] == [0, 1, 2, 3, 4]
    assert started == ["rolltrace-worker_0"]


async def test_pools_do_not_wait_for_each_other(workers, tmp_path):
    """Endless calls of one pool do not occupy the workers of another."""
    pipe = named_pipe(tmp_path)
    endless = [asyncio.create_task(POOL.run(eval, waits(pipe), cpu_seconds=3600)) for _ in range(8)]
    assert await asyncio.wait_for(workers.run(eval, "6 * 7", cpu_seconds=5), 60) == 42
    for task in endless:
        task.cancel()
    assert {type(ended) for ended in await asyncio.gather(*endless, return_exceptions=True)} == {asyncio.CancelledError}


async def test_the_number_of_workers_can_be_set(workers, monkeypatch, tmp_path):
    """ROLLTRACE_WORKERS sets how many workers run at once, whatever the number of processors."""
    monkeypatch.setenv("ROLLTRACE_WORKERS", "6")
    pipes = [named_pipe(tmp_path, str(number)) for number in range(6)]
    asked = [asyncio.create_task(workers.run(eval, f"{tells(pipe)} and {SLEEP}", cpu_seconds=3600)) for pipe in pipes]
    begun = [int(await asyncio.to_thread(pipe.read_text)) for pipe in pipes]
    assert len(set(begun)) == 6
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("given", ["0", "-1", "many", ""])
def test_a_wrong_number_of_workers_is_refused(workers, monkeypatch, given):
    """The error names the environment variable."""
    monkeypatch.setenv("ROLLTRACE_WORKERS", given)
    with pytest.raises(InputError, match=f"Expected ROLLTRACE_WORKERS to be a number .* got '{given}'"):
        workers.run_sync(abs, 1, cpu_seconds=5)


def test_stopping_the_workers_fails_no_call(workers, monkeypatch, tmp_path):
    """Running, waiting and new calls all get their answers while the pool is stopped."""
    monkeypatch.setenv("ROLLTRACE_WORKERS", "1")
    begun, waiting = named_pipe(tmp_path, "begun"), named_pipe(tmp_path, "waiting")
    shut_down = ThreadPoolExecutor.shutdown
    later = []

    def shut_down_slowly(self, **options):
        shut_down(self, **{**options, "wait": False})
        later.append(workers.run_sync(abs, -3, cpu_seconds=5))
        waiting.write_text("go on")
        shut_down(self, **options)

    under_way = workers.submit(eval, f"{tells(begun)} and {waits(waiting)}", cpu_seconds=60)
    begun.read_text()
    waits_for_it = workers.submit(abs, -2, cpu_seconds=5)
    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "shutdown", shut_down_slowly)
        workers.stop()
    assert (under_way.result(), waits_for_it.result(), later) == ("go on", 2, [3])


def test_a_call_that_begins_while_workers_are_stopped_is_answered(workers, monkeypatch):
    """A call that races with `stop` runs either before or after it."""
    workers.run_sync(abs, 1, cpu_seconds=5)
    stopping = threading.Thread(target=workers.stop)
    submit = ThreadPoolExecutor.submit

    def submit_late(self, *args):
        monkeypatch.undo()
        stopping.start()
        stopping.join(0.2)
        return submit(self, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_late)
    assert workers.run_sync(abs, -2, cpu_seconds=5) == 2
    stopping.join()


def test_a_call_that_comes_too_late_says_so():
    """A thread that keeps calling while the program exits gets an error that says why."""
    text = (
        SCRIPT
        + """
def ask_on():
    while True:
        try:
            POOL.run_sync(abs, 1, cpu_seconds=5)
        except Exception as error:
            print(type(error).__name__, error)
            break
threading.Thread(target=ask_on).start()
"""
    )
    ended = run_script(text)
    assert (ended.returncode, ended.stderr) == (0, "")
    told = ended.stdout.splitlines()[1]
    assert told.startswith("EnvError No worker process can be called while the program exits: cannot schedule new")


def test_killing_a_pool_waits_for_no_call(workers, tmp_path):
    """Killing a pool fails running calls and drops waiting ones; a later call gets a new process."""
    pipe = named_pipe(tmp_path)
    running = workers.submit(eval, f"{tells(pipe)} and {SLEEP}")
    process = int(pipe.read_text())
    workers.kill()
    with pytest.raises(WorkerError):
        running.result()
    assert not is_running(process)
    assert workers.run_sync(abs, -3) == 3


@pytest.mark.parametrize("number", range(3))
def test_killing_a_pool_also_ends_calls_that_just_begin(workers, number):
    """A process that is being started is killed too; otherwise a call without a limit would be waited for."""
    call = workers.submit(eval, SLEEP)
    workers.kill()
    with pytest.raises((EnvError, WorkerError, CancelledError)):
        call.result()


def test_a_call_prefers_a_process_with_its_affinity(tmp_path):
    """Of two idle processes, a call gets the one whose last call had the same affinity."""
    pipes = {name: named_pipe(tmp_path, name) for name in "ab"}
    pool = ProcessPool(max_processes=2)
    calls = {name: pool.submit(eval, f"({waits(pipe)}, {PROCESS})[1]", affinity=name) for name, pipe in pipes.items()}
    for pipe in pipes.values():
        pipe.write_text("go on")
    first = {name: call.result() for name, call in calls.items()}
    assert len(set(first.values())) == 2
    for name in "abba":
        assert pool.run_sync(eval, PROCESS, affinity=name) == first[name]
    pool.stop()
