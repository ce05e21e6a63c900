"""What an environment does outside the event loop, or to it."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, SingleUse, StepResult
from rolltrace.testing.check_env import check_env
from rolltrace.testing.conformance import user_object
from rolltrace.trace.message import Message

STARTED = []
"""What the environments below started and left, for the test to end."""
GROWN = []


class Still(Env):
    """An env of one turn without faults."""

    def __init__(self):
        self.life = SingleUse()

    async def initial_observation(self):
        self.life.start()
        return Observation([Message("user", "Your move?")])

    async def step(self, completion):
        self.life.require_active()
        self.life.end()
        return StepResult(1.0, True)


@dataclass
class Group(EnvGroupBuilder):
    kind: type
    env: str = "beside"
    task: str = "one"

    async def make_episode(self, number):
        return [self.kind()]


class Threaded(Still):
    """Waits in a thread of its own until it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    async def initial_observation(self):
        self.thread = threading.Thread(target=self.released.wait, name="pulse", daemon=True)
        self.thread.start()
        STARTED.append(self.released)
        return await super().initial_observation()


class ThreadedAndTidy(Threaded):
    async def close(self):
        self.released.set()


class WithChild(Still):
    async def initial_observation(self):
        self.child = start_child()
        STARTED.append(self.child)
        return await super().initial_observation()


class WithChildAndTidy(WithChild):
    async def close(self):
        if hasattr(self, "child"):
            end(self.child)


class SharedThread(Still):
    """Uses a thread that all envs share, as a library's would be."""

    async def initial_observation(self):
        if not STARTED:
            STARTED.append(threading.Event())
            threading.Thread(target=STARTED[0].wait, daemon=True).start()
        return await super().initial_observation()


class GrowingPool(SharedThread):
    """Adds a thread to the shared ones at every fourth play."""

    async def initial_observation(self):
        GROWN.append(self)
        if len(GROWN) % 4 == 0:
            STARTED.append(threading.Event())
            threading.Thread(target=STARTED[-1].wait, daemon=True).start()
        return await super().initial_observation()


class KillsChild(WithChild):
    """Kills its child process without waiting for it."""

    async def close(self):
        if hasattr(self, "child"):
            self.child.kill()


class KeepsThread(Group):
    """The builder's own thread, which `cleanup` does not end."""

    async def make_episode(self, number):
        if not hasattr(self, "released"):
            self.released = threading.Event()
            STARTED.append(self.released)
            threading.Thread(target=self.released.wait, name="server", daemon=True).start()
        return [Still()]

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "released"}


class KeepsThreadAndTidies(KeepsThread):
    async def cleanup(self):
        if hasattr(self, "released"):
            self.released.set()


def start_child():
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def end(child):
    child.stdin.close()
    child.kill()
    child.wait()


@pytest.fixture(autouse=True)
def started():
    yield
    for one in STARTED:
        one.set() if isinstance(one, threading.Event) else end(one)
    STARTED.clear()
    GROWN.clear()


def only(builder, **arguments):
    """The only violation, asserted to be one."""
    found = check_env(builder, **arguments)
    assert len(found) == 1, "\n".join(map(str, found)) or "nothing was found"
    return found[0]


@pytest.mark.parametrize(
    ("builder", "seen"),
    [
        (Group(Threaded), "3 threads of 3 plays (style: given answers) were still running"),
        (KeepsThread(Still), "3 threads of 3 plays (style: given answers) were still running"),
        (Group(WithChild), "3 child processes of 3 plays (style: given answers) were still running"),
    ],
    ids=["a thread of the env", "a thread of the builder", "a child process"],
)
def test_leftover_threads_and_processes_are_found(builder, seen):
    """Threads and processes that outlive `close` and `cleanup` are named, with what to do about them."""
    if "processes" in seen and not sys.platform.startswith("linux"):
        pytest.skip("other systems do not list the children of a process")
    violation = only(builder, answers=["Go."], seconds=0.1)
    assert violation.rule == "nothing-running"
    assert violation.message.startswith(seen)
    assert violation.fix.startswith("end in `close`, and wait for, all ")


@pytest.mark.parametrize("kind", [ThreadedAndTidy, WithChildAndTidy, KillsChild, SharedThread, GrowingPool])
def test_ended_or_shared_threads_are_no_leftovers(kind):
    """Threads that `close` ends, and those that a library starts occasionally and keeps, are accepted."""
    assert check_env(Group(kind), answers=["Go."]) == []


def test_what_cleanup_ends_is_no_leftover():
    """A builder may keep something for all its episodes if `cleanup` ends it."""
    assert check_env(KeepsThreadAndTidies(Still), answers=["Go."]) == []


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


CLOCK = Clock()


class Blocks(Still):
    """Like a `time.sleep` or a long computation in `step`: time passes without an await."""

    async def step(self, completion):
        CLOCK.now += 0.8
        return await super().step(completion)


class BlocksInPieces(Still):
    """Computes as long, and awaits in between."""

    async def step(self, completion):
        for _ in range(4):
            CLOCK.now += 0.2
            await asyncio.sleep(0)
        return await super().step(completion)


class BlocksOnce(Still):
    """Only the first call is slow, as when a module is imported."""

    async def step(self, completion):
        if not STARTED:
            STARTED.append(threading.Event())
            CLOCK.now += 10
        return await super().step(completion)


class BlocksWhenMade(Group):
    async def make_episode(self, number):
        CLOCK.now += 2
        return await super().make_episode(number)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(user_object, "clock", CLOCK)


@pytest.mark.parametrize(
    ("builder", "method", "seen"),
    [
        (Group(Blocks), "step", "`step` at turn 0 of `Blocks` (style: text) blocked the event loop for 0.8 s or more"),
        (BlocksWhenMade(Still), "make_episode", "`BlocksWhenMade.make_episode(0)` blocked the event loop for 2.0 s"),
    ],
    ids=["step", "make_episode"],
)
def test_a_method_that_blocks_the_loop_is_named(clock, builder, method, seen):
    """A method that takes long in each call without awaiting is reported, since it blocks every other rollout."""
    violation = only(builder)
    assert violation.rule == "blocking"
    assert violation.message.startswith(seen)
    assert f"await in `{method}` everything that waits" in violation.fix
    assert "`asyncio.to_thread`" in violation.fix


@pytest.mark.parametrize("kind", [BlocksInPieces, BlocksOnce])
def test_a_loop_that_is_blocked_shortly_or_once_is_fine(clock, kind):
    """Only a method that blocks in each call is reported, so that a busy machine causes no finding."""
    assert check_env(Group(kind)) == []
