"""A group of ours whose answers come from outside is played and recorded as by a policy."""

import asyncio
import contextlib
import json

import pytest

import rolltrace
from rolltrace.bridges.stepping import SteppedGroup
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.registry import load_env
from rolltrace.errors import ContextOverflowError, InputError, RolltraceError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Status
from stage import Stage

OWN = ("id", "session", "started_at", "ended_at", "policy", "seconds", "crc")
"""Fields of a rollout that differ between two plays."""


def builder_of(env, episodes=3, **args):
    return load_env(env, args).builder(0, episodes=episodes, seed=0)


async def answer_all(group, policy):
    """Answer every rollout with a policy, as a framework would: all at once."""

    async def play(rollout):
        while (request := await rollout.next_request()) is not None:
            rollout.answer(await policy.complete(request))

    await asyncio.gather(*(play(rollout) for rollout in await group.start()))
    return await group.result()


def comparable(sink):
    """The rollouts and scores without what differs between two plays: ids, times and the name of the policy."""
    lines = sorted((json.loads(line.data) for line in sink.lines), key=lambda line: line["index"])
    return without(lines), [score.value for score in sink.scores]


def without(value):
    if isinstance(value, dict):
        return {name: without(item) for name, item in value.items() if name not in OWN}
    return [without(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    "env", ["arithmetic", "calculator", "rubric", "preference", "guess_number", "twenty_questions"]
)
async def test_the_record_is_that_of_a_policy(env):
    """Turns, rewards, reward data, grades and stop reasons equal those of a run with the same answers."""
    policy = NoisyPolicy()
    roles = {"grader": NoisyPolicy(), "answerer": NoisyPolicy()}
    stepped, played = rolltrace.MemorySink("run"), rolltrace.MemorySink("run")
    limits = Limits(max_turns=5)
    result = await answer_all(SteppedGroup(builder_of(env), run=stepped, roles=roles, limits=limits), policy)
    runner = rolltrace.Runner(policy, roles=roles, sink=played, limits=limits)
    async with contextlib.aclosing(runner.play([builder_of(env)])) as results:
        expected = [one async for one in results]
    assert comparable(stepped) == comparable(played)
    assert [result.rewards] == [one.rewards for one in expected]


async def test_rewards_are_known_step_by_step():
    """Between two requests the reward of the step before is known, and at the end the outcome."""
    group = SteppedGroup(builder_of("calculator", episodes=1))
    (rollout,) = await group.start()
    seen = []
    while (request := await rollout.next_request()) is not None:
        seen.append(list(rollout.rewards))
        rollout.answer(await NoisyPolicy().complete(request))
    result = await group.result()
    assert [len(rewards) for rewards in seen] == list(range(len(seen)))
    assert rollout.outcome["reward"] == result.members[0].reward == sum(rollout.rewards)
    assert rollout.id == result.members[0].id


async def test_an_answer_can_fail():
    """A failed policy and a prompt that does not fit are recorded on their own rollouts."""
    group = SteppedGroup(builder_of("arithmetic"))
    failed, too_long, fine = await group.start()
    for rollout in (failed, too_long, fine):
        await rollout.next_request()
    failed.fail(RuntimeError("the server is gone"))
    too_long.fail(ContextOverflowError("9,000 tokens do not fit"))
    fine.answer("I do not know")
    members = (await group.result()).members
    assert [member.status for member in members] == [Status.ERROR, Status.OK, Status.OK]
    assert members[0].error.message == "the server is gone"
    assert [member.stop_reason for member in members] == ["error", "context_overflow", "completed"]


async def test_an_answer_after_the_end_does_not_count():
    """A rollout that has timed out takes no answer, and its next request is None."""
    group = SteppedGroup(builder_of("arithmetic", episodes=1), limits=Limits(timeout=0.01))
    (rollout,) = await group.start()
    await rollout.next_request()
    assert (await group.result()).members[0].stop_reason == "timeout"
    rollout.answer("42")
    assert await rollout.next_request() is None


class Table(Env):
    """One seat of a game in which every seat says one thing."""

    async def initial_observation(self):
        return Observation([Message("user", "Say something.")])

    async def step(self, completion):
        return StepResult(1.0, done=True, extra={"said": completion.message.content})


async def test_seats_with_a_policy_of_their_own_are_not_answered_from_outside():
    """In a game the framework plays the seats that no other policy plays, under their own indexes."""
    sink = rolltrace.MemorySink()
    stage = Stage(lambda number: [Table(), Table()], episodes=2, seats=2)
    group = SteppedGroup(stage, run=sink, roles={"seat0": ScriptedReplies(["inside"])})
    for rollout in await group.start():
        await rollout.next_request()
        rollout.answer(f"outside {rollout.index}")
    await group.result()
    said = {rollout.index: rollout.steps[0].extra["said"] for rollout in sink.rollouts}
    assert said == {0: "inside", 1: "outside 1", 2: "inside", 3: "outside 3"}


async def test_a_role_without_a_policy_is_named():
    """The framework answers for its own policy only: a grader needs one of its own."""
    group = SteppedGroup(builder_of("rubric", episodes=1))
    result = await answer_all(group, NoisyPolicy())
    assert "The role 'grader' needs a policy of its own: pass roles={'grader': …}" in result.members[0].error.message


async def test_a_closed_group_is_recorded_as_cancelled():
    """What is still being played when the group is closed is in the record, and waiting for it ends."""
    sink = rolltrace.MemorySink()
    group = SteppedGroup(builder_of("arithmetic", episodes=2), run=sink)
    first, second = await group.start()
    await first.next_request()
    await group.close()
    assert [rollout.status for rollout in sink.rollouts] == [Status.CANCELLED] * 2
    assert await first.next_request() is None
    assert await second.next_request() is None


async def test_misuse_is_refused():
    """An answer without a request, a second start, and a result before the start."""
    group = SteppedGroup(builder_of("arithmetic", episodes=1))
    with pytest.raises(InputError, match="call `start` first"):
        await group.result()
    (rollout,) = await group.start()
    with pytest.raises(InputError, match="has no request to answer"):
        rollout.answer("42")
    with pytest.raises(InputError, match="played once"):
        await group.start()
    await group.close()


async def test_a_builder_that_cannot_be_played_is_an_error():
    """A group that cannot be played ends its rollouts with the reason, instead of letting them wait."""
    builder = builder_of("arithmetic", episodes=1)
    builder.task = 5
    group = SteppedGroup(builder)
    (rollout,) = await group.start()
    with pytest.raises(RolltraceError, match="was not played to an end") as raised:
        await rollout.next_request()
    assert "task" in str(raised.value.__cause__)
