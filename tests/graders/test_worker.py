import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from rolltrace.errors import EnvError, GraderError, InputError
from rolltrace.graders.worker import ask_worker, call_worker, stop_workers

# A worker imports what it is to call, and it cannot import a test: so it is given `eval`, which needs no import.
FOREVER = "any(False for _ in iter(int, 1))"
PROCESS = "__import__('os').getpid()"
SCRIPT = """
import os, sys
from rolltrace.graders.worker import call_worker
print(call_worker(eval, "__import__('os').getpid()", seconds=5), flush=True)
"""


def evaluated(text, seconds=5.0, **options):
    return call_worker(eval, text, seconds=seconds, **options)


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_value_comes_back_as_json_has_it():
    """Numbers, text with anything in it, lists and objects come back; anything else comes back as it is written."""
    assert evaluated("[1.5, None, {'a': (1, 2)}, '\\ud800\\x00', {1}]") == [
        1.5, None, {"a": [1, 2]}, "\ud800\x00", "{1}",
    ]  # fmt: skip
    assert evaluated(PROCESS) != os.getpid()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "^ZeroDivisionError: division by zero$"),
        ("exit(3)", "^SystemExit: 3$"),
        ("len(bytearray(2**33))", "^MemoryError"),
        ("__import__('os')._exit(3)", "^The process that worked on it ended with code 3"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "^The process that worked on it ended with code -9"),
        ("'x' * 3000 + 1", "^TypeError"),
    ],
)
def test_whatever_goes_wrong_is_a_grader_error(text, message):
    """Raising, exiting, exhausting memory and dying are one kind of error, and the next call is answered."""
    with pytest.raises(GraderError, match=message):
        evaluated(text)
    assert evaluated("6 * 7") == 42


def test_a_wrong_input_stays_one():
    """An error that is the caller's own fault keeps its kind."""
    with pytest.raises(InputError, match=r"^no such thing$"):
        evaluated("(_ for _ in ()).throw(__import__('rolltrace.errors').errors.InputError('no such thing'))")


def test_work_that_does_not_end_is_ended():
    """Computing for too long ends the process and not the caller, and so does waiting; another takes its place."""
    stop_workers()
    before = evaluated(PROCESS)
    with pytest.raises(GraderError, match=r"^It took more than 0.3 seconds, and was stopped\.$"):
        evaluated(FOREVER, seconds=0.3)
    assert not is_running(before)
    with pytest.raises(GraderError, match=r"^It took more than 0.1 seconds, and was stopped\.$"):
        call_worker(time.sleep, 3600, seconds=0.1)
    assert evaluated(PROCESS) != before


def test_what_prints_cannot_forge_a_reply():
    """Standard output and input are not the pipes to the caller."""
    assert evaluated("print('{}' * 100) or __import__('os').write(1, b'forged') or input") is not None
    assert evaluated("6 * 7") == 42
    with pytest.raises(GraderError, match="EOFError"):
        evaluated("input()")


def test_a_worker_that_cannot_be_prepared_judges_nothing(tmp_path):
    """That is no fault of what was to be judged, and so another error, and the work is not begun."""
    begun = tmp_path / "begun"
    with pytest.raises(EnvError, match="could not be prepared: SystemExit"):
        evaluated(f"__import__('pathlib').Path({str(begun)!r}).touch()", prepare=sys.exit)
    assert evaluated("6 * 7") == 42
    assert not begun.exists()


def test_hashes_are_the_same_in_every_worker():
    """What is drawn from a set does not depend on the process."""
    first = evaluated("hash('text')")
    stop_workers()
    assert evaluated("hash('text')") == first


async def test_the_loop_goes_on_meanwhile_and_may_give_up(tmp_path):
    """Waiting for a worker holds up nothing else; who is cancelled while waiting ends the work."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    begun = f"__import__('pathlib').Path({str(pipe)!r}).write_text(str({PROCESS}))"
    asking = asyncio.create_task(ask_worker(eval, f"{begun} and {FOREVER}", seconds=3600))
    worker = int(await asyncio.to_thread(pipe.read_text))
    assert is_running(worker)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    stop_workers()
    assert not is_running(worker)
    assert await ask_worker(eval, "6 * 7", seconds=5) == 42


def test_any_thread_may_ask_and_many_at_once():
    """Loops of several threads share the workers, and each gets its own answer."""
    found = {}

    def run(number):
        async def ask():
            texts = [f"{number} * 1000 + {place}" for place in range(8)]
            return await asyncio.gather(*(ask_worker(eval, text, seconds=5) for text in texts))

        found[number] = asyncio.run(ask())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number * 1000 + place for place in range(8)] for number in range(4)}


def run_script(text, **options):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, **options)


def test_no_process_is_left_behind():
    """A program that ends has ended its workers, also in the middle of work; and nothing is written about it."""
    text = SCRIPT + (
        "import threading\n"
        f"threading.Thread(target=call_worker, args=(eval, {FOREVER!r}), kwargs={{'seconds': 0.2}}).start()\n"
        "threading.excepthook = print\n"
    )
    ended = run_script(text)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not is_running(int(ended.stdout.split()[0]))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for another's child")
@pytest.mark.parametrize("last", ["input()", f"call_worker(eval, {FOREVER!r}, seconds=0.5)"])
def test_a_worker_outlives_no_killed_caller(last):
    """A caller that is killed cannot end its workers: an idle one notices, a busy one runs out of time."""
    caller = subprocess.Popen([sys.executable, "-c", SCRIPT + last], stdin=-1, stdout=-1, text=True)
    worker = int(caller.stdout.readline())
    handle = os.pidfd_open(worker)
    caller.send_signal(signal.SIGKILL)
    caller.communicate()
    ended = select.select([handle], [], [], 60)[0]
    if not ended:
        os.kill(worker, signal.SIGKILL)
    os.close(handle)
    assert ended


def test_a_forked_process_has_workers_of_its_own():
    """Whoever forks does not share the pipes with its child, so no answer goes to the wrong one."""
    text = SCRIPT + (
        "child = os.fork()\n"
        "print(call_worker(eval, \"__import__('os').getpid()\", seconds=5), flush=True)\n"
        "child and os.waitpid(child, 0)\n"
    )
    ended = run_script(text)
    first, *later = map(int, ended.stdout.split())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert first in later
    assert len(set(later)) == 2
    assert not any(map(is_running, later))
