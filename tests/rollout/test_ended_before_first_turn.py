"""Episodes that end before the first turn."""

import math

import msgspec
import pytest

from rollout_builders import header, outcome
from rolltrace.check.audits.rewards import reward_parts
from rolltrace.check.check_run import check_run
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.testing.check_env import check_env
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import EndedBeforeFirstTurn
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Layer, Status
from stage import Case, Remembering, Stage, expect_failure, play, recorded, said


class Walkover(Env):
    """An env that is over before the first turn."""

    def __init__(self, done=True, stop_reason=None):
        self.result = StepResult(
            0.25, done, Observation([Message("user", "it is over")]), {"won": 1}, {"after": [1]}, {"why": "resigned"},
            {"moves": 3}, stop_reason=stop_reason,
        )  # fmt: skip

    async def initial_observation(self):
        return self.result

    async def step(self, completion):
        raise AssertionError


@pytest.mark.parametrize("reason", [None, "walkover"])
async def test_an_episode_that_is_over_before_the_first_turn(tmp_path, reason):
    """The policy is not asked; the env's result is recorded, its reward counts, and graders are asked."""
    policy = Remembering(said("never"))
    case = Case(tmp_path, lambda number: Walkover(stop_reason=reason), policy)
    rollout = await case.play()
    assert policy.sent == {}
    assert (rollout.steps, rollout.pending_prompt, rollout.reward_so_far) == ((), None, 10.25)
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == (Status.OK, reason or "completed", "env")
    assert rollout.ended_before_first_turn == EndedBeforeFirstTurn(
        reward=0.25, reward_data={"won": 1}, env_state={"after": [1]}, extra={"why": "resigned"},
        metrics={"moves": 3}, logs={},
    )  # fmt: skip
    assert rollout.metrics == {}
    assert [message.content for message in rollout.conversation] == ["it is over"]
    assert case.group_graded == [110.25]
    assert not [result for result in check_run(tmp_path / "single").results if result.findings]
    assert encode_rollout(decode_rollout(encode_rollout(rollout))) == encode_rollout(rollout)


async def test_the_result_is_frozen_and_audited(tmp_path):
    """Later changes by the env do not change the record, and an audit finds a total that leaves the reward out."""
    state = {"seen": [1]}

    class Later(Walkover):
        def __init__(self):
            self.result = StepResult(math.nan, True, env_state=state, reward_data={"odd": "text"})

        async def close(self):
            state["seen"].append(2)

    await play(tmp_path / "run", Stage(lambda number: Later()), Remembering(said("never")))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.ended_before_first_turn.env_state == {"seen": [1]}
    assert math.isnan(rollout.ended_before_first_turn.reward)
    assert rollout.ended_before_first_turn.extra == {"reward_data.odd": "text"}
    assert [note.path for note in rollout.notes] == ["ended_before_first_turn.reward_data.odd"]
    wrong = msgspec.structs.replace(rollout, line_reward=0.0, reward_so_far=0.0)
    assert [finding.message for finding in reward_parts.function(wrong)]


async def test_a_first_result_that_is_not_done_is_the_envs_failure(tmp_path):
    """A first result with done=False is a failure of the env, because no step has been taken yet."""
    case = Case(tmp_path, lambda number: Walkover(done=False), Remembering(said("never")))
    await case.play()
    expect_failure(case, Layer.ENV, "EnvError")
    assert "done" in case.rollout.error.message


@pytest.mark.parametrize("done", [True, False])
def test_check_env_accepts_it(done):
    """`check_env` accepts a result that is done in place of the first observation, and reports one that is not."""
    found = [
        violation for violation in check_env(Stage(lambda number: Walkover(done=done))) if violation.rule == "types"
    ]
    assert [("is not done" in violation.message) for violation in found] == ([] if done else [True] * len(found))
    assert bool(found) != done


@pytest.mark.parametrize("ended_before_first_turn", [True, False])
def test_text_that_utf8_cannot_hold_leaves_the_line_readable(ended_before_first_turn):
    """The lossy encoding of a line keeps the result before the first turn, if there is one."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.calls.append(Call("grader", "judge\ud800", (Message("user", "?"),)))
    if ended_before_first_turn:
        rollout_builder.end_before_first_turn(reward=1.0, env_state={"a\ud800": "b\udc00"})
    rollout = decode_rollout(rollout_builder.encode(outcome()).data)
    assert (rollout.ended_before_first_turn is not None) == ended_before_first_turn
    assert rollout.calls[0].policy == "judge\ufffd"
    assert any("calls[0].policy" in note.path for note in rollout.notes)
