"""Every row of "Every way out of a rollout", recorded on disk with an env that mutates its history."""

import asyncio
import math

import pytest

from rolltrace.errors import ContextOverflowError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.strategies import KeepViable
from rolltrace.store.reader import RunReader
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason, Termination
from stage import (
    BROKEN_CALL,
    GOOD_CALL,
    MEDDLINGS,
    Case,
    Counting,
    GradedStage,
    Meddling,
    Remembering,
    Stage,
    assert_faithful,
    called,
    expect_failure,
    expect_limit,
    never,
    play,
    recorded,
    said,
)

pytestmark = pytest.mark.parametrize("meddling", MEDDLINGS)

TALK = (said("I look."), said("I open the door."), said("I leave."))


@pytest.mark.parametrize("reason", [None, "tool_stopped", "treasure_found"])
async def test_env_says_done(tmp_path, meddling, reason):
    """The env's stop reason is `completed` or the one it gives; its rewards count and both graders are asked."""
    case = Case(tmp_path, lambda _: Meddling(meddling, stop_reason=reason), Remembering(*TALK))
    rollout = await case.play()
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", reason or "completed", "env")
    assert case.rewards() == case.env_rewards() == [1.0, 2.0, 3.0]
    assert rollout.reward == rollout.reward_so_far == 16.0
    assert rollout.grade is not None
    assert rollout.grade.reward == 10.0
    assert case.needs_grade
    assert case.group_graded == [116.0]
    assert [step.env_state["turn"] for step in rollout.steps] == [1, 2, 3]
    assert [len(step.env_state["seen"]) for step in rollout.steps] == [2, 3, 4]
    assert case.env.closed == 1


async def test_the_envs_own_turn_cap(tmp_path, meddling):
    """The env's own turn cap counts as an end by the env: both graders are asked."""
    case = Case(tmp_path, lambda _: Meddling(meddling, turns=2, stop_reason="max_turns"), Remembering(*TALK))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.MAX_TURNS, StoppedBy.ENV)
    assert rollout.reward == 13.0
    assert case.needs_grade
    assert case.group_graded == [113.0]


async def test_conversation_response_cut(tmp_path, meddling):
    """A truncated response ends a conversation at −0.1; the rollout's grader is not asked, the group's is."""
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(said("I look."), said("I op", Termination.LENGTH)))
    rollout = await case.play()
    expect_limit(case, StopReason.MAX_TOKENS, total=0.9)
    assert case.rewards() == [1.0, -0.1]
    assert case.env_rewards() == [1.0, None]
    assert rollout.steps[1].termination is Termination.LENGTH


async def test_conversation_goes_on_after_a_cut_where_so_set(tmp_path, meddling):
    """With `continue_after_truncation` the truncated turn is kept through `observe` and play continues."""
    answers = (said("I op", Termination.LENGTH), said("en the door."), said("I leave."))
    make = lambda _: Meddling(meddling, turns=2)  # noqa: E731 - one line reads best
    case = Case(tmp_path, make, Remembering(*answers), limits=Limits(continue_after_truncation=True))
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.COMPLETED
    assert case.rewards() == [-0.1, 1.0, 2.0]
    assert case.env_rewards() == [None, 1.0, 2.0]


async def test_a_cut_ends_play_where_the_env_does_not_observe(tmp_path, meddling):
    """`continue_after_truncation` has no effect on an env without `observe`."""
    policy = Remembering(said("I op", Termination.LENGTH))
    case = Case(
        tmp_path,
        lambda _: Meddling(meddling, observes=False),
        policy,
        limits=Limits(continue_after_truncation=True),
    )
    await case.play()
    expect_limit(case, StopReason.MAX_TOKENS, total=-0.1)


async def test_conversation_broken_framing(tmp_path, meddling):
    """Broken framing is a parse error at −1.0, never retried, with the raw response kept."""
    broken = said("I loo", Termination.MALFORMED, raw="<think>I loo", parse_error="no end of turn")
    case = Case(
        tmp_path, lambda _: Meddling(meddling), Remembering(TALK[0], broken), limits=Limits(max_parse_retries=5)
    )
    rollout = await case.play()
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", "parse_error", "runner")
    assert case.rewards() == [1.0, -1.0]
    assert case.env_rewards() == [1.0, None]
    assert rollout.reward == 0.0
    assert rollout.steps[1].raw == "<think>I loo"
    assert rollout.steps[1].parse_error == "no end of turn"
    assert not case.needs_grade
    assert case.group_graded == [100.0]


