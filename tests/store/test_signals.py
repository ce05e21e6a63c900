"""Signal handlers and exceptions at any moment: nothing hangs, and the ledger adds up."""

import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rolltrace.store.reader import RunReader

_HANGS_AFTER = 600
"""Seconds; far more than a program takes on a busy machine."""

PROLOGUE = """
import os, signal, sys, threading
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording

def play(run, index=0):
    with run.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step("1 + 1?", "2", 1.0)
"""


def start(tmp_path, body, name="run"):
    """Starts a program on its own run."""
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(body), str(tmp_path / name)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(program):
    """Waits for the end of a program, which must not hang."""
    try:
        said, errors = program.communicate(timeout=_HANGS_AFTER)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        pytest.fail("the program hangs")
    return program.returncode, said, errors


def assert_adds_up(path):
    """Asserts that the ledger agrees with the lines on disk; returns the ledger."""
    reader = RunReader(path)
    rollouts = [rollout.id for rollout in reader.rollouts()]
    assert reader.read_errors == ()
    [ledger] = reader.ledgers().values()
    assert ledger.is_balanced
    assert ledger.recorded == len(rollouts) == len(set(rollouts))
    return ledger


ACTIONS = {
    "flush": "run.flush(); sys.exit()",
    "close": "run.close(); sys.exit()",
    "record": "play(run); run.flush(); sys.exit()",
    "ledger": "assert run.ledger.is_balanced; run.flush(); assert run.ledger.is_balanced; sys.exit()",
}


def handle_at_random_moments(tmp_path, action, count, at_once=6):
    """Programs that record in a tight loop and are sent SIGTERM, on which their handler runs the action."""
    body = f"""
        run = create_run(sys.argv[1])
        def handle(*_):
            {action}
        signal.signal(signal.SIGTERM, handle)
        for index in range(1000):
            play(run, index)
        print("ready", flush=True)
        while True:
            play(run)
        """
    moment = random.Random(count)
    for first in range(0, count, at_once):
        names = [f"run{number}" for number in range(first, min(first + at_once, count))]
        programs = [start(tmp_path, body, name) for name in names]
        for program in programs:
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            time.sleep(moment.random() / 50)  # so that each is interrupted at another place
            program.send_signal(signal.SIGTERM)
        for program, name in zip(programs, names, strict=True):
            status, _, errors = finish(program)
            assert status == 0, errors
            assert assert_adds_up(tmp_path / name).closed


@pytest.mark.parametrize("action", ACTIONS)
def test_handler_at_a_random_moment(tmp_path, action):
    """A handler that flushes, closes, records or reads the ledger returns, whatever it has interrupted."""
    handle_at_random_moments(tmp_path, ACTIONS[action], count=3)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["flush", "close"])
def test_handler_at_two_hundred_random_moments(tmp_path, action):
    """The same in two hundred processes."""
    handle_at_random_moments(tmp_path, ACTIONS[action], count=100)


EVERY_MOMENT = """
    import rolltrace.store
    folder = os.path.dirname(rolltrace.store.__file__)

    class At:
        '''Does something at one opcode of a folder's code, on top of the frame that is at work, as a handler does.'''
        def __init__(self, moment, action):
            self.left, self.action = moment, action
        def __call__(self, frame, event, argument):
            if not frame.f_code.co_filename.startswith(folder):
                return None
            frame.f_trace_opcodes = True
            return self.at
        def at(self, frame, event, argument):
            if event == "opcode":
                self.left -= 1
                if self.left == 0:
                    self.action()
            return self.at

    def interrupted(work, moment, action):
        '''Do the work, and the action at this moment of it; whether the moment came.'''
        at = At(moment, action)
        sys.settrace(at)
        try:
            work()
        finally:
            sys.settrace(None)
        return at.left <= 0
"""


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", ["run.flush()", "play(run) or run.flush()", "run.ledger", "run.close()"])
def test_handler_at_every_moment(tmp_path, action, every):
    """Whatever opcode of recording, flushing or closing a handler interrupts, it returns, and each line is there once.

    The normal suite tries a sample of the opcodes.
    """
    every *= 5 if "close" in action else 1  # each takes a session of its own
    program = start(
        tmp_path,
        EVERY_MOMENT
        + f"""
    run = create_run(sys.argv[1])
    for work in (lambda: play(run), lambda: run.flush(), lambda: run.score("a", "b", 1.0), lambda: run.close()):
        moment = 1
        while interrupted(work, moment, lambda: {action}):
            moment += {every}
            if run.ledger.closed:
                run = create_run(sys.argv[1], join=True)
        print(moment, flush=True)
        run.close()
        run = create_run(sys.argv[1], join=True)
    run.close()
    """,
    )
    status, said, errors = finish(program)
    assert status == 0, errors
    assert min(map(int, said.split())) > 10
    reader = RunReader(tmp_path / "run")
    ids = [rollout.id for rollout in reader.rollouts()]
    assert len(ids) == len(set(ids))
    assert sum(ledger.recorded for ledger in reader.ledgers().values()) == len(ids)
    assert all(ledger.is_balanced and ledger.closed for ledger in reader.ledgers().values())


