"""One prompt without a score."""

import pickle

import pytest

from rolltrace.envs.prompt_only import PromptOnlyEnv, PromptOnlyGroup
from rolltrace.errors import EnvError, InputError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Termination
from stage import Counting, Remembering, said

CHAT = [{"role": "system", "content": "Be brief."}, Message("user", "Hello.")]


def group(**fields):
    return PromptOnlyGroup(**{"env": "own", "task": "t", "messages": CHAT, **fields})


async def play(builder, policy, **settings):
    sink = MemorySink()
    async for _ in Runner(policy, sink=sink, **settings).play([builder]):
        pass
    return sink.rollouts


@pytest.mark.parametrize(
    ("termination", "stop_reason", "well_formed"),
    [
        (Termination.EOS, "completed", 1.0),
        (Termination.STOP_SEQUENCE, "completed", 1.0),
        (Termination.TOOL_CALLS, "completed", 1.0),
        (Termination.LENGTH, "max_tokens", 0.0),
        (Termination.MALFORMED, "completed", 0.0),
    ],
)
async def test_whatever_comes_is_taken(termination, stop_reason, well_formed):
    """The reward is 0 on every way out that the env takes; whether the response ended by itself is a metric."""
    (rollout,) = await play(group(), Remembering(said("Hi.", termination)))
    (step,) = rollout.steps
    assert (rollout.reward, rollout.stop_reason, rollout.stopped_by) == (0.0, stop_reason, "env")
    assert (step.reward, step.reward_data, step.metrics) == (0.0, {}, {"well_formed": well_formed})
    assert step.trace.prompt == (Message("system", "Be brief."), Message("user", "Hello."))
    assert step.trace.policy_response == Message("assistant", "Hi.")
    assert rollout.conversation == (*step.trace.prompt, step.trace.policy_response)


async def test_a_cut_is_named_by_the_env():
    """The env itself reports `max_tokens` for a truncated response, so that it works without a runner."""
    env = PromptOnlyEnv("q")
    await env.initial_observation()
    result = await env.step(said("x", Termination.LENGTH))
    assert (result.done, result.stop_reason) == (True, "max_tokens")


async def test_a_prompt_that_does_not_fit():
    """An overflow ends the rollout as in every env."""
    (rollout,) = await play(group(), Remembering(said("x"), tokens=lambda request: 9), limits=Limits(context_length=8))
    assert (rollout.stop_reason, rollout.reward, rollout.steps) == ("context_overflow", -0.1, ())


async def test_a_grader_scores_it():
    """The grader's grade is the whole reward, also for a truncated response."""
    (rollout,) = await play(group(grader=Counting(0.5)), Remembering(said("x", Termination.LENGTH)))
    assert (rollout.reward, rollout.grade.reward) == (0.5, 0.5)


async def test_a_text_is_one_message():
    """A prompt given as a text is a user's message."""
    observation = await PromptOnlyEnv("Hello.").initial_observation()
    assert observation.messages == (Message("user", "Hello."),)


def test_an_empty_prompt_is_refused():
    """A prompt without messages is refused."""
    with pytest.raises(InputError, match="at least one message, got none"):
        PromptOnlyEnv([])


async def test_an_env_plays_once():
    """Misuse is an error that says what to do."""
    env = PromptOnlyEnv("q")
    with pytest.raises(EnvError, match="call that first"):
        await env.step(said("x"))
    await env.initial_observation()
    with pytest.raises(EnvError, match="make a new one"):
        await env.initial_observation()
    await env.step(said("x"))
    with pytest.raises(EnvError, match="make a new one"):
        await env.step(said("x"))


def test_builders_pickle_and_keep_the_contract():
    """Builders pickle, and `check_env` finds no violation."""
    builder = group(episodes=2, tags=("a",), task_data={"k": 1})
    assert pickle.loads(pickle.dumps(builder)) == builder
    assert check_env(builder) == []