async def test_unparsable_tool_calls_end_play_by_default(tmp_path, meddling):
    """Where no tool call can be parsed, the turn costs 0.1 and play ends in a parse error."""
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(TALK[0], called(BROKEN_CALL)))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == ("parse_error", "runner")
    assert case.rewards() == [1.0, -0.1]
    assert rollout.steps[1].parse_error
    assert rollout.steps[1].trace.policy_response.tool_calls[0].arguments == '{"at": '
    assert not case.needs_grade
    assert case.group_graded == [pytest.approx(100.9)]


async def test_unparsable_tool_calls_get_a_correction(tmp_path, meddling):
    """Up to N corrections in a row go through `observe`; each bad turn costs 0.1; a readable turn resets the count."""
    answers = (called(BROKEN_CALL), called(BROKEN_CALL), said("I look."), called(BROKEN_CALL), said("I leave."))
    make = lambda _: Meddling(meddling, turns=2)  # noqa: E731 - one line reads best
    case = Case(tmp_path, make, Remembering(*answers), limits=Limits(max_parse_retries=2))
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.COMPLETED
    assert case.rewards() == [-0.1, -0.1, 1.0, -0.1, 2.0]
    said_by_env, answer, correction = case.env.returned[1][-3:]
    assert said_by_env["tool_calls"][0]["id"] == "c1"
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "c1")  # servers require an answer to each id
    assert correction["role"] == "user"
    assert "JSON" in correction["content"]


async def test_corrections_are_limited(tmp_path, meddling):
    """The turn after the last allowed correction ends in a parse error."""
    case = Case(
        tmp_path,
        lambda _: Meddling(meddling),
        Remembering(called(BROKEN_CALL)),
        limits=Limits(max_parse_retries=2),
    )
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.PARSE_ERROR
    assert case.rewards() == [-0.1, -0.1, -0.1]
    assert case.group_graded == [pytest.approx(99.7)]


async def test_no_correction_on_the_last_turn(tmp_path, meddling):
    """No correction is sent after the last turn, since it could not be answered."""
    limits = Limits(max_parse_retries=5, max_turns=2)
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(called(BROKEN_CALL)), limits=limits)
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.PARSE_ERROR
    assert len(rollout.steps) == 2
    assert rollout.conversation[-1].role == "assistant"


async def test_some_tool_calls_valid(tmp_path, meddling):
    """One readable call is enough: play continues without a penalty, and the parse error is recorded."""
    answers = (called(BROKEN_CALL, GOOD_CALL), said("I look."), said("I leave."))
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(*answers))
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.COMPLETED
    assert case.rewards() == [1.0, 2.0, 3.0]
    assert rollout.steps[0].parse_error
    assert rollout.steps[1].parse_error is None


def words(request):
    """A token count that grows with the prompt."""
    return sum(len(message.content.split()) + 4 for message in request.messages)


async def test_next_prompt_exceeds_the_context(tmp_path, meddling):
    """An overflow charges the last step −0.1; the env's reward is kept as `env_reward`."""
    lengths = iter([10, 20, 91] * 2)
    policy = Remembering(*TALK, context_length=100, tokens=lambda _: next(lengths))
    case = Case(tmp_path, lambda _: Meddling(meddling), policy, limits=Limits(generation_reserve=10))
    rollout = await case.play()
    expect_limit(case, StopReason.CONTEXT_OVERFLOW, total=0.9)
    assert case.rewards() == [1.0, -0.1]
    assert case.env_rewards() == [1.0, 2.0]
    assert rollout.pending_prompt is None


