"""The policy's turn is recorded as a whole step also if the env does not finish it."""

import asyncio

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.message_env import MessageEnv, MessageStepResult
from rolltrace.envs.problem_env import ProblemEnv
from rolltrace.envs.prompt_only import PromptOnlyEnv
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.policies.policy import Completion
from rolltrace.query.run import open_run
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.trace.message import Message, Sampling, ToolCall
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Termination
from rolltrace.trace.tokens import Tokens, Usage
from stage import BROKEN_CALL, GradedStage, Meddling, Remembering, Stage, called, never, play, recorded, said

LOOK = ToolCall("look", '{"at": "door"}', id="c1")
LISTEN = ToolCall("listen", "{}", id="c2")
ANSWER = Completion(
    message=Message("assistant", "", tool_calls=(LOOK,), reasoning="What is there?"),
    termination=Termination.TOOL_CALLS,
    raw="<look>door</look>",
    policy_version="v9",
    usage=Usage(11, 5),
    tokens=Tokens((1, 2, 3), (4, 5), (-0.5, -0.25)),
)
SAMPLING = Sampling(temperature=0.5, max_tokens=64)
WAYS = ["raised", "timed_out", "cancelled"]


class Trouble:
    """What an env awaits in its step and does not return from."""

    def __init__(self, way):
        self.way = way
        self.entered = asyncio.Event()

    async def __call__(self, *ignored):
        self.entered.set()
        if self.way == "raised":
            raise KeyError("the floor")
        if self.way == "timed_out":
            await never()
        await asyncio.Event().wait()


class Plain(Env):
    """Prompts once, and gets into trouble after the answer."""

    def __init__(self, trouble):
        self.trouble = trouble

    async def initial_observation(self):
        return Observation([Message("user", "What do you do?")])

    async def step(self, completion):
        await self.trouble()


class Prompt(PromptOnlyEnv):
    """A one-prompt env whose step gets into trouble."""

    def __init__(self, trouble):
        super().__init__("What do you do?")
        self.trouble = trouble

    async def step(self, completion):
        await self.trouble()


class Messages(MessageEnv):
    """Keeps one history, and changes it before it gets into trouble."""

    def __init__(self, trouble):
        self.trouble = trouble
        self.history = [{"role": "user", "content": "What do you do?"}]

    async def initial_observation(self):
        return self.history

    async def step(self, message):
        self.history.append(message)
        self.history[0]["content"] = "censored"
        message["tool_calls"].clear()
        await self.trouble()


async def look(at: str) -> str:
    """Look at something."""
    return f"A {at}."


class Tools(ToolEnv):
    """A conversation with tools whose scoring gets into trouble."""

    def __init__(self, trouble):
        super().__init__([Message("user", "What do you do?")], [look])
        self.trouble = trouble

    async def after_tools(self, completion, outcomes, stop_reason):
        await self.trouble()


def problem(trouble):
    return ProblemEnv("What do you do?", "4", check=lambda answer, reference: trouble(), extract=lambda reply: "4")


ENVS = {"plain": Plain, "prompt": Prompt, "problem": problem, "messages": Messages, "tools": Tools}


async def ended(path, task, trouble, way):
    """The rollout of a play that has ended, cancelled if the trouble is a cancellation."""
    if way == "cancelled":
        await trouble.entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    [rollout] = recorded(path)
    return rollout


async def play_into(path, make, way, answer=ANSWER, stage=Stage, **settings):
    """The rollout of an env that gets into this kind of trouble."""
    trouble = Trouble(way)
    limits = settings.pop("limits", Limits(timeout=600))
    builder = stage(lambda _: make(trouble))
    task = asyncio.create_task(play(path, builder, Remembering(answer), limits=limits, sampling=SAMPLING, **settings))
    return await ended(path, task, trouble, way)


def assert_whole(rollout, failure, answer=ANSWER):
    """Asserts that the last step has everything that the policy said, and no reward of the env."""
    step = rollout.steps[-1]
    assert (step.env_failure, step.env_reward, step.reward) == (failure, None, 0.0)
    assert step.trace.policy_response == answer.message
    assert [message.content for message in step.trace.prompt] == ["What do you do?"]
    assert (step.termination, step.raw, step.usage) == (answer.termination, answer.raw, answer.usage)
    assert (step.policy_version, step.tokens) == (answer.policy_version, answer.tokens)
    assert rollout.sampling[step.sampling] == SAMPLING
    assert step.seconds is not None
    assert (rollout.pending_prompt, rollout.pending_raw) == (None, None)
    assert rollout.conversation[: len(step.trace.prompt) + 1] == (*step.trace.prompt, answer.message)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("env", ENVS)
