"""Wraps an environment that the runner plays, and reports what it does against the contract."""

import inspect
from collections.abc import Sequence
from typing import Any

from rolltrace.cancellation import is_failure
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.message_env import MessageEnvAdapter
from rolltrace.errors import RolltraceError
from rolltrace.policies.policy import Completion, to_completion
from rolltrace.testing.conformance.compare_plays import OBSERVATION_FIELDS, PlayEvent, snapshot
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.reply_styles import UNUSUAL_COMPLETIONS
from rolltrace.testing.conformance.return_values import is_bool
from rolltrace.testing.conformance.user_object import AlreadyReported, CancelPoint, UserObject
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.message import Message

_CLEAR_ERRORS = (RolltraceError, RuntimeError, ValueError)
_UNCLEAR_ERRORS = (NotImplementedError, RecursionError)
_NO_ERRORS = {
    "initial_observation": "let `initial_observation` return the first prompt without raising",
    "step": "let `step` accept whatever the policy says, and penalize it in the reward",
}


class ProbedEnv(Env):
    """Passes every call of the runner on to the user's env, and what that returns or raises back to the runner.

    `close` adds the calls that a runner never makes: `step` after `done`, and a second `close`.
    """

    when = "after a play"
    """When `close` is called, in words."""

    def __init__(self, env: Env, harness: Harness, style: str, where: str, point: CancelPoint | None) -> None:
        """`where` says in words how the env is played, and `point` cancels the play."""
        self.takes_any_completion = env.takes_any_completion is True
        if point is not None:
            self.when = "after a cancellation"
        self.events: list[PlayEvent] = []
        self.done = False
        """Whether the env said so."""
        self._env = env
        self._user = UserObject(env, harness)
        self._harness = harness
        self._style = style
        self._where = where
        self._point = point
        self._first_prompt: tuple[Message, ...] = ()
        self._prompt: tuple[Message, ...] = ()
        self._last: Completion | None = None

    @property
    def was_cut(self) -> bool:
        """Whether the play ended before the env was done, and not because it raised."""
        return not self.done and not (self.events and "raised" in self.events[-1].fields)

    def describe(self, call: str) -> str:
        """A call of this env, in words."""
        return f"{call} of `{self._user.name}`{self._where}"

    def show(self, prompt: tuple[Message, ...]) -> None:
        """Remember what the runner shows the policy."""
        self._first_prompt = self._first_prompt or prompt
        self._prompt = prompt

    async def initial_observation(self) -> Observation | StepResult:
        """The first observation of the user's env."""
        if self._harness.has(Rule.HANGS):
            raise AlreadyReported  # to play on would take as long again
        value = await self._call("initial_observation")
        where = self.describe("initial_observation")
        if not isinstance(value, StepResult):
            self._harness.return_values.observation(value, where, first=True)
        else:
            self._check_result(value, where, finished=False)
            if not self.done:
                self._harness.report(
                    Rule.TYPES,
                    f"{where} gave a `StepResult` that is not done",
                    "return an `Observation`, or a `StepResult` with `done=True` where there is nothing to play",
                )
        self.events.append(PlayEvent("the first observation", value, snapshot(value)))
        return value  # type: ignore[no-any-return]

    async def step(self, completion: Completion) -> StepResult:
        """The turn in the user's env."""
        turn = f"step {len(self.events) - 1}"
        self._last = completion
        value = await self._call("step", completion)
        messages = self._check_result(value, self.describe(turn))
        if messages and value.observation.replaces_history is not True:
            self._check_new(messages, completion.message, turn)
        self.events.append(PlayEvent(turn, value, snapshot(value)))
        return value  # type: ignore[no-any-return]

    def unfinished_step(self) -> StepResult | None:
        """The partial result of a step that raised or was cancelled, from the user's env."""
        name = self.describe("`unfinished_step`")
        fix = "return a `StepResult` or None at once, whatever `step` was doing"
        try:
            value: Any = self._env.unfinished_step()
        except Exception as error:
            self._harness.report(Rule.TYPES, f"{name} raised {short_repr(error)}", fix)
            raise
        if inspect.iscoroutine(value):
            value.close()
            self._harness.report(Rule.TYPES, f"{name} is `async def`", fix)
            return None
        if value is not None:
            self._harness.return_values.result(value, name, finished=False)
        return value  # type: ignore[no-any-return]

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """The observation that the user's env makes of messages from a hook."""
        name = f"`{self._user.name}.observe`"
        fix = "let `observe` take any messages, or return None"
        value = await self._user.call("observe", messages, rule=Rule.OBSERVE, name=name, fix=fix)
        if value is not None:
            seen = self._harness.return_values.observation(value, name)
            if isinstance(value, Observation) and not all(message in seen for message in messages):
                self._harness.report(
                    Rule.OBSERVE,
                    f"{name} returned an observation without the message that was put in",
                    "return an `Observation` with the messages that it was given, or None where that is unsupported",
                )
        return value  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the user's env twice, after one more `step` if it is done, and see whether what it returned changed."""
        name = f"`{self._user.name}.close`"
        fix = f"let `close` work {self.when}: release only what was acquired"
        try:
            if self.done and self._last is not None and self._point is None:
                await self._check_misuse(Rule.STEP_AFTER_DONE, self._last, "after `done`", "is already done")
            await self._user.call("close", rule=Rule.CLOSE, name=f"{name} {self.when}", fix=fix)
            fix = "let `close` do nothing the second time"
            await self._user.call("close", rule=Rule.CLOSE, name=f"the second {name}", fix=fix)
        finally:
            self._check_unchanged()
            self._user.over = True

    async def _call(self, method: str, *arguments: Any) -> Any:
        work = self.describe(f"`{method}` at turn {max(0, len(self.events) - 1)}")
        try:
            value = await self._user.run(method, *arguments, work=work, point=self._point)
        except BaseException as error:
            if is_failure(error):  # and not a cancellation
                self.events.append(PlayEvent(method, fields={"raised": type(error).__name__}))
                self._report_error(error, method)
            raise
        if self._point is not None and self._point.fired:
            self._report_cancellation(method, "went on")
        return value

    def _report_error(self, error: BaseException, method: str) -> None:
        if self._point is not None and self._point.fired:
            if not isinstance(error, AlreadyReported):
                self._report_cancellation(method, f"raised {short_repr(error)}")
        elif self._style in UNUSUAL_COMPLETIONS and method == "step":
            name = f"`{self._user.name}.step` on a completion that is {self._style}"
            fix = "let `step` penalize it by `completion.termination`, or leave `takes_any_completion` False"
            self._user.report_error(error, method, Rule.ANY_COMPLETION, name, fix)
        else:
            fix = _NO_ERRORS[method]
            self._user.report_error(error, method, Rule.PLAYS, self.describe(method), fix)

    def _report_cancellation(self, method: str, what: str) -> None:
        self._harness.report(
            Rule.CANCELLATION,
            f"{self.describe(method)} {what} when it was cancelled at an await",
            "let `CancelledError` through: clean up in `finally`, raise it again where it is caught, and bound waits "
            "with `asyncio.timeout`, because `asyncio.wait_for` can swallow it before Python 3.12",
        )

    def _check_result(self, value: Any, where: str, *, finished: bool = True) -> tuple[Message, ...]:
        """Check a step result, and return the messages of its observation."""
        if not self._harness.return_values.result(value, where, finished=finished):
            return ()
        self.done = is_bool(value.done) and bool(value.done)
        return () if value.observation is None else self._harness.return_values.observation(value.observation, where)

    def _check_new(self, messages: tuple[Message, ...], response: Message, turn: str) -> None:
        if any(_same_turn(message, response) for message in messages):
            what = "the policy's own message again"
        elif _repeats(messages, self._prompt) or _repeats(messages, self._first_prompt):
            what = "messages that are already in the prompt"
        else:
            return
        self._harness.report(
            Rule.NEW_MESSAGES,
            f"the observation of {self.describe(turn)} contains {what}",
            "return only what is new, or the whole prompt with `replaces_history=True`",
        )

    async def _check_misuse(self, rule: Rule, completion: Completion, when: str, reason: str) -> None:
        """Report a misused `step` that returns, or raises an error which does not say what is wrong."""
        try:
            value = await self._user.run("step", completion, work=self.describe(f"`step` {when}"))
            what = f"answered {short_repr(value)}"
        except AlreadyReported:
            return
        except BaseException as error:
            if not is_failure(error):
                raise
            if isinstance(error, _CLEAR_ERRORS) and not isinstance(error, _UNCLEAR_ERRORS) and str(error).strip():
                return
            what = f"raised {short_repr(error)}"
        self._harness.report(
            rule,
            f"`{self._user.name}.step` {when} {what}",
            "call `require_active()` of a `SingleUse` at the start of `step`, or raise an `EnvError` there, saying "
            f"that the environment {reason}",
        )

    def _check_unchanged(self) -> None:
        # A message env may go on changing the one list that it returns: its adapter's observations are that list.
        skipped = OBSERVATION_FIELDS if isinstance(self._env, MessageEnvAdapter) else ()
        for event in self.events:
            now = snapshot(event.value)
            for field, before in event.fields.items():
                if field not in skipped and field in now and now[field] != before:
                    self._harness.report(
                        Rule.UNCHANGING,
                        f"`{field}` of {event.call} of `{self._user.name}` changed after it was returned, "
                        f"from {short_repr(before)} to {short_repr(now[field])}",
                        "return copies, such as `list(self.history)` or `dict(self.state)`, of whatever is changed "
                        "later",
                    )


class UnstartedEnv(ProbedEnv):
    """An env that the runner ends before its first turn: `step` comes too early, and `close` without a start."""

    when = "on an environment that was never started"

    async def initial_observation(self) -> StepResult:
        """The end, after a `step` that comes too early: a runner never makes that call."""
        too_early = to_completion("Answer: 1")
        when, reason = "before `initial_observation`", "has not been started"
        await self._check_misuse(Rule.STEP_BEFORE_START, too_early, when, reason)
        return StepResult(0.0, done=True)


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

    The same few words at each turn ("Your move?") are not a history; the same system message is.
    """
    if not earlier or tuple(messages[: len(earlier)]) != tuple(earlier):
        return False
    return len(messages) > len(earlier) or any(message.role == "system" for message in earlier)
