"""The rows of "Every way out of a rollout" that need tools or one prompt."""

import asyncio

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.message_env import MessageStepResult
from rolltrace.envs.problem_env import ProblemEnv
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.envs.tools import Tool, ToolResult
from rolltrace.policies.policy import to_completion
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.trace.convert import as_message, to_openai
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import StoppedBy, StopReason, Termination
from stage import BROKEN_CALL, GOOD_CALL, MEDDLINGS, Case, Meddling, Remembering, called, expect_limit, never, said


@pytest.mark.parametrize(
    ("completion", "reason", "reward"),
    [
        (said("Answer: 4"), "completed", 1.0),
        (said("Answer: 4", Termination.LENGTH), "max_tokens", 0.9),
        (said("Answer: 4", Termination.MALFORMED), "completed", 0.9),
        (said("four, I th", Termination.LENGTH), "max_tokens", -0.1),
    ],
)
async def test_one_prompt_env_takes_cut_and_malformed_responses(tmp_path, completion, reason, reward):
    """A one-prompt env penalises a truncated or malformed response itself, and both graders are asked."""
    make = lambda _: ProblemEnv("What is 2 + 2?", "4")  # noqa: E731 - one line reads best
    case = Case(tmp_path, make, Remembering(completion))
    rollout = await case.play()
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", reason, "env")
    assert case.rewards() == case.env_rewards() == [pytest.approx(reward)]
    assert case.needs_grade
    assert case.group_graded == [pytest.approx(reward + 110)]


def look(at: str) -> str:
    """Look at something.

    Args:
        at: what to look at

    """
    if at == "sun":
        raise ValueError("too bright")
    return f"You see the {at}."


def stop_here() -> ToolResult:
    """End it."""
    return ToolResult("The end.", stop=True)


def tool_env(**settings):
    """A conversation with tools."""
    return ToolEnv([Message("user", "Look around.")], [Tool(look), Tool(stop_here)], **settings)


async def test_tool_env_turn_cap_runs_the_last_tools(tmp_path):
    """At the env's own turn cap the last turn's tools still run."""
    case = Case(tmp_path, lambda _: tool_env(max_turns=2), Remembering(called(GOOD_CALL)))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.MAX_TURNS, StoppedBy.ENV)
    assert [message.content for message in rollout.conversation if message.role == "tool"] == ["You see the wall."] * 2
    assert case.rewards() == case.env_rewards() == [0.0, 0.0]
    assert case.needs_grade
    assert case.group_graded == [110.0]


async def test_tool_call_cap_runs_the_allowed_prefix(tmp_path):
    """At the tool-call cap the allowed prefix runs, and the rest is dropped and logged."""
    calls = [ToolCall("look", f'{{"at": "wall {n}"}}', id=f"c{n}") for n in range(3)]
    case = Case(tmp_path, lambda _: tool_env(max_tool_calls=2), Remembering(called(*calls)))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.MAX_TOOL_CALLS, StoppedBy.ENV)
    answers = [message.content for message in rollout.conversation if message.role == "tool"]
    assert answers[:2] == ["You see the wall 0.", "You see the wall 1."]
    assert "You see the wall 2." not in answers
    assert rollout.steps[0].logs["dropped_tool_calls"] == [{"id": "c2", "name": "look"}]
    assert case.rewards() == case.env_rewards() == [0.0]
    assert case.needs_grade
    assert case.group_graded == [110.0]


async def test_a_tool_may_stop_the_episode(tmp_path):
    """A tool that asks for it ends the episode as `tool_stopped`."""
    case = Case(tmp_path, lambda _: tool_env(), Remembering(called(ToolCall("stop_here", "{}", id="c1"))))
    rollout = await case.play()
    assert (rollout.stop_reason, rollout.stopped_by) == (StopReason.TOOL_STOPPED, StoppedBy.ENV)
    assert case.rewards() == case.env_rewards() == [0.0]
    assert case.needs_grade
    assert case.group_graded == [110.0]


async def test_tool_errors_go_to_the_model(tmp_path):
    """Unknown tools, invalid arguments and exceptions become the tool's answer, and play continues."""
    calls = (
        ToolCall("peek", "{}", id="a"),
        ToolCall("look", '{"at": 3}', id="b"),
        ToolCall("look", '{"at": "sun"}', id="c"),
        GOOD_CALL,
        BROKEN_CALL,
    )
    case = Case(tmp_path, lambda _: tool_env(), Remembering(called(*calls), said("Nothing here.")))
    rollout = await case.play()
    assert rollout.stop_reason == StopReason.COMPLETED
    answers = {message.tool_call_id: message.content for message in rollout.conversation if message.role == "tool"}
    assert "peek" in answers["a"]
    assert "Expected `str`, got `int`" in answers["b"]
    assert "too bright" in answers["c"]
    assert answers["c2"] == "You see the wall."
    assert "c1" in answers
    assert rollout.steps[0].parse_error
    assert case.rewards() == case.env_rewards()


class Slow(Env):
    """Never answers its second turn."""

    def __init__(self):
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("user", "Wait.")])

    async def step(self, completion):
        self.turn += 1
        if self.turn == 2:
            await never()
        return StepResult(1.0, done=False, observation=Observation([Message("user", "More.")]))


