"""Building blocks for tests that play rollouts: a recording policy, a mutating env, builders and a stage."""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter, MessageStepResult
from rolltrace.graders.grader import Grader
from rolltrace.policies.policy import Completion, Request
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.trace.convert import to_openai
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Usage


def said(text: str, termination: Termination = Termination.EOS, **fields: Any) -> Completion:
    """A completion that says `text`."""
    return Completion(
        message=Message("assistant", text), termination=termination, usage=Usage(7, len(text.split())), **fields
    )


def called(*calls: ToolCall, text: str = "") -> Completion:
    """A completion that calls tools."""
    return Completion(
        message=Message("assistant", text, tool_calls=calls), termination=Termination.TOOL_CALLS, usage=Usage(7, 3)
    )


class Remembering:
    """A policy that plays a list of answers and keeps an independent copy of all prompts and answers."""

    name = "remembering"
    version: int | str | None = 3

    def __init__(
        self,
        *answers: Completion | BaseException | Callable[[Request], Any],
        context_length: int | None = None,
        tokens: Callable[[Request], int | None] = lambda request: None,
    ) -> None:
        self.answers = answers
        self.context_length = context_length
        self._tokens = tokens
        self.sent: dict[str, list[list[dict[str, Any]]]] = {}
        self.said: dict[str, list[dict[str, Any]]] = {}

    def count_tokens(self, request: Request) -> int | None:
        return self._tokens(request)

    async def complete(self, request: Request) -> Completion:
        assert request.identity is not None
        rollout = request.identity.id
        self.sent.setdefault(rollout, []).append([to_openai(message) for message in request.messages])
        await asyncio.sleep(0)  # yields to the loop, as any real policy does, so that an env can mutate messages now
        answer = self.answers[min(request.step, len(self.answers) - 1)]
        if callable(answer) and not isinstance(answer, BaseException):
            answer = answer(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        self.said.setdefault(rollout, []).append(to_openai(answer.message))
        return answer


MEDDLINGS = ("append", "edit_old", "edit_tool_call", "truncate", "replace", "edit_response")


class NeverAnswers:
    """A policy that never answers, and says when it was asked."""

    name, version, context_length = "patient", None, None

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: Request) -> Any:
        """Wait without end."""
        self.asked.set()
        await asyncio.Event().wait()

    def count_tokens(self, request: Request) -> None:
        """Not known."""