async def test_the_server_says_the_prompt_is_too_long(tmp_path, meddling):
    """An overflow that only the server detects counts the same, and the prompt it was sent is recorded."""
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(*TALK[:2], ContextOverflowError("too long")))
    rollout = await case.play()
    expect_limit(case, StopReason.CONTEXT_OVERFLOW, total=0.9)
    assert case.env_rewards() == [1.0, 2.0]
    assert rollout.pending_prompt is not None
    assert rollout.pending_raw is None


async def test_first_prompt_exceeds_the_context(tmp_path, meddling):
    """A first prompt that does not fit leaves no steps and a total of −0.1."""
    policy = Remembering(*TALK, context_length=20, tokens=words)
    case = Case(tmp_path, lambda _: Meddling(meddling), policy)
    rollout = await case.play()
    expect_limit(case, StopReason.CONTEXT_OVERFLOW, total=-0.1)
    assert rollout.steps == ()
    assert rollout.conversation[0].content == "You are in a room."


@pytest.mark.parametrize(
    ("limits", "reason", "steps"),
    [
        (Limits(max_turns=2), StopReason.MAX_TURNS, 2),
        (Limits(max_turns=0), StopReason.MAX_TURNS, 0),
        (Limits(max_total_tokens=20), StopReason.MAX_TOTAL_TOKENS, 2),  # 7 + 2, then 7 + 4
        (Limits(max_total_tokens=21), StopReason.MAX_TOTAL_TOKENS, 3),
        (Limits(max_sampled_tokens=6), StopReason.MAX_SAMPLED_TOKENS, 2),  # 2, then 4
        (Limits(max_sampled_tokens=2), StopReason.MAX_SAMPLED_TOKENS, 1),
    ],
)
async def test_the_runners_budgets(tmp_path, meddling, limits, reason, steps):
    """A budget of the runner keeps the env's rewards; only the group's grader is asked."""
    case = Case(tmp_path, lambda _: Meddling(meddling, turns=9), Remembering(*TALK), limits=limits)
    rollout = await case.play()
    expect_limit(case, reason, total=sum(range(steps + 1)))
    assert len(rollout.steps) == steps
    assert case.rewards() == case.env_rewards()


async def test_wall_clock(tmp_path, meddling):
    """The wall-clock budget keeps the partial rollout and the unanswered prompt."""
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(TALK[0], never), limits=Limits(timeout=600))
    rollout = await case.play()
    expect_limit(case, StopReason.TIMEOUT, total=1.0)
    assert case.rewards() == [1.0]
    assert rollout.pending_prompt is not None
    assert case.env.closed == 1


async def test_a_policys_own_timeout_is_not_the_rollouts(tmp_path, meddling):
    """A TimeoutError that a policy raises is the policy's failure."""
    case = Case(
        tmp_path,
        lambda _: Meddling(meddling),
        Remembering(TALK[0], TimeoutError("slow")),
        limits=Limits(timeout=60),
    )
    await case.play()
    expect_failure(case, Layer.POLICY, "TimeoutError")


async def test_policy_raises(tmp_path, meddling):
    """A policy that raises leaves the earlier steps and the unanswered prompt."""
    case = Case(tmp_path, lambda _: Meddling(meddling), Remembering(*TALK[:2], ValueError("no weights")))
    rollout = await case.play()
    expect_failure(case, Layer.POLICY, "ValueError")
    assert rollout.error.message == "no weights"
    assert case.rewards() == [1.0, 2.0]
    assert rollout.reward_so_far == 3.0
    assert rollout.pending_prompt is not None
    assert not case.needs_grade
    assert case.env.closed == 1


class Breaking(Meddling):
    """Raises in its second turn, after changing its history."""

    async def step(self, message):
        result = await super().step(message)
        if self.turn == 2:
            raise KeyError("the floor")
        return result


async def test_env_raises(tmp_path, meddling):
    """An env that raises leaves the policy's turn as a step without an env reward."""
    case = Case(tmp_path, lambda _: Breaking(meddling), Remembering(*TALK))
    rollout = await case.play()
    expect_failure(case, Layer.ENV, "KeyError")
    assert (case.rewards(), case.env_rewards()) == ([1.0, 0.0], [1.0, None])
    assert [step.env_failure for step in rollout.steps] == [None, "raised"]
    assert rollout.steps[1].trace.policy_response.content == "I open the door."
    assert rollout.conversation[-1].content == "I open the door."
    assert not case.needs_grade


