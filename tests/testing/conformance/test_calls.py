"""How the check calls an environment: in one task, cancelled at each await, and within a time limit."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, SingleUse, StepResult
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message

CANCELLED = Counter()


class Waiting(Env):
    """Waits at three places of a play of one turn."""

    def __init__(self):
        self.life = SingleUse()

    async def initial_observation(self):
        self.life.start()
        await self.wait("start")
        return Observation([Message("user", "Your move?")])

    async def step(self, completion):
        self.life.require_active()
        await self.wait("first half")
        await self.wait("second half")
        self.life.end()
        return StepResult(1.0, True)

    async def wait(self, place):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            CANCELLED[place] += 1
            raise


@dataclass
class Group(EnvGroupBuilder):
    kind: type
    env: str = "waiting"
    task: str = "one"

    async def make_episode(self, number):
        return [self.kind()]


def test_a_play_is_cancelled_once_at_each_of_its_awaits():
    """Each await of each style is cancelled once, after what comes before it has run."""
    CANCELLED.clear()
    assert check_env(Group(Waiting), answers=["Go."]) == []
    assert CANCELLED == {"start": 1, "first half": 1, "second half": 1}


class OneTask(Waiting):
    """Enters a context at the start that it can leave only in the same task."""

    limit = None

    async def initial_observation(self):
        self.limit = asyncio.timeout(60)
        await self.limit.__aenter__()
        self.task = asyncio.current_task()
        return await super().initial_observation()

    async def close(self):
        if self.limit is not None:
            assert asyncio.current_task() is self.task
            await self.limit.__aexit__(None, None, None)
            self.limit = None


def test_all_calls_of_an_env_are_made_in_one_task():
    """A context that was entered in one call can be left in another, also after a cancellation."""
    assert check_env(Group(OneTask)) == []


class ReturnsLate(Waiting):
    """Returns normally when it is cancelled by the time-out."""

    async def step(self, completion):
        self.life.require_active()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return StepResult(1.0, True)


def test_a_call_that_returns_when_its_time_is_up_hangs():
    """A call that returns a result only because of the time-out still counts as hanging."""
    [violation] = check_env(Group(ReturnsLate), answers=["Go."], seconds=0.05)
    assert str(violation).startswith("hangs: `ReturnsLate.step` was still waiting after 0.05 s")


class NeverStarts(Waiting):
    starts = 0

    async def initial_observation(self):
        NeverStarts.starts += 1
        await asyncio.Event().wait()


def test_an_env_that_hung_is_not_started_again():
    """An env that hung is not played again, since each play would take as long."""
    assert [violation.rule for violation in check_env(Group(NeverStarts), seconds=0.05)] == ["hangs"]
    assert NeverStarts.starts == 1


class BrokenMap(Mapping):
    """A map with a key that has no value."""

    def __getitem__(self, key):
        raise ZeroDivisionError("read")

    def __iter__(self):
        return iter(["number"])

    def __len__(self):
        return 1


class Unreadable(Waiting):
    async def step(self, completion):
        await super().step(completion)
        return StepResult(1.0, True, metrics=BrokenMap())


def test_a_value_that_cannot_be_read_is_reported():
    """A value that cannot be read would end the rollout in a run too, and the check reports the error."""
    [violation] = check_env(Group(Unreadable))
    assert str(violation) == (
        "plays: the runner recorded a failure of the env: ZeroDivisionError: read; "
        "return plain values that can be read, compared and printed."
    )
