"""The runner's hooks: what each may do, and that an exception in one is a recorded failure."""

import pytest

from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Layer, Status, StopReason
from stage import Counting, GradedStage, Meddling, Remembering, Stage, assert_faithful, play, recorded, said


async def test_before_turn_adds_messages_through_observe(tmp_path):
    """Messages that a hook adds are in the policy's prompt, the env's history, and the record."""

    async def hint(turn):
        return [{"role": "user", "content": f"Hint {turn.step}."}] if turn.step < 2 else None

    policy = Remembering(said("x"))
    stage = Stage(lambda _: Meddling("edit_old"))
    await play(tmp_path / "run", stage, policy, hooks=Hooks(before_turn=hint))
    [rollout] = recorded(tmp_path / "run")
    assert_faithful(rollout, policy)
    assert [step.trace.prompt[-1].content for step in rollout.steps] == ["Hint 0.", "Hint 1.", "Turn 2."]
    assert {"role": "user", "content": "Hint 1."} in stage.made[0].returned[-1]


async def test_a_hooks_messages_count_for_the_context(tmp_path):
    """The context limit is checked after hooks have added their messages."""

    async def flood(turn):
        return [Message("user", "word " * 50)] if turn.step == 1 else None

    policy = Remembering(
        said("x"),
        context_length=60,
        tokens=lambda request: sum(len(message.content.split()) for message in request.messages),
    )
    await play(tmp_path / "run", Stage(lambda _: Meddling("edit_old")), policy, hooks=Hooks(before_turn=flood))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.stop_reason == StopReason.CONTEXT_OVERFLOW
    assert [step.reward for step in rollout.steps] == [-0.1]
    assert rollout.conversation[-1].content.startswith("word word")


async def test_turns_are_checked_before_hooks(tmp_path):
    """No hook is called for a turn beyond the limit."""
    asked = []

    async def ask(turn):
        asked.append(turn.step)

    await play(
        tmp_path / "run",
        Stage(lambda _: Meddling(turns=9)),
        Remembering(said("x")),
        hooks=Hooks(before_turn=ask),
        limits=Limits(max_turns=2),
    )
    assert asked == [0, 1]


async def test_after_step_reads(tmp_path):
    """A hook sees each turn that the env has finished, with the prompt before it."""
    seen = []

    async def read(turn, completion, result):
        seen.append((turn.step, turn.messages[-1].content, completion.message.content, result.reward))

    await play(
        tmp_path / "run",
        Stage(lambda _: Meddling("edit_old", turns=2)),
        Remembering(said("x"), said("y")),
        hooks=Hooks(after_step=read),
    )
    assert seen == [(0, "What now?", "x", 1.0), (1, "Turn 1.", "y", 2.0)]


@pytest.mark.parametrize(
    ("env_reason", "limits", "reason"),
    [
        (None, Limits(), "nap"),
        ("treasure", Limits(), "treasure"),
        (None, Limits(max_turns=1), StopReason.MAX_TURNS),
    ],
)
async def test_on_stop_names_only_what_the_env_left_open(tmp_path, env_reason, limits, reason):
    """A hook may set the stop reason only if the env gave none."""

    async def name(rollout):
        assert rollout.steps
        return "nap"

    stage = Stage(lambda _: Meddling(turns=2, stop_reason=env_reason))
    await play(tmp_path / "run", stage, Remembering(said("x")), hooks=Hooks(on_stop=name), limits=limits)
    [rollout] = recorded(tmp_path / "run")
    assert rollout.stop_reason == reason


async def test_on_grade_sees_both_grades(tmp_path):
    """A hook sees the rollout's own grade and the group's."""
    seen = []

    async def read(rollout, grade):
        seen.append((rollout.index, grade.reward))

    stage = GradedStage(lambda _: Meddling(turns=1), episodes=2, grader=Counting(7.0))
    await play(tmp_path / "run", stage, Remembering(said("x")), hooks=Hooks(on_grade=read), concurrency=1)
    assert sorted(seen) == [(0, 7.0), (0, 100.0), (1, 7.0), (1, 200.0)]


async def broken(*arguments):
    raise ZeroDivisionError("hook")


@pytest.mark.parametrize("name", ["before_turn", "after_step", "on_stop", "on_grade"])
async def test_a_hook_that_raises_is_a_recorded_failure(tmp_path, name):
    """Whichever hook raises, the rollout is recorded as failed in layer `hook`."""
    stage = Stage(lambda _: Meddling(turns=2), grader=Counting())
    policy = Remembering(said("x"))
    await play(tmp_path / "run", stage, policy, hooks=Hooks(**{name: broken}))
    [rollout] = recorded(tmp_path / "run")
    assert_faithful(rollout, policy)
    assert (rollout.status, rollout.error.layer, rollout.error.type) == (Status.ERROR, Layer.HOOK, "ZeroDivisionError")
    assert stage.made[0].closed == 1


async def test_a_hook_that_raises_at_a_group_grade_leaves_the_reward(tmp_path):
    """If the hook fails after the group's grade, the reward stays and the failure is a score of its own."""
    await play(
        tmp_path / "run",
        GradedStage(lambda _: Meddling(turns=1)),
        Remembering(said("x")),
        hooks=Hooks(on_grade=broken),
    )
    scores = {score.name: score for score in RunReader(tmp_path / "run").scores()}
    assert scores["reward"].value == 101.0
    assert scores["on_grade"].error.layer is Layer.HOOK


async def test_a_hook_cannot_add_where_the_env_does_not_observe(tmp_path):
    """A hook's messages for an env without `observe` are a failure of the hook, which says what to implement."""

    async def hint(turn):
        return [Message("user", "Hint.")]

    stage = Stage(lambda _: Meddling(observes=False))
    await play(tmp_path / "run", stage, Remembering(said("x")), hooks=Hooks(before_turn=hint))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.error.layer is Layer.HOOK
    assert "observe" in rollout.error.message
