import asyncio

import pytest

from rolltrace.testing.conformance.guarded_caller import CallTimeouts, CancelPoint, GuardedCaller
from rolltrace.testing.conformance.violations import ViolationLog


class Target:
    def __init__(self):
        self.passed = []
        self.tasks = set()
        self.waiting = asyncio.Event()
        self.caught = False

    async def walk(self, last):
        self.tasks.add(asyncio.current_task())
        for place in range(last):
            await asyncio.sleep(0)
            self.passed.append(place)
        return last

    async def wait_in_tasks(self):
        self.waiting.set()
        await asyncio.gather(*[asyncio.Event().wait() for _ in range(3)])

    async def catch(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.caught = True


@pytest.fixture
async def player():
    player = GuardedCaller(Target(), ViolationLog(), CallTimeouts(5.0))
    yield player
    await player.stop()
    assert player.task.done()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_cancellation_comes_at_the_await_it_is_meant_for(player, at):
    """The cancellation hits exactly the chosen await, and what comes before has been done."""
    point = CancelPoint(at)
    outcome = await player.call("walk", 3, point=point)
    assert player.target.passed == list(range(min(at - 1, 3)))
    assert outcome.cancelled is point.fired is (at <= 3)


async def test_awaits_are_counted_over_several_calls(player):
    """One point serves a whole play: initial observation and steps."""
    point = CancelPoint(5)
    assert (await player.call("walk", 3, point=point)).value == 3
    assert (await player.call("walk", 3, point=point)).cancelled
    assert player.target.passed == [0, 1, 2, 0]


async def test_all_calls_of_a_target_are_made_in_one_task(player):
    """What was entered in one call can be left in another, also after a cancellation."""
    await player.call("walk", 1, point=CancelPoint(1))
    await player.call("walk", 1)
    assert player.target.tasks == {player.task}
    assert player.task.cancelling() == 0


async def test_a_call_is_cancelled_with_its_caller_and_the_next_is_not(player):
    """Cancelling the caller ends the call under way, with the tasks it waits for, and nothing after it."""
    before = asyncio.all_tasks()
    call = asyncio.create_task(player.call("wait_in_tasks"))
    await player.target.waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert asyncio.all_tasks() == before
    assert (await player.call("walk", 2)).value == 2


async def test_a_call_cancelled_before_it_began_is_cancelled_too(player):
    """There is no moment at which a cancellation is lost."""
    call = asyncio.create_task(player.call("catch"))
    await asyncio.sleep(0)  # the call is queued now, and the player has not looked
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert player.target.caught