async def test_a_turn_that_the_env_does_not_finish_is_a_whole_step(tmp_path, env, way):
    """Message, tool calls, reasoning, usage, tokens, termination and settings are kept, whatever the env does."""
    rollout = await play_into(tmp_path / "run", ENVS[env], way)
    assert_whole(rollout, EnvFailure(way))
    expected = {
        "raised": ("error", "error", None),
        "timed_out": ("ok", "timeout", 0.0),
        "cancelled": ("cancelled", "cancelled", None),
    }
    assert (rollout.status, rollout.stop_reason, rollout.reward) == expected[way]
    assert (rollout.error is not None) == (way == "raised")
    if rollout.error is not None:
        assert (rollout.error.layer, rollout.error.type) == (Layer.ENV, "KeyError")
    if env == "tools":
        assert rollout.tools[rollout.steps[0].tools][0].name == "look"


@pytest.mark.parametrize(("way", "graded"), [("raised", False), ("timed_out", True)])
async def test_only_a_time_out_is_graded_with_the_group(tmp_path, way, graded):
    """A group's grader grades a turn that timed out, and not one on which the env raised."""
    rollout = await play_into(tmp_path / "run", Plain, way, stage=GradedStage)
    assert_whole(rollout, EnvFailure(way))
    with open_run(tmp_path / "run") as run:
        values = [score.value for score in run.scores() if score.name == "reward" and score.rollout == rollout.id]
    assert values == ([100.0] if graded else [])


@pytest.mark.parametrize("way", WAYS)
async def test_an_unfinished_turn_is_in_sql_and_passes_the_audits(tmp_path, way):
    """`steps.env_failure` says how the env failed, the tool calls are in `messages`, and the audits find nothing."""
    await play_into(tmp_path / "run", Plain, way)
    with open_run(tmp_path / "run") as run:
        found = run.sql("select env_failure, env_reward, reward, completion_tokens from steps").fetchall()
        assert found == [(way, None, 0.0, 5)]
        [[calls]] = run.sql("select tool_calls from messages where step = 0").fetchall()
        assert "door" in calls
    assert check_run(tmp_path / "run").with_findings == []


async def test_a_finished_turn_has_no_env_failure(tmp_path):
    """A step that the env finished has no env_failure, also if a hook fails on it afterwards."""

    async def fail(turn, completion, result):
        raise ValueError("the hook")

    hooks = Hooks(after_step=fail)
    await play(tmp_path / "run", Stage(lambda _: Meddling(turns=1)), Remembering(said("I look.")), hooks=hooks)
    [rollout] = recorded(tmp_path / "run")
    [step] = rollout.steps
    assert (rollout.error.layer, step.env_failure, step.env_reward, step.reward) == (Layer.HOOK, None, 1.0, 1.0)


async def test_the_numbers_of_an_unfinished_turn_are_recorded_without_its_text(tmp_path):
    """A run that records numbers only has the same env_failure as one that records text."""
    with create_run(tmp_path / "run", trace="numbers") as run:
        runner = Runner(Remembering(ANSWER), sink=run)
        [_] = [group async for group in runner.play([Stage(lambda _: Plain(Trouble("raised")))])]
    [rollout] = recorded(tmp_path / "run")
    [step] = rollout.steps
    assert (step.env_failure, step.env_reward, step.usage) == (EnvFailure.RAISED, None, ANSWER.usage)
    assert step.trace.policy_response.tool_calls[0].arguments.startswith("hashed:")


# How the env reacts to being stopped


class Stubborn(Plain):
    """Raises an exception of its own when it is cancelled."""

    async def step(self, completion):
        try:
            await self.trouble()
        except asyncio.CancelledError:
            raise ValueError("not now") from None


@pytest.mark.parametrize("way", ["timed_out", "cancelled"])
async def test_what_an_env_raises_when_it_is_stopped_is_not_why_it_stopped(tmp_path, way):
    """An env that raises in response to a time-out or a cancellation is not recorded as raised."""
    rollout = await play_into(tmp_path / "run", Stubborn, way)
    assert_whole(rollout, EnvFailure(way))
    assert rollout.status == ("ok" if way == "timed_out" else "cancelled")


