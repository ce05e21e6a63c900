"""Recorded results of tool calls, which a replay gives to envs instead of running their tools."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

from rolltrace.trace.rollout import Rollout
from rolltrace.trace.stop_reasons import StopReason


class RecordedToolResult(NamedTuple):
    """The recorded result of one tool call."""

    content: str
    """The text for the policy."""
    error: str | None
    """How the call failed, if it did: a `ToolFailure`."""
    stop: bool
    """Whether the tool ended the episode."""


recorded_tool_results: ContextVar[Sequence[RecordedToolResult]] = ContextVar("rolltrace.tool_results", default=())
"""The results of the calls of the current turn, in their order; empty if tools run."""


def tool_results_of(rollout: Rollout, number: int) -> Sequence[RecordedToolResult]:
    """The results of the tools that a recorded step ran; empty if the record does not have all of them."""
    step = rollout.steps[number]
    calls = step.extra.get("tool_calls")
    if not isinstance(calls, list) or step.env_failure is not None:
        return ()
    is_last = number + 1 == len(rollout.steps)
    following = rollout.conversation if is_last else rollout.steps[number + 1].trace.prompt
    start = len(step.trace.prompt) + 1
    replies = following[start : start + len(calls)]
    if len(replies) < len(calls) or any(reply.role != "tool" for reply in replies):
        return ()
    stopped = is_last and rollout.stop_reason == StopReason.TOOL_STOPPED
    last = len(calls) - 1
    return [
        RecordedToolResult(reply.content, call.get("error"), stopped and position == last)
        for position, (call, reply) in enumerate(zip(calls, replies, strict=True))
    ]