async def test_wall_clock_inside_the_env(tmp_path):
    """A time-out during the env's step keeps the answer that had already come."""
    case = Case(
        tmp_path,
        lambda _: Slow(),
        Remembering(said("I look."), said("I open the door.")),
        limits=Limits(timeout=600),
    )
    rollout = await case.play()
    expect_limit(case, StopReason.TIMEOUT, total=1.0)
    assert [(step.env_failure, step.env_reward) for step in rollout.steps] == [(None, 1.0), ("timed_out", None)]
    said_last = ["Wait.", "I look.", "More.", "I open the door."]
    assert [message.content for message in rollout.conversation] == said_last


# The same rows again, with envs that mutate the messages that they have shown.


class MeddlingTools(Meddling):
    """A conversation with tools whose history is a list of dicts that is changed in place."""

    def __init__(self, meddling, inner):
        super().__init__(meddling)
        self.inner = inner
        self.history = []

    async def initial_observation(self):
        shown = await self.inner.initial_observation()
        self.tools = shown.tools
        self.history += [to_openai(message) for message in shown.messages]
        return self._hand_out()

    async def step(self, message):
        result = await self.inner.step(to_completion(as_message(message, "", [])))
        self.history.append(message)
        self.history += [to_openai(shown) for shown in result.observation.messages] if result.observation else []
        self.meddle()
        return MessageStepResult(
            1.0,
            result.done,
            self._hand_out(),
            extra=result.extra,
            logs=result.logs,
            stop_reason=result.stop_reason,
        )


class MeddlingProblem(Env):
    """One prompt, in a list that is changed as soon as it was returned."""

    takes_any_completion = True

    def __init__(self, meddling):
        self.meddler = Meddling(meddling)

    async def initial_observation(self):
        return Observation(await self.meddler.initial_observation())

    async def step(self, completion):
        result = await self.meddler.step(to_openai(completion.message))
        return StepResult(
            0.25, done=True, observation=Observation(result.next_messages, replaces_history=True), stop_reason=None
        )


async def wait() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return ""


LOOKS = [ToolCall("look", f'{{"at": "wall {number}"}}', id=f"l{number}") for number in range(3)]
FAULTS = (
    ToolCall("peek", "{}", id="unknown"),
    ToolCall("look", '{"at": 3}', id="unfit"),
    ToolCall("look", '{"at": "sun"}', id="raises"),
    ToolCall("wait", "{}", id="waits"),
)


@pytest.mark.parametrize("meddling", MEDDLINGS)
@pytest.mark.parametrize(
    ("settings", "answers", "reason", "errors"),
    [
        ({"max_turns": 2}, [called(LOOKS[0])], "max_turns", [[None], [None]]),
        ({"max_tool_calls": 2}, [called(*LOOKS)], "max_tool_calls", [[None, None]]),
        ({}, [called(LOOKS[0]), called(ToolCall("stop_here", "{}"))], "tool_stopped", [[None], [None]]),
        ({}, [called(BROKEN_CALL, GOOD_CALL), said("Done.")], "completed", [["unparsable", None], []]),
        (
            {"tool_seconds": 0.25},  # long enough for the others on a busy machine
            [called(*FAULTS), said("Done.")],
            "completed",
            [["unknown_tool", "bad_arguments", "raised", "timed_out"], []],
        ),
    ],
)
async def test_tool_rows_under_a_meddling_env(tmp_path, meddling, settings, answers, reason, errors):
    """Prompts and responses are recorded as sent, and each row ends as it should, whatever the env changes."""

    def make(_):
        inner = ToolEnv([Message("user", "Look around.")], [look, stop_here, wait], **settings)
        return MeddlingTools(meddling, inner)

    case = Case(tmp_path, make, Remembering(*answers))
    rollout = await case.play()
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", reason, StoppedBy.ENV)
    assert case.rewards() == case.env_rewards() == [1.0] * len(errors)
    found = [[call["error"] for call in step.extra.get("tool_calls", [])] for step in rollout.steps]
    assert found == errors
    assert [bool(step.parse_error) for step in rollout.steps] == ["unparsable" in row for row in errors]
    assert case.needs_grade
    assert case.group_graded == [110.0 + len(errors)]


@pytest.mark.parametrize("meddling", MEDDLINGS)
@pytest.mark.parametrize("termination", [Termination.EOS, Termination.LENGTH, Termination.MALFORMED])
async def test_one_prompt_rows_under_a_meddling_env(tmp_path, meddling, termination):
    """A one-prompt env that changes its prompt is recorded as it was, on every ending, and graded by both."""
    case = Case(tmp_path, lambda _: MeddlingProblem(meddling), Remembering(said("Four.", termination)))
    rollout = await case.play()
    assert rollout.stop_reason == ("max_tokens" if termination is Termination.LENGTH else "completed")
    assert rollout.stopped_by is StoppedBy.ENV
    assert case.rewards() == case.env_rewards() == [0.25]
    assert rollout.steps[0].trace.prompt[-1].content == "What now?"
    assert case.needs_grade
    assert case.group_graded == [110.25]