async def test_a_result_of_the_wrong_type_is_a_failure_of_the_env(tmp_path):
    """A step that returns something other than a StepResult counts as raised."""

    class Odd(Plain):
        async def step(self, completion):
            return "done"

    rollout = await play_into(tmp_path / "run", Odd, "raised")
    assert_whole(rollout, EnvFailure.RAISED)
    assert rollout.error.type == "EnvError"


async def test_a_cancellation_after_a_failure_keeps_the_failure(tmp_path):
    """If a rollout is cancelled while its failed env is closed, the step says `raised`, and a note has the error."""
    closing = asyncio.Event()

    class Slow(Plain):
        async def close(self):
            closing.set()
            await asyncio.Event().wait()

    stage = Stage(lambda _: Slow(Trouble("raised")))
    task = asyncio.create_task(play(tmp_path / "run", stage, Remembering(ANSWER), sampling=SAMPLING))
    await closing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [rollout] = recorded(tmp_path / "run")
    assert_whole(rollout, EnvFailure.RAISED)
    assert rollout.stop_reason == "cancelled"
    assert any("KeyError: 'the floor'" in note.message for note in rollout.notes)


# What the env can report about the turn


class Telling(Plain):
    """Returns `told` from `unfinished_step`."""

    told = None

    def unfinished_step(self):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.mark.parametrize("way", WAYS)
async def test_an_unfinished_step_of_the_env_is_kept(tmp_path, way):
    """Its observation and maps are recorded; a reward in it does not count, and is noted."""

    class Full(Telling):
        told = StepResult(
            0.75, True, Observation([Message("user", "The door opens.")]),
            reward_data={"opened": 1}, env_state={"door": "open"}, extra={"why": "a key"}, metrics={"moves": 1},
            logs={"told": "half"},
        )  # fmt: skip

    rollout = await play_into(tmp_path / "run", Full, way)
    assert_whole(rollout, EnvFailure(way))
    [step] = rollout.steps
    assert (step.reward_data, step.env_state, step.extra) == ({"opened": 1}, {"door": "open"}, {"why": "a key"})
    assert (step.metrics, step.logs) == ({"moves": 1}, {"told": "half"})
    assert [message.content for message in rollout.conversation] == ["What do you do?", "", "The door opens."]
    assert rollout.reward_so_far == 0.0
    assert any("0.75" in note.message for note in rollout.notes)


@pytest.mark.parametrize("told", [ValueError("lost"), "half a step", StepResult("much", False)])
async def test_an_unfinished_step_that_fails_does_not_cost_the_turn(tmp_path, told):
    """If `unfinished_step` raises or returns another type, the step is recorded with a note."""
    kind = type("Odd", (Telling,), {"told": told})
    rollout = await play_into(tmp_path / "run", kind, "raised")
    assert_whole(rollout, EnvFailure.RAISED)
    assert rollout.error.type == "KeyError"
    assert any("unfinished_step of Odd raised" in note.message for note in rollout.notes)


async def test_a_message_env_reports_an_unfinished_turn(tmp_path):
    """A message env may return its history so far."""

    class Half(Messages):
        def unfinished_step(self):
            more = {"role": "user", "content": "The door creaks."}
            return MessageStepResult(0.0, False, [*self.history, more], env_state={"door": "ajar"})

    rollout = await play_into(tmp_path / "run", Half, "timed_out")
    [step] = rollout.steps
    assert (step.env_failure, step.env_state) == (EnvFailure.TIMED_OUT, {"door": "ajar"})
    assert step.trace.policy_response == ANSWER.message
    assert rollout.conversation[-1].content == "The door creaks."


# Tools


def tools_that_hang(way, **settings):
    """An env with one tool that answers and one that gets into trouble."""
    trouble = Trouble(way)

    async def listen() -> str:
        """Listen."""
        await trouble()

    env = ToolEnv([Message("user", "What do you do?")], [look, listen], tool_seconds=None, **settings)
    return env, trouble


async def play_tools(path, way, calls, **settings):
    env, trouble = tools_that_hang(way, **settings)
    answer = called(*calls)
    task = asyncio.create_task(
        play(path, Stage(lambda _: env), Remembering(answer), limits=Limits(timeout=600), sampling=SAMPLING)
    )
    return await ended(path, task, trouble, way)