def test_exception_at_every_moment(tmp_path):
    """A KeyboardInterrupt at any opcode of recording propagates; the rollout is recorded once, open or not begun."""
    program = start(
        tmp_path,
        EVERY_MOMENT
        + """
    def interrupt():
        raise KeyboardInterrupt

    folder = ""  # all code: what is called by a weak reference, say, would swallow the exception
    run = create_run(sys.argv[1])
    moment, came = 1, True
    while came:
        before = run.ledger.dispatched
        try:
            came = interrupted(lambda: play(run), moment, interrupt)
            assert not came, f"swallowed at {moment}"
        except KeyboardInterrupt:
            pass
        assert run.ledger.dispatched - before in (0, 1), moment
        moment += 1
    assert run.flush()
    print(moment, run.ledger.in_flight, flush=True)
    run.close()
    """,
    )
    status, said, errors = finish(program)
    assert status == 0, errors
    moments, in_flight = map(int, said.split())
    ledger = assert_adds_up(tmp_path / "run")
    assert (ledger.in_flight, ledger.dropped) == (in_flight, {})
    assert moments > 300
    assert ledger.recorded > moments * 0.4
    assert errors == ""


def test_three_thousand_keyboard_interrupts(tmp_path):
    """A loop that continues after each Ctrl-C keeps a ledger that adds up, and each line once."""
    program = start(
        tmp_path,
        """
        run = create_run(sys.argv[1])
        count = 0

        def interrupt(number, frame):
            global count
            while frame is not None and frame.f_code is not work.__code__:
                frame = frame.f_back
            if frame is not None:
                count += 1
                raise KeyboardInterrupt

        def work():
            while True:
                play(run)
                run.ledger

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while count < 3000:
            try:
                work()
            except KeyboardInterrupt:
                pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        for index in range(100):
            play(run, index)
        assert run.flush()
        assert run.ledger.is_balanced
        run.close()
        """,
    )
    status, _, errors = finish(program)
    assert status == 0, errors
    ledger = assert_adds_up(tmp_path / "run")
    assert ledger.closed
    assert ledger.recorded >= 100
    assert (ledger.dropped, ledger.unrecordable) == ({}, {})


def test_log_lock_that_the_interrupted_thread_holds(tmp_path):
    """A handler that flushes while the interrupted thread is logging does not wait for that thread's lock."""
    program = start(
        tmp_path,
        """
        import logging
        handler = logging.StreamHandler()
        logging.getLogger().addHandler(handler)
        run = create_run(sys.argv[1])
        play(run)
        run.flush()
        os.rename(os.path.join(sys.argv[1], "rollouts"), os.path.join(sys.argv[1], "hidden"))
        for name in os.listdir(os.path.join(sys.argv[1], "hidden")):
            os.unlink(os.path.join(sys.argv[1], "hidden", name))
        signal.signal(signal.SIGUSR1, lambda *_: print(run.flush(), flush=True))
        with handler.lock:
            play(run)  # cannot be written: the writer has something to log
            signal.raise_signal(signal.SIGUSR1)
        os._exit(0)
        """,
    )
    assert finish(program)[:2] == (0, "False\n")


# No thread can be started at first: callers do the work

LATE_THREADS = """
    import _thread
    from rolltrace.store import disk_thread

    class Threads:
        '''Refuses to start threads until it allows it.'''
        def __init__(self):
            self.are_allowed = False
            self.real = _thread.start_new_thread
            self.ended = threading.Event()
            _thread.start_new_thread = self.start
        def start(self, action, arguments):
            if not self.are_allowed:
                raise RuntimeError("can't start new thread")
            def run():
                action(*arguments)
                self.ended.set()
            return self.real(run, ())

    threads = Threads()
"""


def test_thread_that_starts_while_a_caller_works(tmp_path):
    """A thread that becomes available while a caller flushes in its place takes over after that."""
    program = start(
        tmp_path,
        LATE_THREADS
        + """
    run = create_run(sys.argv[1])
    play(run, 0)
    real, others = os.fsync, []

    def fsync(descriptor):
        if not others:
            threads.are_allowed = True
            others.append(threading.Thread(target=run.flush))
            others[0].start()
            threads.ended.wait(1)  # the new thread must not give up while this one works
        real(descriptor)

    os.fsync = fsync
    run.flush()
    others[0].join()
    play(run, 1)
    print(run.flush(), run.ledger.recorded)
    run.close()
    """,
    )
    status, said, errors = finish(program)
    assert (status, said) == (0, "True 2\n"), errors
    assert assert_adds_up(tmp_path / "run").complete


@pytest.mark.parametrize("can_start", [True, False])
@pytest.mark.parametrize("action", ["play(run, 1) or run.flush()", "run.close()"])
def test_handler_at_moments_of_a_caller_that_works(tmp_path, action, can_start):
    """A handler that interrupts a caller's writing returns, whether or not a thread can be started by then."""
    program = start(
        tmp_path,
        EVERY_MOMENT
        + LATE_THREADS
        + f"""
    def act():
        threads.are_allowed = {can_start}
        {action}

    disk_thread._INTERRUPTED_WAIT_SECONDS = 0.001
    disk_thread.DiskThread.write_late_losses.__defaults__ = (0.001,)
    for work in (lambda: run.flush(), lambda: run.close()):
        moment, came = 1, True
        while came:
            threads.are_allowed = False
            run = create_run(sys.argv[1], join=os.path.exists(sys.argv[1]))
            play(run, 0)
            came = interrupted(work, moment, act)
            run.close()
            assert run.ledger.is_balanced and run.ledger.in_flight == 0, (moment, run.ledger)
            assert set(run.ledger.dropped) <= {{"closed"}}, (moment, run.ledger)
            moment += 23  # each takes a session of its own
        print(moment, flush=True)
    """,
    )
    status, said, errors = finish(program)
    assert status == 0, errors
    assert min(map(int, said.split())) > 1000
    reader = RunReader(tmp_path / "run")
    ids = [rollout.id for rollout in reader.rollouts()]
    assert len(ids) == len(set(ids))
    assert sum(ledger.recorded for ledger in reader.ledgers().values()) == len(ids)
    assert all(ledger.is_balanced and ledger.closed for ledger in reader.ledgers().values())
