"""Plays one environment, checks what it returns, and keeps it for comparison."""

import inspect
from collections.abc import Sequence
from typing import Any

from rolltrace.envs.env import STEP_MAP_FIELDS, Env, Observation, StepResult
from rolltrace.envs.message_env import MessageEnvAdapter
from rolltrace.errors import EnvError
from rolltrace.policies.policy import Completion
from rolltrace.testing.conformance.compare_plays import COMPARED, PlayEvent, without_timings
from rolltrace.testing.conformance.guarded_caller import CallOutcome, CancelPoint
from rolltrace.testing.conformance.harness import Harness, check_misuse
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.return_values import FrozenObservation, is_bool
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.freeform import to_json_value
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message, ToolSpec


class ProbedEnv(Env):
    """Wraps an environment: the runner plays it, and what it returns is checked.

    The runner gets only what it needs to go on. It does not close the environment: `check_end` does.
    """

    def __init__(self, env: Env, harness: Harness, where: str = "", point: CancelPoint | None = None) -> None:
        self._before = harness.running()
        self.caller = harness.guard(env, asks=True)
        self.events: list[PlayEvent] = []
        self.done = False
        """Whether the env said so."""
        self.prompt: tuple[Message, ...] = ()
        self.tools: tuple[ToolSpec, ...] = ()
        self._first: tuple[Message, ...] = ()
        self.takes_any_completion = env.takes_any_completion is True
        self._harness = harness
        self._where = where
        self._point = point
        self._last: Completion | None = None
        self._kept: list[tuple[str, Any, Any]] = []
        self._turns = 0

    @property
    def cut(self) -> bool:
        """Whether the play ended before the env was done, and not because it raised."""
        return not self.done and not (self.events and self.events[-1].raised)

    async def initial_observation(self) -> Observation | StepResult:
        """The first observation of the wrapped env."""
        if (frozen := await self.start()) is not None:
            return _observation(frozen)
        if self.done:
            return StepResult(0.0, True)
        raise EnvError("There is no valid first observation: the violation is reported.")

    async def step(self, completion: Completion) -> StepResult:
        """The turn in the wrapped env."""
        frozen = await self._take_turn(completion)
        if self.done:
            return StepResult(0.0, True)
        if frozen is None:
            raise EnvError("There is no valid result of the step: the violation is reported.")
        return StepResult(0.0, False, _observation(frozen))

    async def start(self) -> FrozenObservation | None:
        """Ask for the first observation; None if there is none."""
        outcome = await self._call("initial_observation")
        if outcome is None:
            return None
        if isinstance(outcome.value, StepResult):
            self._end_at_once(outcome.value)
            return None
        self._keep_observation("the first observation", outcome.value)
        seen = self._harness.return_values.observation(outcome.value, self._name("initial_observation"), first=True)
        self.events.append(PlayEvent("the first observation", seen))
        if seen is not None:
            self.prompt = self._first = seen.messages
            self.tools = seen.tools
        return seen

    def _end_at_once(self, returned: StepResult) -> None:
        """Take a `StepResult` in place of the first observation: the game was over before the first turn."""
        where = self._name("initial_observation")
        result = self._harness.return_values.result(returned, where)
        if result is None or not result.done:
            self._harness.report.add(
                Rule.TYPES,
                f"{where} gave a `StepResult` that is not done",
                "return an `Observation`, or a `StepResult` with `done=True` where there is nothing to play",
            )
            return
        self._keep_result("the first observation", result)
        seen = None
        if result.observation is not None:
            seen = self._harness.return_values.observation(result.observation, where)
        if seen is not None:
            self._first = seen.messages
        details = {field: without_timings(getattr(result, field)) for field in COMPARED}
        self.events.append(PlayEvent("the first observation", seen, as_number(result.reward), True, details=details))
        self.done = True

    async def _take_turn(self, completion: Completion) -> FrozenObservation | None:
        """Take a turn; the observation, or None if the play cannot go on."""
        turn = f"step {len(self.events) - 1}"
        self._last = completion
        outcome = None
        try:
            outcome = await self._call("step", completion)
        finally:
            if outcome is None:
                self._check_unfinished()
        result = None if outcome is None else self._harness.return_values.result(outcome.value, self._name(turn))
        if result is None:
            return None
        self._keep_result(turn, result)
        seen = None
        if result.observation is not None:
            seen = self._harness.return_values.observation(result.observation, self._name(turn))
        number = as_number(result.reward)
        reward = type(result.reward).__name__ if number is None else to_json_value(number, "", [])
        details = {field: without_timings(getattr(result, field)) for field in COMPARED}
        self.events.append(PlayEvent(turn, seen, reward, bool(result.done), details=details))
        # The play ends if `done` is not a bool.
        self.done = is_bool(result.done) and bool(result.done)
        self._turns += 1
        if seen is not None:
            self._show(seen, completion.message, turn)
        return seen if is_bool(result.done) else None

    async def check_step_after_done(self) -> None:
        """A further step must be a clear error."""
        if self.done and self._last is not None:
            outcome = await self.caller.call("step", self._last)
            check_misuse(self._harness.report, Rule.STEP_AFTER_DONE, self.caller.target, outcome)

    async def check_end(self, when: str) -> None:
        """Close the env twice, and see whether anything that it returned has changed."""
        name = f"`{type(self.caller.target).__name__}.close`"
        first = await self.caller.call("close")
        self._harness.blocked_times.add(f"{name} {when}", "close", first.blocked_seconds)
        fix = f"let `close` work {when}: give back only what there is"
        self._harness.report_raised(Rule.CLOSE, f"{name} {when}", first, fix)
        if first.returned:
            second = await self.caller.call("close")
            self._harness.report_raised(
                Rule.CLOSE, f"the second {name}", second, "let `close` do nothing the second time"
            )
        for label, value, snapshot in self._kept:
            if (now := to_json_value(value, label, [])) != snapshot:
                self._harness.report.add(
                    Rule.UNCHANGING,
                    f"{label} of `{type(self.caller.target).__name__}` changed after it was returned, "
                    f"from {short_repr(snapshot)} to {short_repr(now)}",
                    "return copies, such as `list(self.history)` or `dict(self.state)`, of whatever is changed later",
                )
        if self.caller.role_calls is not None:
            self.caller.role_calls.over = True
        await self.caller.stop()

    async def check_nothing_running(self, when: str) -> None:
        """Once every seat is closed, the tasks that were started since this one was made must have ended."""
        fix = "cancel and await, in `finally` or in `close`, every task that the environment started"
        await self._harness.check_leftover_tasks(self._before, f"after `close` {when}", fix)

    async def _call(self, method: str, *arguments: Any) -> CallOutcome | None:
        """The outcome of a call, or None if there is no value to go on with."""
        role_calls, calls_before = self.caller.role_calls, 0
        if role_calls is not None:
            role_calls.step, calls_before = max(0, len(self.events) - 1), len(role_calls.calls)
        outcome = await self.caller.call(method, *arguments, point=self._point)
        if self._point is not None and self._point.fired:
            self._check_cancelled(method, outcome)
            return None
        if outcome.returned:
            self._harness.blocked_times.add(
                self._name(f"`{method}` at turn {self._turns}"), method, outcome.blocked_seconds
            )
            return outcome
        if role_calls is not None and role_calls.report_unusable_answer(outcome.error, calls_before, method):
            self.events.append(PlayEvent(method, raised=type(outcome.error).__name__))
        else:
            self._harness.report_raised(
                Rule.PLAYS,
                self._name(method),
                outcome,
                f"let `{method}` take whatever a policy says, and charge for it in the reward",
            )
            self.events.append(PlayEvent(method, raised=type(outcome.error).__name__))
        return None

    def _check_unfinished(self) -> None:
        """After a step that did not return, `unfinished_step` must tell what came of it, or nothing, and not raise."""
        where, fix = self._name("`unfinished_step`"), "return a `StepResult` or None at once, whatever `step` was doing"
        try:
            unfinished = self.caller.target.unfinished_step()
        except Exception as error:  # noqa: BLE001 - the code under test may raise anything
            self._harness.report.add(Rule.TYPES, f"{where} raised {short_repr(error)}", fix)
            return
        if inspect.iscoroutine(unfinished):
            unfinished.close()
            self._harness.report.add(Rule.TYPES, f"{where} is `async def`", fix)
        elif unfinished is not None:
            self._harness.return_values.result(unfinished, where, finished=False)

    def _check_cancelled(self, method: str, outcome: CallOutcome) -> None:
        if outcome.cancelled or outcome.hung:
            return
        what = "went on" if outcome.returned else f"raised {short_repr(outcome.error)}"
        self._harness.report.add(
            Rule.CANCELLATION,
            f"{self._name(method)} {what} when it was cancelled at an await",
            "let `CancelledError` through: clean up in `finally`, raise it again where it is caught, and bound waits "
            "with `asyncio.timeout`, because `asyncio.wait_for` can swallow it before Python 3.12",
        )

    def answer(self, style: ReplyStyle, turn: int) -> Completion:
        """The policy's reply to the prompt; an error in the style is reported and raised again."""
        try:
            return style(self.prompt, self.tools, turn)
        except Exception as error:
            self._harness.report.add(
                Rule.ANSWERS,
                f"no answer could be made for {self._name(f'turn {turn}')}: {short_repr(error)}",
                "pass `answers` that answer every prompt of this environment, with tools whose parameters are a schema",
            )
            raise

    def _show(self, seen: FrozenObservation, response: Message, turn: str) -> None:
        """Make the observation part of the prompt, as a runner would."""
        if seen.replaces_history is True:
            self.prompt = seen.messages
        else:
            self._check_new(seen.messages, response, turn)
            self.prompt = (*self.prompt, response, *seen.messages)
        self.tools = seen.tools

    def _check_new(self, messages: tuple[Message, ...], response: Message, turn: str) -> None:
        if any(_same_turn(message, response) for message in messages):
            what = "the policy's own message again"
        elif _repeats(messages, self.prompt) or _repeats(messages, self._first):
            what = "messages that are already in the prompt"
        else:
            return
        self._harness.report.add(
            Rule.NEW_MESSAGES,
            f"the observation of {self._name(turn)} contains {what}",
            "return only what is new, or the whole prompt with `replaces_history=True`",
        )

    def _keep_result(self, turn: str, result: StepResult) -> None:
        self._keep_observation(f"`observation` of {turn}", result.observation)
        for field in STEP_MAP_FIELDS:
            self._keep(f"`{field}` of {turn}", getattr(result, field))

    def _keep_observation(self, label: str, value: Any) -> None:
        # A message env may go on changing the one list that it returns: its adapter's observations are that list.
        if not isinstance(self.caller.target, MessageEnvAdapter):
            self._keep(label, value)

    def _keep(self, label: str, value: Any) -> None:
        self._kept.append((label, value, to_json_value(value, label, [])))

    def _name(self, call: str) -> str:
        return f"{call} of `{type(self.caller.target).__name__}`{self._where}"


def _observation(frozen: FrozenObservation) -> Observation:
    return Observation(frozen.messages, frozen.tools, frozen.stop, frozen.replaces_history is True)


def _same_turn(message: Message, response: Message) -> bool:
    """Whether a message is the policy's, perhaps with what an env does not keep left out."""
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return (
        message.role == response.role
        and message.content == response.content
        and calls == [(call.name, call.arguments) for call in response.tool_calls]
    )


def _repeats(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    """Whether the messages are an earlier prompt with more after it.

    The same few words at each turn ("Your move?") are no history; the same system message is one.
    """
    if not earlier or tuple(messages[: len(earlier)]) != tuple(earlier):
        return False
    return len(messages) > len(earlier) or any(message.role == "system" for message in earlier)
