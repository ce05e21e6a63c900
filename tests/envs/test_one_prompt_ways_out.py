"""Every way out that `arithmetic`, `problems` and `reasoning_gym` can take, with hand-computed numbers."""

import asyncio
import importlib.util

import pytest

import rolltrace
from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.problems import ProblemsTasks
from rolltrace.envs.reasoning_gym import ReasoningGymTasks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.stop_reasons import Termination
from stage import Remembering, never, said

pytestmark = pytest.mark.core

EOS, CUT, BROKEN = Termination.EOS, Termination.LENGTH, Termination.MALFORMED


def make(name):
    """A task, a reply that answers it correctly, and one that does not."""
    if name == "arithmetic":
        builder = ArithmeticTasks(2).builder(1, episodes=1, seed=0)  # (4 + 18) * 12
        return builder, "264", "Answer: 264", "Answer: 263"
    if name == "problems":
        return ProblemsTasks().builder(0, episodes=1, seed=0), "9", "14 - 5\n**Answer:** 9", "Answer: 8"
    if importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("needs the extra `reasoning-gym`")
    builder = ReasoningGymTasks("gcd").builder(0, episodes=1, seed=0)
    return builder, builder.reference, f"<answer>{builder.reference}</answer>", "<answer>-7</answer>"


@pytest.fixture(params=["arithmetic", "problems", "reasoning_gym"])
def task(request):
    return make(request.param)


async def play(builder, policy, **settings):
    sink = MemorySink()
    async for _ in Runner(policy, sink=sink, **settings).play([builder]):
        pass
    [rollout] = sink.rollouts
    return rollout


@pytest.mark.parametrize(
    ("reply", "termination", "reward", "correct", "form", "well_formed", "reason"),
    [
        ("right", EOS, 1.0, 1.0, 1.0, 1.0, "completed"),
        ("right", CUT, 0.9, 1.0, 0.0, 0.0, "max_tokens"),
        ("right", BROKEN, 0.9, 1.0, 0.0, 0.0, "completed"),
        ("wrong", EOS, 0.0, 0.0, 1.0, 1.0, "completed"),
        ("wrong", CUT, -0.1, 0.0, 0.0, 0.0, "max_tokens"),
        ("", EOS, -0.1, 0.0, 0.0, 1.0, "completed"),
        ("I think", CUT, -0.1, 0.0, 0.0, 0.0, "max_tokens"),
        ("<think>", BROKEN, -0.1, 0.0, 0.0, 0.0, "completed"),
    ],
)
async def test_replies_of_every_kind(task, reply, termination, reward, correct, form, well_formed, reason):
    """Each reply is scored by `0.1 * (format - 1) + correct`, and each term is a number in the record."""
    builder, reference, right, wrong = task
    text = {"right": right, "wrong": wrong}.get(reply, reply)
    rollout = await play(builder, Remembering(said(text, termination)))
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", reason, "env")
    assert (rollout.reward, rollout.error) == (pytest.approx(reward), None)
    [step] = rollout.steps
    assert step.reward == step.env_reward == pytest.approx(reward)
    assert step.trace.reward_data == {"correct": correct, "format": form, "well_formed": well_formed}
    answered = float(reply in ("right", "wrong"))
    assert step.metrics == {"correct": correct, "format": form, "answered": answered, "unjudged": 0.0}
    assert step.trace.extra["reference"] == reference
    assert (step.trace.extra["answer"] is not None) == (answered == 1.0)
    assert (step.termination, step.trace.policy_response.content) == (termination, text)
    assert rollout.task_data == builder.task_data
    assert rollout.env_args == builder.env_args


async def test_a_first_prompt_that_is_too_long(task):
    """The rollout has no step, and costs what any overflow does."""
    rollout = await play(task[0], Remembering(said("?"), context_length=1, tokens=lambda _: 2))
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", "context_overflow", "runner")
    assert (rollout.reward, rollout.steps) == (pytest.approx(-0.1), ())


async def test_a_policy_that_fails(task):
    """There is no reward, the failure is the policy's, and the prompt is recorded."""
    rollout = await play(task[0], Remembering(ConnectionError("gone")))
    assert (rollout.status, rollout.stop_reason, rollout.reward) == ("error", "error", None)
    assert (rollout.error.layer, rollout.error.type, rollout.error.message) == ("policy", "ConnectionError", "gone")
    assert rollout.pending_messages[-1].content == task[0].question


async def test_a_policy_that_does_not_answer_in_time(task):
    """The rollout ends without a step and without a charge, with the prompt recorded."""
    rollout = await play(task[0], Remembering(never), limits=Limits(timeout=600))
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", "timeout", "runner")
    assert (rollout.reward, rollout.steps) == (0.0, ())
    assert rollout.pending_messages[-1].content == task[0].question


async def test_a_play_that_is_cancelled(task):
    """The rollout is recorded as cancelled, without a reward."""
    asked = asyncio.Event()

    async def wait(request):
        asked.set()
        await asyncio.Event().wait()

    sink = MemorySink()

    async def run():
        async for _ in Runner(Remembering(wait), sink=sink).play([task[0]]):
            pass

    playing = asyncio.create_task(run())
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    [rollout] = sink.rollouts
    assert (rollout.status, rollout.stop_reason, rollout.reward) == ("cancelled", "cancelled", None)


def test_the_contract_is_kept(task):
    """`check_env` finds no violation, with its own answers and with correct ones."""
    builder, _, right, _ = task
    assert rolltrace.check_env(builder) == []
    assert rolltrace.check_env(builder, answers=right) == []
