"""Numbers that an environment returns are read back equal, as Python numbers."""

import math

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message
from stage import Counting, GradedStage, Remembering, Stage, play, recorded, said

pytestmark = pytest.mark.core


class Giving(Env):
    """An env that returns what the test configures."""

    def __init__(self, reward, numbers):
        self.reward = reward
        self.numbers = numbers

    async def initial_observation(self):
        return Observation([Message("user", "Hi.")])

    async def step(self, completion):
        return StepResult(self.reward, done=True, reward_data=self.numbers, metrics=self.numbers)


PLAIN = {
    "sum": 0.1 + 0.2,
    "nan": math.nan,
    "infinite": math.inf,
    "negative": -math.inf,
    "true": True,
    "false": False,
    "large": 2**63,
    "zero": -0.0,
    "third": 1 / 3,
}


def assert_same(given, found):
    """Asserts equal values of the same types in the same order."""
    assert list(given) == list(found)
    for name, number in given.items():
        assert type(found[name]) is type(number)
        assert repr(found[name]) == repr(number)


async def test_numbers_of_an_env(tmp_path):
    """Reward data and metrics are read back unchanged: no text, no rounding, no null."""
    await play(tmp_path / "run", Stage(lambda _: Giving(0.1 + 0.2, PLAIN)), Remembering(said("x")))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.reward == 0.1 + 0.2
    assert_same(PLAIN, rollout.steps[0].reward_data)
    assert_same(PLAIN, rollout.steps[0].metrics)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 2**63, True])
async def test_rewards_that_are_odd(tmp_path, reward):
    """A reward that is not finite, large or a bool is kept as the float it equals."""
    await play(tmp_path / "run", Stage(lambda _: Giving(reward, {})), Remembering(said("x")))
    [rollout] = recorded(tmp_path / "run")
    for found in (rollout.reward, rollout.reward_so_far, rollout.steps[0].reward, rollout.steps[0].env_reward):
        assert repr(found) == repr(float(reward))


async def test_numpy_numbers_come_back_as_python_numbers(tmp_path):
    """Scalars of numpy become Python numbers on disk: exact, and neither text nor null."""
    numpy = pytest.importorskip("numpy")
    numbers = {
        "half": numpy.float32(0.5),
        "tenth": numpy.float32(0.1),
        "three": numpy.int64(3),
        "no": numpy.bool_(False),
    }
    await play(tmp_path / "run", Stage(lambda _: Giving(numpy.float32(0.1), numbers)), Remembering(said("x")))
    [rollout] = recorded(tmp_path / "run")
    assert_same({name: number.item() for name, number in numbers.items()}, rollout.steps[0].reward_data)
    assert rollout.reward == numpy.float32(0.1).item()
    assert b'"tenth":0.10000000149011612' in next((tmp_path / "run" / "rollouts").iterdir()).read_bytes()


async def test_fractions_of_a_grade_stay_fractions(tmp_path):
    """A grade of a third is read back as a third, in the line and in the group's score."""
    stage = GradedStage(lambda _: Giving(0.0, {}), grader=Counting(1 / 3))
    await play(tmp_path / "run", stage, Remembering(said("x")))
    [rollout] = recorded(tmp_path / "run")
    [score] = RunReader(tmp_path / "run").scores()
    assert rollout.grade.reward == 1 / 3
    assert score.value == 1 / 3 + 100.0
    assert score.data["grade"] == 1 / 3
