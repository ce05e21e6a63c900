"""A conversation with tools: it continues after tool calls, and ends with a turn without any."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import Env, Observation, SingleUse, StepResult
from rolltrace.envs.tools import Tool, ToolFailure, ToolOutcome, parse_error_of
from rolltrace.errors import EnvError, InputError, UnknownNameError
from rolltrace.policies.policy import Completion
from rolltrace.policies.recorded_tools import recorded_tool_results
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import StopReason

MAX_PARALLEL_CALLS = 32
"""Calls of one turn that run in parallel; a policy may make thousands."""

_MAX_NAME_CHARS = 100
_UNFINISHED = ToolOutcome("", ToolFailure.UNFINISHED)


class ToolEnv(Env):
    """A conversation in which the policy may call tools.

    Each call gets a reply of role `tool`, in the order of the calls, with the call's id and name; the reply to a call
    without an id has none either. The reply to a failed call is its error. Subclasses score the last message in
    `final`, and a turn with tool calls in `after_tools`.
    """

    def __init__(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Tool | Callable[..., Any]],
        *,
        max_turns: int | None = None,
        max_tool_calls: int | None = None,
        parallel: bool = True,
        tool_seconds: float | None = 30.0,
        check: Callable[[str], float] | None = None,
    ) -> None:
        """Plain functions among `tools` become tools; `check` scores the text of the final message."""
        _check_limits(messages, max_turns, max_tool_calls, tool_seconds)
        self.max_turns = max_turns
        self.max_tool_calls = max_tool_calls
        self.parallel = parallel
        self.tool_seconds = tool_seconds
        self.check = check
        self.turns = 0
        """Turns that the policy has used."""
        self.tool_calls = 0
        """Calls that were run or refused by a tool; calls that could not be parsed do not count."""
        self._notes: list[Note] = []  # on `messages`; recorded with the first step
        self._messages = tuple(as_message(value, f"messages[{n}]", self._notes) for n, value in enumerate(messages))
        self._tools = _by_name(tools)
        self._specs = tuple(tool.spec for tool in self._tools.values())
        self._life = SingleUse()
        self._calls: Sequence[ToolCall] = ()
        """The calls of the current turn that are run."""
        self._outcomes: dict[int, ToolOutcome] = {}
        """Their outcomes so far, by position."""

    async def initial_observation(self) -> Observation:
        """The first prompt, and the tools."""
        self._life.start()
        return self._observation(self._messages)

    async def step(self, completion: Completion) -> StepResult:
        """Run the tools that the turn calls, or score it if it calls none."""
        self._calls, self._outcomes = (), {}
        self._life.require_active()
        self.turns += 1
        if completion.message.tool_calls:
            result = await self._tool_turn(completion)
        else:
            result = await self._final_turn(completion)
        if result.done:
            self._life.end()
        return self._with_counts(result)

    def unfinished_step(self) -> StepResult | None:
        """The replies of the tools that have returned, in the order of the calls."""
        ran = [(call, self._outcomes.get(position, _UNFINISHED)) for position, call in enumerate(self._calls)]
        replies: list[Message] = []
        unplaced: list[dict[str, Any]] = []
        for position, (call, outcome) in enumerate(ran):
            if outcome is _UNFINISHED:
                continue
            if call.id is None and position > len(replies):  # without an id, only its position identifies the call
                unplaced.append({"name": call.name, "content": outcome.content})
            else:
                replies.append(_reply(call, outcome))
        fields = _record_fields(ran)
        if unplaced:
            fields["logs"]["unplaced_tool_results"] = unplaced
        observation = self._observation(replies) if replies else None
        return self._with_counts(msgspec.structs.replace(StepResult(0.0, False, observation), **fields))

    def _with_counts(self, result: StepResult) -> StepResult:
        logs = {"notes": [f"{note.path}: {note.message}" for note in self._notes]} if self._notes else {}
        self._notes = []
        return msgspec.structs.replace(
            result,
            env_state={"turns": self.turns, "tool_calls": self.tool_calls, **result.env_state},
            metrics={"tool_calls": 0, "tool_errors": 0, **result.metrics},
            logs={**logs, **result.logs},
        )

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Accept messages from outside. Each message of the policy uses a turn; None if no turn would be left."""
        self._life.require_active("observe()")
        turns = self.turns + sum(message.role == "assistant" for message in messages)
        if self.max_turns is not None and turns >= self.max_turns:
            return None
        self.turns = turns
        return self._observation(messages)

    async def final(self, completion: Completion) -> StepResult:
        """Score the final message. If the result is not done, the conversation continues while turns are left."""
        reward = 0.0 if self.check is None else self.check(completion.message.content)
        return StepResult(reward=reward, done=True)

    async def after_tools(
        self, completion: Completion, outcomes: Sequence[ToolOutcome], stop_reason: str | None
    ) -> StepResult:
        """Score a turn that called tools; with a stop reason, it was the last one.

        A result that is done also ends the episode. Its observation is replaced by the replies of the tools.
        """
        return StepResult(reward=0.0, done=False)

    async def _final_turn(self, completion: Completion) -> StepResult:
        result = await self.final(completion)
        if result.done:
            return result
        if self._last_turn:
            return msgspec.structs.replace(result, done=True, stop_reason=StopReason.MAX_TURNS)
        if result.observation is None:
            raise EnvError(f"Expected {type(self).__name__}.final to return an observation or done=True, got neither.")
        observation = msgspec.structs.replace(result.observation, tools=result.observation.tools or self._specs)
        return msgspec.structs.replace(result, observation=observation)

    async def _tool_turn(self, completion: Completion) -> StepResult:
        calls = completion.message.tool_calls
        self._calls = self._allowed(calls)
        outcomes = await self._run(self._calls)
        ran, dropped = list(zip(calls, outcomes, strict=False)), calls[len(outcomes) :]
        stop_reason = self._stop_reason(outcomes, dropped)
        result = await self.after_tools(completion, outcomes, stop_reason)
        fields = _record_fields(ran)
        if dropped:
            fields["logs"]["dropped_tool_calls"] = [{"id": call.id, "name": call.name} for call in dropped]
        return msgspec.structs.replace(
            result,
            done=result.done or stop_reason is not None,
            stop_reason=stop_reason or result.stop_reason,
            observation=self._observation([_reply(call, outcome) for call, outcome in ran]),
            extra={**result.extra, **fields["extra"]},
            metrics={**result.metrics, **fields["metrics"]},
            logs={**result.logs, **fields["logs"]},
        )

    def _allowed(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """The calls within `max_tool_calls`. Calls that cannot be parsed are not run and do not count."""
        if self.max_tool_calls is None:
            return calls
        remaining = self.max_tool_calls - self.tool_calls
        for position, call in enumerate(calls):
            if parse_error_of(call) is None:
                if remaining == 0:
                    return calls[:position]
                remaining -= 1
        return calls

    async def _run(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """The outcomes of the calls, in order. Sequential calls stop after one that ends the episode."""
        if self.parallel and len(calls) > 1:
            slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)
            # A task group waits for all its tasks, also when it is cancelled.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call_in(slots, *numbered)) for numbered in enumerate(calls)]
            return [task.result() for task in tasks]
        outcomes = []
        for position, call in enumerate(calls):
            outcomes.append(await self._call(position, call))
            if outcomes[-1].stop:
                break
        return outcomes

    async def _call_in(self, slots: asyncio.Semaphore, position: int, call: ToolCall) -> ToolOutcome:
        async with slots:
            return await self._call(position, call)

    async def _call(self, position: int, call: ToolCall) -> ToolOutcome:
        """Run a call and store its outcome, also for a turn that does not end."""
        outcome = self._outcomes[position] = await self._outcome_of(position, call)
        self.tool_calls += outcome.error is not ToolFailure.UNPARSABLE
        return outcome

    async def _outcome_of(self, position: int, call: ToolCall) -> ToolOutcome:
        if (parse_error := parse_error_of(call)) is not None:
            return ToolOutcome(f"Error: this call could not be read. {parse_error}", ToolFailure.UNPARSABLE)
        tool = self._tools.get(call.name)
        if tool is None:
            unknown = UnknownNameError.for_name("tool", call.name[:_MAX_NAME_CHARS], self._tools)
            return ToolOutcome(f"Error: {unknown}", ToolFailure.UNKNOWN_TOOL)
        if position < len(recorded := recorded_tool_results.get()):
            content, error, stop = recorded[position]
            return ToolOutcome(content, None if error is None else ToolFailure(error), stop=stop)
        return await tool.call(call.arguments, self.tool_seconds)

    def _stop_reason(self, outcomes: Sequence[ToolOutcome], dropped: Sequence[ToolCall]) -> str | None:
        if any(outcome.stop for outcome in outcomes):
            return StopReason.TOOL_STOPPED
        if dropped:
            return StopReason.MAX_TOOL_CALLS
        return StopReason.MAX_TURNS if self._last_turn else None

    @property
    def _last_turn(self) -> bool:
        return self.max_turns is not None and self.turns >= self.max_turns

    def _observation(self, messages: Sequence[Message | Mapping[str, Any]]) -> Observation:
        return Observation(messages=tuple(messages), tools=self._specs)


def _check_limits(
    messages: Sequence[Any], max_turns: int | None, max_tool_calls: int | None, tool_seconds: float | None
) -> None:
    if not messages:
        raise InputError("Expected at least one message to start the conversation with, got none.")
    if max_turns is not None and max_turns < 1:
        raise InputError(f"Expected max_turns of at least 1, or None for no limit, got {max_turns}.")
    if max_tool_calls is not None and max_tool_calls < 0:
        raise InputError(f"Expected max_tool_calls of at least 0, or None for no limit, got {max_tool_calls}.")
    if tool_seconds is not None and not tool_seconds > 0:
        raise InputError(f"Expected tool_seconds above 0, or None for no limit, got {tool_seconds}.")


def _by_name(tools: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    by_name: dict[str, Tool] = {}
    for function in tools:
        tool = function if isinstance(function, Tool) else Tool(function)
        if tool.spec.name in by_name:
            raise InputError(f"Expected tools of different names, got two named {tool.spec.name!r}: rename one.")
        by_name[tool.spec.name] = tool
    return by_name


def _reply(call: ToolCall, outcome: ToolOutcome) -> Message:
    return Message("tool", outcome.content, tool_call_id=call.id, name=call.name or None)


def _record_fields(ran: Sequence[tuple[ToolCall, ToolOutcome]]) -> dict[str, dict[str, Any]]:
    """The fields of a step that record its tool calls."""
    returned = [outcome for _, outcome in ran if outcome is not _UNFINISHED]
    failed = sum(outcome.error is not None for outcome in returned)
    logged = [{"id": call.id, "name": call.name, "log": outcome.log} for call, outcome in ran if outcome.log]
    return {
        "extra": {"tool_calls": [_record(call, outcome) for call, outcome in ran]} if ran else {},
        "metrics": {"tool_calls": len(returned), "tool_errors": failed},
        "logs": {"tools": logged} if logged else {},
    }


def _record(call: ToolCall, outcome: ToolOutcome) -> dict[str, Any]:
    error = None if outcome.error is None else outcome.error.value
    seconds = None if outcome is _UNFINISHED else outcome.seconds
    return {"id": call.id, "name": call.name, "error": error, "seconds": seconds}
