"""Graders get the rollouts that a runner would record."""

import asyncio

import pytest

from envs.countdown import countdowns
from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Status
from stage import Remembering, said

GRADED = []
"""The rollouts that graders were handed."""


class Notes(Grader):
    """Keeps what it is given."""

    async def grade(self, rollout):
        GRADED.append(rollout)
        return Grade(reward=0.0)


class NotesGroup(GroupGrader):
    """Keeps what it is given."""

    async def grade_group(self, rollouts):
        GRADED.extend(rollouts)
        return {rollout.id: Grade(reward=0.0) for rollout in rollouts}


def facts(rollout):
    """The contents of a rollout, without its identity."""
    return (rollout.seat, rollout.stop_reason, rollout.stopped_by, rollout.reward_so_far,
            rollout.ended_before_first_turn, rollout.conversation, [step.trace for step in rollout.steps])  # fmt: skip


@pytest.mark.parametrize("heap", [2, 4])
async def test_a_game_is_handed_to_graders_as_it_is_recorded(heap):
    """Graders get the recorded rollouts, also of seats that never had a turn."""
    sink = MemorySink()
    async for _ in Runner(Remembering(said("2")), sink=sink).play([countdowns(heap=heap, seats=3)]):
        pass
    recorded = {facts(rollout)[0]: facts(rollout) for rollout in sink.rollouts}
    assert [fact[4] is None for fact in recorded.values()].count(False) == 3 - heap // 2
    for graders in ({"grader": Notes()}, {"group_grader": NotesGroup()}):
        GRADED.clear()
        assert check_env(countdowns(heap=heap, seats=3, **graders), answers="2") == []
        played = [rollout for rollout in GRADED if rollout.stop_reason == "completed"]
        assert {rollout.seat for rollout in played} == {0, 1, 2}
        assert all(facts(rollout) == recorded[rollout.seat] for rollout in played)
        failed = [rollout for rollout in GRADED if rollout.status is not Status.OK]
        assert all(rollout.ended_before_first_turn is None for rollout in failed)


class Over(Env):
    """Is over before its first turn, with another text each time."""

    started = 0

    async def initial_observation(self):
        Over.started += 1
        return StepResult(
            1.0, True, Observation([Message("user", f"It is over, {Over.started}.")]), stop_reason="walkover"
        )

    async def step(self, completion):
        raise AssertionError


class Overs(EnvGroupBuilder):
    """One of them."""

    env = "over"
    task = "it"
    grader = Notes()

    async def make_episode(self, number):
        return [Over()]


def test_a_result_in_place_of_a_first_observation_is_compared():
    """Two plays must give the same result, and a grader sees the reason and the reward."""
    GRADED.clear()
    [difference] = [violation for violation in check_env(Overs()) if violation.rule == "same-seed"]
    assert "`messages` are" in difference.message
    assert {(r.stop_reason, r.reward_so_far, r.ended_before_first_turn.reward) for r in GRADED} == {
        ("walkover", 1.0, 1.0)
    }


def test_a_failed_member_has_no_steps_and_no_result():
    """A failed member that the check adds to a group has no steps and no result before the first turn."""
    GRADED.clear()
    builder = Overs()
    builder.group_grader = NotesGroup()
    check_env(builder)
    assert {(rollout.status, rollout.ended_before_first_turn is None) for rollout in GRADED} >= {
        ("ok", False),
        ("error", True),
    }
    assert ("error", False) not in {(rollout.status, rollout.ended_before_first_turn is None) for rollout in GRADED}


def test_a_group_grader_sees_rollouts_whose_reward_is_pending():
    """As in a run, a rollout has no reward before its group is graded."""
    GRADED.clear()
    assert check_env(countdowns(heap=2, seats=1, group_grader=NotesGroup()), answers="2") == []
    played = [rollout for rollout in GRADED if rollout.stop_reason == "completed"]
    assert {rollout.reward for rollout in played} == {None}


class Hangs(Over):
    """Never returns its first observation."""

    async def initial_observation(self):
        await asyncio.Event().wait()


class Hanging(Overs):
    """One of them."""

    async def make_episode(self, number):
        return [Hangs()]


def test_graders_of_an_env_that_hangs_are_not_asked():
    """There is no rollout to grade, and the check does not wait for one."""
    GRADED.clear()
    assert [violation.rule for violation in check_env(Hanging(), seconds=0.05)] == ["hangs", "step-before-start"]
    assert GRADED == []
