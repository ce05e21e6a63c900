import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.errors import ContextOverflowError
from rolltrace.graders.story import common_prompt, messages_after_prompt, messages_in_order
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.message import Message
from stage import MEDDLINGS, Meddling, Remembering, Stage, said


class Forgetting(Env):
    """Shows each turn a prompt of its own, in which nothing said before is left."""

    def __init__(self, name="one"):
        self.name = name
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("system", "Rules."), Message("user", f"Start, {self.name}.")])

    async def step(self, completion):
        self.turn += 1
        following = Observation([Message("user", f"Turn {self.turn}.")], replaces_history=True)
        return StepResult(0.0, self.turn == 2, following)


async def play(*envs, policy=None):
    sink = MemorySink()
    stage = Stage(lambda number: envs[number], episodes=len(envs))
    policy = policy or Remembering(said("first"), said("second"), said("third"))
    async for _ in Runner(policy, sink=sink).play([stage]):
        pass
    return sorted(sink.rollouts, key=lambda rollout: rollout.index)


def texts(messages):
    return [message.content for message in messages]


async def test_a_conversation_that_grows_is_its_own_story():
    """Then nothing is left out, and nothing told twice."""
    [rollout] = await play(Meddling("not at all"))
    assert messages_in_order(rollout) == rollout.conversation
    assert messages_after_prompt(rollout, rollout.steps[0].trace.prompt) == rollout.conversation[5:]


async def test_a_history_that_is_replaced_is_told_in_full():
    """Answers that no later prompt holds have their place."""
    [rollout] = await play(Forgetting())
    assert texts(messages_in_order(rollout)) == ["Rules.", "Start, one.", "first", "Turn 1.", "second", "Turn 2."]
    assert texts(messages_after_prompt(rollout, rollout.steps[0].trace.prompt)) == [
        "first",
        "Turn 1.",
        "second",
        "Turn 2.",
    ]


@pytest.mark.parametrize("meddling", MEDDLINGS)
async def test_every_answer_is_told_in_order(meddling):
    """Whatever an env does to its history, the story begins with the first prompt and holds each answer."""
    [rollout] = await play(Meddling(meddling))
    story = messages_in_order(rollout)
    first = rollout.steps[0].trace.prompt
    assert story[: len(first)] == first
    answers = [step.trace.policy_response for step in rollout.steps]
    assert [message for message in story if message in answers] == answers


async def test_nobody_answered_nothing_to_tell():
    """A rollout without steps has no story, and shares no prompt."""
    one, other = await play(Meddling(), Meddling(), policy=Remembering(ContextOverflowError("too long")))
    assert (one.steps, messages_in_order(one), common_prompt(one, other)) == ((), (), ())


async def test_what_two_prompts_share():
    """All of it where they play the same task, else how they begin."""
    one, same, other = await play(Forgetting("one"), Forgetting("one"), Forgetting("two"))
    assert texts(common_prompt(one, same)) == ["Rules.", "Start, one."]
    assert texts(common_prompt(one, other)) == ["Rules."]
    assert texts(messages_after_prompt(other, common_prompt(one, other)))[:2] == ["Start, two.", "first"]
