"""Limits are checked in the order that the design gives, each with its own numbers."""

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import StopReason
from stage import Meddling, Remembering, Stage, never, play, recorded, said, skip_time

ORDER = [
    ("timeout", StopReason.TIMEOUT),
    ("max_turns", StopReason.MAX_TURNS),
    ("context_length", StopReason.CONTEXT_OVERFLOW),
    ("max_total_tokens", StopReason.MAX_TOTAL_TOKENS),
    ("max_sampled_tokens", StopReason.MAX_SAMPLED_TOKENS),
]
REACHED = {"timeout": 600, "max_turns": 1, "context_length": 10, "max_total_tokens": 9, "max_sampled_tokens": 2}


@pytest.mark.parametrize("first", range(len(ORDER)))
async def test_the_first_limit_in_the_order_is_the_one_that_stops(tmp_path, first):
    """If several limits are reached at once, the first in the order is the stop reason."""

    async def hour(turn, completion, result):
        if first == 0:
            skip_time(3600)

    limits = Limits(**{name: REACHED[name] for name, _ in ORDER[first:]})
    policy = Remembering(said("I look."), tokens=lambda request: 5 if request.step == 0 else 1000)
    if first > 3:
        policy = Remembering(said("I look."))
    stage = Stage(lambda _: Meddling(turns=9))
    await play(tmp_path / "run", stage, policy, limits=limits, hooks=Hooks(after_step=hour))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.stop_reason == ORDER[first][1]
    assert len(rollout.steps) == 1


async def test_the_deadline_is_checked_before_sampling(tmp_path):
    """A deadline that passed without an await is noticed before the policy is asked again."""
    policy = Remembering(said("x"))

    class Busy(Meddling):
        async def step(self, message):
            skip_time(3600)
            return await super().step(message)

    await play(tmp_path / "run", Stage(lambda _: Busy(turns=9)), policy, limits=Limits(timeout=600))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.stop_reason == StopReason.TIMEOUT
    assert [len(sent) for sent in policy.sent.values()] == [1]


@pytest.mark.parametrize(("budget", "steps"), [(18, 1), (19, 2)])
async def test_total_tokens_count_the_next_prompt(tmp_path, budget, steps):
    """A request that would exceed the total is not made: 7 + 2 tokens so far, 9 in the next prompt."""
    policy = Remembering(said("one two"), said("x"), tokens=lambda request: [0, 9, 99][request.step])
    stage = Stage(lambda _: Meddling(turns=9))
    await play(tmp_path / "run", stage, policy, limits=Limits(max_total_tokens=budget))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.stop_reason, len(rollout.steps)) == (StopReason.MAX_TOTAL_TOKENS, steps)


@pytest.mark.parametrize(
    ("limits", "sampling", "overflows"),
    [
        (Limits(), Sampling(), False),
        (Limits(), Sampling(max_tokens=10), False),
        (Limits(), Sampling(max_tokens=11), True),
        (Limits(generation_reserve=11), Sampling(), True),
        (Limits(generation_reserve=10), Sampling(max_tokens=99), False),
        (Limits(context_length=90), Sampling(), True),
        (Limits(context_length=91), Sampling(), False),
    ],
)
async def test_the_context_keeps_room_for_the_answer(tmp_path, limits, sampling, overflows):
    """90 tokens of prompt in a context of 100: the reserve is the limit's, else the sampling's, else one token."""
    policy = Remembering(said("x"), context_length=100, tokens=lambda request: 90)
    await play(tmp_path / "run", Stage(lambda _: Meddling(turns=1)), policy, limits=limits, sampling=sampling)
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.stop_reason == StopReason.CONTEXT_OVERFLOW) == overflows


async def test_a_layer_that_answers_the_time_out_with_its_own_error_timed_out(tmp_path):
    """An exception that an env raises when it is interrupted is a note on the time-out, not a failure."""

    class Stubborn(Meddling):
        async def step(self, message):
            try:
                await never()
            finally:
                raise RuntimeError("I was interrupted")

    await play(tmp_path / "run", Stage(lambda _: Stubborn()), Remembering(said("x")), limits=Limits(timeout=600))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.stop_reason, rollout.error, rollout.reward) == (StopReason.TIMEOUT, None, 0.0)
    assert any("RuntimeError: I was interrupted" in note.message for note in rollout.notes)


class Changing(Env):
    """Offers different tools and stop sequences at every turn."""

    def __init__(self):
        self.turn = 0

    async def initial_observation(self):
        return self.show()

    async def step(self, completion):
        self.turn += 1
        return StepResult(0.0, done=self.turn == 3, observation=self.show())

    def show(self):
        tool = {"name": f"tool{self.turn // 2}", "description": "", "parameters": {}, "strict": True}
        return Observation([Message("user", "Go.")], tools=[tool], stop=["END", f"STOP{self.turn}"])


async def test_tools_and_stop_sequences_are_those_of_the_turn(tmp_path):
    """Each step has the tools and the sampling of its turn; repeated sets are stored once."""
    asked = []

    def answer(request):
        asked.append((request.tools[0].name, request.sampling.stop))
        return said("x")

    sampling = Sampling(temperature=0.5, stop=("END",))
    await play(tmp_path / "run", Stage(lambda _: Changing()), Remembering(answer), sampling=sampling)
    [rollout] = recorded(tmp_path / "run")
    assert asked == [("tool0", ("END", "STOP0")), ("tool0", ("END", "STOP1")), ("tool1", ("END", "STOP2"))]
    assert [step.tools for step in rollout.steps] == [0, 0, 1]
    assert [[tool.name for tool in tools] for tools in rollout.tools] == [["tool0"], ["tool1"]]
    assert [rollout.sampling[step.sampling].stop for step in rollout.steps] == [stop for _, stop in asked]
    assert {settings.temperature for settings in rollout.sampling} == {0.5}
    assert len(rollout.notes) == 2  # about `strict`, which is not recorded: one note per tool, not per turn


async def test_each_step_has_the_version_that_answered(tmp_path):
    """A policy may change while it plays: the completion's version counts, else the policy's."""
    policy = Remembering(said("x", policy_version=7), said("y"))
    await play(tmp_path / "run", Stage(lambda _: Meddling(turns=2)), policy)
    [rollout] = recorded(tmp_path / "run")
    assert [step.policy_version for step in rollout.steps] == [7, 3]
    assert rollout.policy_version == 3
