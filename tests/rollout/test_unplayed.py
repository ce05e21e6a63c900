"""Episodes in which there is nothing to play."""

import pytest

from rolltrace.check.check import check_run
from rolltrace.envs.base import Env, Observation, StepResult
from rolltrace.envs.check import check_env
from rolltrace.trace.message import Message
from rolltrace.trace.outcome import Layer, Status
from stage import Case, Remembering, Stage, expect_failure, said


class Unplayed(Env):
    """Is over before it begins."""

    def __init__(self, done=True, stop_reason=None):
        self.result = StepResult(
            0.25, done, Observation([Message("user", "it is over")]), {"won": 1}, metrics={"moves": 3},
            stop_reason=stop_reason,
        )  # fmt: skip

    async def initial_observation(self):
        return self.result

    async def step(self, completion):
        raise AssertionError


@pytest.mark.parametrize("reason", [None, "walkover"])
async def test_an_episode_that_is_over_before_the_first_turn(tmp_path, reason):
    """The policy is not asked; the env's reward is the rollout's, its numbers are metrics, and graders are asked."""
    policy = Remembering(said("never"))
    case = Case(tmp_path, lambda number: Unplayed(stop_reason=reason), policy)
    rollout = await case.play()
    assert policy.sent == {}
    assert (rollout.steps, rollout.pending_prompt, rollout.reward_so_far) == ((), None, 10.25)
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == (Status.OK, reason or "completed", "env")
    assert rollout.metrics == {"won": 1, "moves": 3}
    assert [message.content for message in rollout.conversation] == ["it is over"]
    assert case.group_graded == [110.25]
    assert not [result for result in check_run(tmp_path / "single").results if result.findings]


async def test_a_first_result_that_is_not_done_is_the_envs_failure(tmp_path):
    """Nobody has taken a step yet."""
    case = Case(tmp_path, lambda number: Unplayed(done=False), Remembering(said("never")))
    await case.play()
    expect_failure(case, Layer.ENV, "EnvError")
    assert "done" in case.rollout.error.message


@pytest.mark.parametrize("done", [True, False])
def test_check_env_knows_of_it(done):
    """A result that is done may stand in place of the first observation; one that is not is told of."""
    found = [
        violation for violation in check_env(Stage(lambda number: Unplayed(done=done))) if violation.rule == "types"
    ]
    assert [("is not done" in violation.message) for violation in found] == ([] if done else [True] * len(found))
    assert bool(found) != done