@pytest.mark.parametrize("calls", [(LOOK, LISTEN), (LISTEN, LOOK)])
async def test_the_answers_of_tools_that_returned_are_kept(tmp_path, calls):
    """If one tool hangs, the others' answers follow the response, and the record names the open call."""
    rollout = await play_tools(tmp_path / "run", "cancelled", calls)
    [step] = rollout.steps
    assert (step.env_failure, step.trace.policy_response.tool_calls) == (EnvFailure.CANCELLED, calls)
    assert [(message.role, message.content, message.tool_call_id) for message in rollout.conversation[2:]] == [
        ("tool", "A door.", "c1")
    ]
    errors = {call["name"]: call["error"] for call in step.extra["tool_calls"]}
    assert errors == {"look": None, "listen": "unfinished"}
    assert [call["name"] for call in step.extra["tool_calls"]] == [call.name for call in calls]
    assert (step.env_state, step.metrics) == ({"turns": 1, "tool_calls": 1}, {"tool_calls": 1, "tool_errors": 0})


async def test_a_tool_that_hangs_into_the_time_out_of_the_rollout(tmp_path):
    """The wall clock ends the rollout inside a tool; the answers of earlier tools are kept in order."""
    rollout = await play_tools(tmp_path / "run", "timed_out", (LOOK, LISTEN), parallel=False)
    [step] = rollout.steps
    assert (rollout.status, rollout.stop_reason, step.env_failure) == ("ok", "timeout", EnvFailure.TIMED_OUT)
    assert [message.content for message in rollout.conversation[2:]] == ["A door."]


async def test_an_answer_without_an_id_is_not_put_after_a_gap(tmp_path):
    """Answers without ids match calls by position, so one after an open call goes to the logs."""
    calls = (ToolCall("listen", "{}"), ToolCall("look", '{"at": "door"}'))
    rollout = await play_tools(tmp_path / "run", "cancelled", calls)
    [step] = rollout.steps
    assert rollout.conversation[-1].tool_calls == calls
    assert step.logs["unplaced_tool_results"] == [{"name": "look", "content": "A door."}]


async def test_tools_that_ran_are_kept_where_the_scoring_raises(tmp_path):
    """If `after_tools` of a `ToolEnv` raises, the answers of its tools still follow the response."""
    rollout = await play_into(tmp_path / "run", Tools, "raised")
    assert [message.content for message in rollout.conversation[2:]] == ["A door."]
    assert rollout.steps[0].extra["tool_calls"][0]["error"] is None


# Where the runner adds the turn through `observe`


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answer", "limits", "reward"),
    [
        (said("I lo", Termination.LENGTH), {"continue_after_truncation": True, "truncation_reward": -0.25}, -0.25),
        (called(BROKEN_CALL), {"max_parse_retries": 1, "parse_error_reward": -0.5}, -0.5),
    ],
)
async def test_observe_that_fails_on_the_policys_turn(tmp_path, way, answer, limits, reward):
    """If `observe` fails on the policy's turn, the turn is a step with that failure; a limit's charge stays."""

    class Deaf(Plain):
        async def observe(self, messages):
            await self.trouble()

    rollout = await play_into(tmp_path / "run", Deaf, way, answer, limits=Limits(timeout=600, **limits))
    [step] = rollout.steps
    assert (step.env_failure, step.env_reward, step.reward) == (EnvFailure(way), None, reward)
    assert step.trace.policy_response == answer.message
    assert (rollout.pending_prompt, rollout.conversation[-1]) == (None, answer.message)


async def test_observe_that_fails_on_a_hooks_message_leaves_the_step_before_as_it_was(tmp_path):
    """If `observe` fails on a hook's message, which is no turn of the policy, only the rollout has the failure."""

    class Deaf(Meddling):
        async def observe(self, messages):
            raise KeyError("the floor")

    async def remind(turn):
        return [Message("user", "Hurry.")] if turn.step else None

    await play(tmp_path / "run", Stage(lambda _: Deaf()), Remembering(said("I look.")), hooks=Hooks(before_turn=remind))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.error.layer, rollout.error.type) == (Layer.ENV, "KeyError")
    assert [(step.env_failure, step.env_reward) for step in rollout.steps] == [(None, 1.0)]