class Meddling(MessageEnv):
    """Keeps one history, changes it in place before and after returning it, and returns it whole every time.

    `returned` holds an independent deep copy of each history, taken at the moment it was returned.
    """

    def __init__(
        self, meddling: str = "append", *, turns: int = 3, stop_reason: str | None = None, observes: bool = True
    ) -> None:
        self.meddling = meddling
        self.turns = turns
        self.stop_reason = stop_reason
        self.observes = observes
        self.closed = 0
        self.turn = 0
        self.state = {"turn": 0, "seen": ["start"]}
        call = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
        self.history: list[dict[str, Any]] = [
            {"role": "system", "content": "You are in a room."},
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "A door.", "tool_call_id": "c0"},
            {"role": "user", "content": "What now?"},
        ]
        self.returned: list[list[dict[str, Any]]] = []

    async def initial_observation(self) -> list[dict[str, Any]]:
        return self._hand_out()

    async def step(self, message: dict[str, Any]) -> MessageStepResult:
        self.turn += 1
        self.history.append(message)
        self.history.append({"role": "user", "content": f"Turn {self.turn}."})
        self.meddle()
        self.state["turn"] = self.turn
        self.state["seen"].append(f"turn {self.turn}")
        done = self.turn >= self.turns
        return MessageStepResult(
            reward=float(self.turn),
            episode_done=done,
            next_messages=self._hand_out(),
            env_state=self.state,
            reward_data={"turn": self.turn},
            stop_reason=self.stop_reason if done else None,
        )

    async def observe(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
        if not self.observes:
            return None
        self.history.extend(messages)
        return self._hand_out()

    async def close(self) -> None:
        self.closed += 1
        self.history.clear()

    def _hand_out(self) -> list[dict[str, Any]]:
        self.returned.append(copy.deepcopy(self.history))
        # ... and again without the runner's knowledge, at the next await.
        asyncio.get_running_loop().call_soon(self.meddle)
        return self.history

    def meddle(self) -> None:
        """Changes what was handed out."""
        history = self.history
        if not history:
            return
        if self.meddling == "append":
            history.append({"role": "user", "content": "By the way."})
        elif self.meddling == "edit_old":
            history[0]["content"] += " It is dark."
        elif self.meddling == "edit_tool_call":
            for message in history:
                for call in message.get("tool_calls", ()):
                    call["function"]["arguments"] += " "
        elif self.meddling == "truncate":
            del history[1:3]
        elif self.meddling == "replace":
            history[:] = [{"role": "system", "content": f"All is new, {len(self.returned)} times."}]
        elif self.meddling == "edit_response":
            for message in history:
                if message["role"] == "assistant":
                    message["content"] += " (censored)"


class Counting(Grader):
    """Grades 10 and counts how often it was asked."""

    def __init__(self, reward: Any = 10.0) -> None:
        self.reward = reward
        self.asked: list[str] = []

    async def grade(self, rollout: Rollout) -> Grade:
        self.asked.append(rollout.id)
        if isinstance(self.reward, BaseException):
            raise self.reward
        return Grade(self.reward, {"length": len(rollout.conversation)}, {"why": "because"})


class Stage(EnvGroupBuilder):
    """Episodes of whatever `make` makes."""

    env = "stage"
    task = "task"

    def __init__(
        self,
        make: Callable[[int], Any],
        *,
        episodes: int = 1,
        seats: int = 1,
        grader: Grader | None = None,
        task: str = "task",
    ) -> None:
        self.make = make
        self.episodes = episodes
        self.seats = seats
        self.grader = grader
        self.task = task
        self.made: list[Any] = []
        self.cleaned = 0

    async def make_episode(self, number: int) -> Sequence[Env]:
        made = self.make(number)
        made = made if isinstance(made, list) else [made]
        self.made.extend(made)
        return [env if isinstance(env, Env) else MessageEnvAdapter(env) for env in made]

    async def cleanup(self) -> None:
        self.cleaned += 1


class GradedStage(Stage):
    """A stage whose group grader adds 100 times the index, and records which members it saw."""

    seen: tuple[str, ...] = ()

    async def grade_group(self, rollouts: Sequence[Rollout]) -> Mapping[str, Grade]:
        self.seen = tuple(rollout.id for rollout in rollouts)
        return {rollout.id: Grade(100.0 * (rollout.index + 1)) for rollout in rollouts if rollout.status == "ok"}


async def play(path: Any, builders: Any, policy: Any, *, iteration: int = 0, **settings: Any) -> list[Any]:
    """Play into a run on disk and close it."""
    builders = builders if isinstance(builders, list) else [builders]
    with create_run(path, trace=Recording(tokens=True)) as run:
        runner = Runner(policy, sink=run, **settings)
        return [group async for group in runner.play(builders, iteration=iteration)]


def skip_time(seconds: float) -> None:
    """Advances the loop's clock by this much: its timers fire without a wait."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]


async def never(request: Request | None = None) -> None:
    """An answer that never comes, although an hour passes."""
    skip_time(3600)
    await asyncio.Event().wait()


def recorded(path: Any) -> list[Rollout]:
    """The rollouts on disk, by group, index and attempt."""
    reader = RunReader(path)
    rollouts = sorted(reader.rollouts(), key=lambda rollout: (rollout.group, rollout.index, rollout.attempt))
    assert not reader.read_errors
    return rollouts


def assert_faithful(rollout: Rollout, policy: Remembering) -> None:
    """Asserts that each recorded prompt is what the policy was sent, and each response what it said."""
    sent = policy.sent.get(rollout.id, [])
    said = policy.said.get(rollout.id, [])
    assert len(rollout.steps) in (len(sent), len(sent) - 1)
    for number, step in enumerate(rollout.steps):
        assert [to_openai(message) for message in step.trace.prompt] == sent[number]
        assert to_openai(step.trace.policy_response) == said[number]
    if len(sent) > len(rollout.steps):
        assert rollout.pending_messages is not None
        assert [to_openai(message) for message in rollout.pending_messages] == sent[-1]
    else:
        assert rollout.pending_prompt is None


BROKEN_CALL = ToolCall("look", '{"at": ', id="c1")
GOOD_CALL = ToolCall("look", '{"at": "wall"}', id="c2")


class Case:
    """One row of the table: played with both graders and without the group's, and what both records agree on."""

    def __init__(self, tmp_path, make, policy, *, limits=Limits(), grader=None, **settings):
        self.tmp_path = tmp_path
        self.make = make
        self.policy = policy
        self.limits = limits
        self.settings = settings
        self.grader = grader or Counting()

    async def play(self):
        """The rollout; the case keeps the group grader's reward and which rollouts were graded."""
        single = Stage(self.make, grader=self.grader)
        await play(self.tmp_path / "single", single, self.policy, limits=self.limits, **self.settings)
        [self.rollout] = recorded(self.tmp_path / "single")
        assert_faithful(self.rollout, self.policy)
        self.env = single.made[0]
        self.needs_grade = self.rollout.id in self.grader.asked
        assert (self.rollout.grade is not None) == (self.needs_grade and self.rollout.error is None)

        group = GradedStage(self.make, grader=self.grader)
        await play(self.tmp_path / "group", group, self.policy, limits=self.limits, **self.settings)
        [pending] = recorded(self.tmp_path / "group")
        assert_faithful(pending, self.policy)
        assert pending.reward is None
        assert pending.reward_so_far == self.rollout.reward_so_far
        assert pending.stop_reason == self.rollout.stop_reason
        scores = list(RunReader(self.tmp_path / "group").scores())
        self.group_graded = [score.value for score in scores if score.name == "reward" and score.rollout == pending.id]
        return self.rollout

    def rewards(self):
        return [step.reward for step in self.rollout.steps]

    def env_rewards(self):
        return [step.env_reward for step in self.rollout.steps]


def expect_limit(case, reason, *, total):
    """Asserts a limit of the runner: not graded by the rollout's grader, graded by the group's."""
    rollout = case.rollout
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == (Status.OK, reason, StoppedBy.RUNNER)
    assert rollout.reward == pytest.approx(total)
    assert not case.needs_grade
    assert case.group_graded == [pytest.approx(total + 100)]


def expect_failure(case, layer, kind):
    """Asserts a failure: the total is null, and no grader is asked."""
    rollout = case.rollout
    assert (rollout.status, rollout.stop_reason) == (Status.ERROR, StopReason.ERROR)
    assert rollout.reward is None
    assert rollout.error is not None
    assert (rollout.error.layer, rollout.error.type) == (layer, kind)
    assert kind in rollout.error.traceback
    assert rollout.grade is None
    assert case.group_graded == []


def fields_of(builder):
    """The fields of a builder in a form that can be compared: two equal partials are not `==`."""
    fields = dict(vars(builder))
    if (make := fields.get("make_env")) is not None:
        fields["make_env"] = (make.func, make.args, make.keywords)
    return fields
