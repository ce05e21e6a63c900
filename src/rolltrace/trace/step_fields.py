"""The parts of a rollout on their way to the encoder: fields in the order and the form in which they are written."""

from datetime import UTC, datetime
from math import inf, isfinite
from types import NoneType
from typing import Any

import msgspec

from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import FAST_INT_LIMIT
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Failure, Outcome, Range, Usage
from rolltrace.trace.stop_reasons import EnvFailure, Status, StoppedBy, StopReason, Termination

_REASONS = frozenset({str, StopReason})
_TEXT_OR_NONE = frozenset({str, NoneType})
_TERMINATION_OR_NONE = frozenset({Termination, NoneType})


class StepFields(msgspec.Struct, gc=False):
    """A step on its way to the encoder: the fields of `Step`, in their order, as they are written."""

    step: int
    prompt: tuple[Range, ...]
    response: int | Message
    tools: int | None
    sampling: int | None
    reward: Any
    env_reward: Any
    reward_data: Any
    env_state: Any
    extra: Any
    metrics: Any
    logs: Any
    termination: Termination | None
    parse_error: str | None
    raw: str | None
    policy_version: int | str | None
    usage: Usage | None
    seconds: Any
    tokens: msgspec.Raw | None
    env_failure: EnvFailure | msgspec.UnsetType = msgspec.UNSET
    reward_weights: Any = msgspec.UNSET


class OutcomeFields(msgspec.Struct, gc=False):
    """How the rollout ended."""

    ended_at: datetime
    status: Status
    stop_reason: str
    stopped_by: StoppedBy
    error: Failure | None
    reward: Any
    reward_so_far: Any
    unclamped_reward: Any
    grade: msgspec.Raw | None


class ConversationFields(msgspec.Struct, gc=False):
    """Its conversation and its steps."""

    messages: list[Message]
    tools: list[tuple[ToolSpec, ...]]
    sampling: list[Any]
    steps: list[StepFields]
    final: tuple[Range, ...]
    pending_prompt: tuple[Range, ...] | None
    pending_raw: str | None


class TrailingFields(msgspec.Struct, gc=False):
    """What was learnt about the record itself, last, so that it tells all."""

    calls: list[dict[str, Any]]
    metrics: dict[str, Any]
    notes: list[Note]
    ended_before_first_turn: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def is_encodable_outcome(outcome: Outcome) -> bool:
    """Whether the end of a rollout can be encoded as it is: almost always, as with its steps."""
    reward, so_far, unclamped = outcome["reward"], outcome["reward_so_far"], outcome["unclamped_reward"]
    return (
        (reward is None or (type(reward) is float and isfinite(reward)))
        and type(so_far) is float
        and isfinite(so_far)
        and (unclamped is None or (type(unclamped) is float and isfinite(unclamped)))
        and type(outcome["stop_reason"]) in _REASONS
        and outcome["ended_at"].tzinfo is UTC
    )


def is_encodable_step(
    reward: Any,
    env_reward: Any,
    seconds: Any,
    termination: Any,
    parse_error: Any,
    raw: Any,
    policy_version: Any,
    usage: Any,
) -> bool:
    """Whether a step's fields can be encoded as they are: almost always, so one look at their types is all it costs."""
    return (
        type(reward) is float
        and isfinite(reward)
        and (env_reward is None or (type(env_reward) is float and isfinite(env_reward)))
        and (seconds is None or (type(seconds) is float and 0.0 <= seconds < inf))
        and type(termination) in _TERMINATION_OR_NONE
        and type(parse_error) in _TEXT_OR_NONE
        and type(raw) in _TEXT_OR_NONE
        and (type(policy_version) in _TEXT_OR_NONE or _is_small(policy_version))
        and (
            usage is None
            or (type(usage) is Usage and _is_small(usage.prompt_tokens) and _is_small(usage.completion_tokens))
        )
    )


def _is_small(value: Any) -> bool:
    """Whether it is an integer that every reader can hold."""
    return type(value) is int and -FAST_INT_LIMIT < value < FAST_INT_LIMIT


def is_encodable_numbers(values: dict[Any, Any]) -> bool:
    """Whether a map holds nothing but numbers that JSON has, under names: most do."""
    for name, value in values.items():
        kind = type(value)
        if kind is float:
            if not isfinite(value):
                return False
        elif kind is not bool and (kind is not int or not -FAST_INT_LIMIT < value < FAST_INT_LIMIT):
            return False
        if type(name) is not str:
            return False
    return True