@pytest.mark.parametrize("reward", [RuntimeError("no judge"), TimeoutError("slow judge"), math.nan, "good", None])
async def test_the_rollouts_grader_fails(tmp_path, meddling, reward):
    """A grader that raises, times out or returns no number is a failure of the grader; the steps are kept."""
    case = Case(
        tmp_path,
        lambda _: Meddling(meddling),
        Remembering(*TALK),
        grader=Counting(reward),
        limits=Limits(timeout=60),
    )
    rollout = await case.play()
    expect_failure(case, Layer.GRADER, type(reward).__name__ if isinstance(reward, Exception) else "GraderError")
    assert case.rewards() == [1.0, 2.0, 3.0]
    assert rollout.reward_so_far == 6.0
    assert any("completed" in note.message for note in rollout.notes)


async def test_cancelled(tmp_path, meddling):
    """A cancelled rollout is recorded with its steps and closed, and the cancellation is raised again."""
    asked = asyncio.Event()

    async def never(request):
        asked.set()
        await asyncio.Event().wait()

    policy = Remembering(TALK[0], never)
    stage = Stage(lambda _: Meddling(meddling), grader=Counting())
    task = asyncio.create_task(play(tmp_path / "run", stage, policy))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [rollout] = recorded(tmp_path / "run")
    assert_faithful(rollout, policy)
    assert (rollout.status, rollout.stop_reason) == (Status.CANCELLED, StopReason.CANCELLED)
    assert rollout.reward is None
    assert rollout.reward_so_far == 1.0
    assert [step.reward for step in rollout.steps] == [1.0]
    assert rollout.pending_prompt is not None
    assert stage.grader.asked == []
    assert (stage.made[0].closed, stage.cleaned) == (1, 1)


async def test_another_seat_failed(tmp_path, meddling):
    """When one seat fails, the others end as `episode_aborted` with their steps."""
    waiting = asyncio.Event()

    async def by_seat(request):
        if request.identity.seat == 0:
            await waiting.wait()
            raise ValueError("seat 0 is broken")
        waiting.set()
        await asyncio.Event().wait()

    policy = Remembering(TALK[0], by_seat)
    stage = GradedStage(lambda _: [Meddling(meddling), Meddling(meddling)], seats=2, grader=Counting())
    await play(tmp_path / "run", stage, policy, strategy=KeepViable())
    first, second = recorded(tmp_path / "run")
    assert_faithful(first, policy)
    assert_faithful(second, policy)
    assert (first.stop_reason, first.error.layer) == (StopReason.ERROR, Layer.POLICY)
    assert second.stop_reason == StopReason.EPISODE_ABORTED
    assert second.status is Status.CANCELLED
    assert (first.reward, second.reward) == (None, None)
    assert [step.reward for step in second.steps] == [1.0]
    assert (second.episode, second.seat, second.index) == (0, 1, 1)
    assert stage.grader.asked == []
    assert [score for score in RunReader(tmp_path / "run").scores() if score.value is not None] == []
    assert [env.closed for env in stage.made] == [1, 1]


@pytest.mark.parametrize("total", [6.0, -6.0])
async def test_zero_reward_on_limit_clamps(tmp_path, meddling, total):
    """With `zero_reward_on_limit`, the total at a limit is at most 0, and the value before is kept."""

    class Weighted(Meddling):
        async def step(self, message):
            result = await super().step(message)
            result.reward = total / 3
            return result

    limits = Limits(max_turns=3, zero_reward_on_limit=True)
    case = Case(tmp_path, lambda _: Weighted(meddling, turns=9), Remembering(*TALK), limits=limits)
    rollout = await case.play()
    assert rollout.reward == pytest.approx(min(total, 0))
    assert rollout.reward_so_far == pytest.approx(total)
    assert rollout.unclamped_reward == (pytest.approx(total) if total > 0 else None)
    assert case.group_graded == [0.0]  # 100 ± 6 is above 0 either way
