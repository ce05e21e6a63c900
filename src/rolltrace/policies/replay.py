"""A policy that repeats the answers of a recorded run, if the prompts are the same."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rolltrace.errors import ContextOverflowError, PolicyError
from rolltrace.policies.policy import Completion, Request, to_completion
from rolltrace.policies.replay_index import RecordSource, ReplayIndex, prompt_digest, with_full_prompts
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.call import Call
from rolltrace.trace.convert import coerce_message
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.stop_reasons import Layer, StopReason
from rolltrace.trace.text_transform import has_hashed_text

_MAX_SHOWN_CHARS = 40
"""How many characters of a text an error shows from the first difference on."""


class ReplayPolicy:
    """Answers each turn, and each call of another role, from the record of the same rollout.

    Rollouts are the same if their split, iteration, env, task, group, index and attempt are equal. If the prompt or
    the tools differ from the record, an error names the first difference; with `strict=False` the recorded answer is
    returned anyway. If the recorded policy failed, this one fails with the same message.
    """

    version: int | str | None = None
    context_length: int | None = None

    def __init__(self, records: RecordSource, *, name: str = "replay", strict: bool = True) -> None:
        self.name = name
        self.strict = strict
        self._index = ReplayIndex(records)
        self._call_counts: Counter[tuple[str, str, bytes]] = Counter()
        """How many calls were answered, by rollout, role and prompt. A repeated call gets the next recorded answer."""

    async def complete(self, request: Request) -> Completion:
        """Return the recorded answer."""
        # Count before reading, so that the order of requests decides and not the time to read. Turns have a number.
        is_turn = request.role == POLICY_ROLE and request.identity is not None
        earlier = _EarlierCalls(0, 0) if is_turn else self._count(request)
        if request.identity is None:
            calls = await asyncio.to_thread(self._index.group_calls, request.role, request.messages)
            return self._group_call(request, calls, earlier)
        rollout = await asyncio.to_thread(self._index.rollout, request.identity)
        if rollout is None:
            raise PolicyError(
                f"{self.name} has no rollout of {_describe(request)}: play the same env with the same seed, "
                "groups, group size and iterations as the record."
            )
        if has_hashed_text(rollout):
            raise PolicyError(
                f"Rollout {rollout.id} of {self.name} was recorded as numbers, so its text is only hashes: "
                "replay a run that was recorded in full."
            )
        return self._answer(request, rollout, earlier)

    def count_tokens(self, request: Request) -> int | None:
        """Return None: a record has token counts only of prompts that were answered."""
        return None

    async def close(self) -> None:
        """Close the files of the records."""
        await asyncio.to_thread(self._index.close)

    def _answer(self, request: Request, rollout: Rollout, earlier: "_EarlierCalls") -> Completion:
        """The recorded turn, or the recorded call of this role. A role may also play a seat of a game."""
        calls = [(call, prompt) for call, prompt in with_full_prompts(rollout.calls) if call.role == request.role]
        turn_first = request.role == POLICY_ROLE or not calls
        answer = _turn(request, rollout) if turn_first else _call(request, calls, earlier)
        if isinstance(answer, str) and calls:
            other = _call(request, calls, self._count(request)) if turn_first else _turn(request, rollout)
            answer = answer if isinstance(other, str) else other
        if isinstance(answer, str) and not self.strict:
            if not turn_first:
                return completion_of_call(calls[min(earlier.of_role, len(calls) - 1)][0])
            answer = _turn(request, rollout, strict=False)
        if not isinstance(answer, str):
            return answer
        prompt = f"turn {request.step + 1}" if turn_first else f"the call of the {request.role}"
        hint = "; strict=false replays it anyway" if self.strict else ""
        raise PolicyError(
            f"Expected {prompt} of {_describe(request)} to be as in the record, got a difference: {answer}. "
            f"The env, its arguments, its limits or the seed have changed{hint}."
        )

    def _group_call(self, request: Request, calls: Sequence[Call], earlier: "_EarlierCalls") -> Completion:
        """The answer to a group's grader. Its request does not name the group, so only role and prompt identify it."""
        if not calls:
            last = repr(request.messages[-1].content[:_MAX_SHOWN_CHARS]) if request.messages else "nothing"
            raise PolicyError(
                f"{self.name} has no call of a group's grader to the {request.role} with this prompt: "
                f"{len(request.messages)} messages, of which the last begins {last}."
            )
        return completion_of_call(calls[earlier.of_prompt % len(calls)])

    def _count(self, request: Request) -> "_EarlierCalls":
        """Count this call, and return the numbers of earlier ones."""
        rollout = "" if request.identity is None else request.identity.id
        keys = (rollout, request.role, prompt_digest(request.messages)), (rollout, request.role, b"")
        earlier = _EarlierCalls(*(self._call_counts[key] for key in keys))
        self._call_counts.update(keys)
        return earlier


class _EarlierCalls(NamedTuple):
    """How many calls the same rollout has made before."""

    of_prompt: int
    """Calls with the same prompt to the same role."""
    of_role: int
    """All calls to the same role."""


def _turn(request: Request, rollout: Rollout, *, strict: bool = True) -> Completion | str:
    """The recorded turn, or the difference from it. A recorded failure is raised."""
    step = next((step for step in rollout.steps if step.step == request.step), None)
    if step is None:
        return describe_end(rollout, request, strict)
    tools = () if step.tools is None else rollout.tools[step.tools]
    difference = _difference(step.trace.prompt, request.messages) or _tool_difference(tools, request.tools)
    return difference if strict and difference is not None else completion_of_step(rollout, step, request)


def _call(
    request: Request, calls: Sequence[tuple[Call, tuple[Message, ...]]], earlier: _EarlierCalls
) -> Completion | str:
    """The next recorded call with this prompt, or the difference from the recorded calls."""
    same = [call for call, prompt in calls if _difference(prompt, request.messages) is None]
    if not same:
        return _difference(calls[min(earlier.of_role, len(calls) - 1)][1], request.messages) or ""
    if earlier.of_prompt >= len(same):
        return f"the record has this call {len(same)} ×, and now it was made once more"
    return completion_of_call(same[earlier.of_prompt])


def completion_of_step(rollout: Rollout, step: Step, request: Request) -> Completion:
    """The recorded answer of a turn."""
    response = step.trace.policy_response
    tokens = None
    if request.include_tokens and step.tokens is not None:
        prompt_tokens = rollout.prompt_tokens(step.step) or ()
        tokens = replace(step.tokens, prompt=prompt_tokens, shared_prefix=0)
    return Completion(
        message=response,
        termination=to_completion(response).termination if step.termination is None else step.termination,
        parse_error=step.parse_error,
        raw=step.raw,
        policy_version=step.policy_version,
        usage=step.usage,
        tokens=tokens,
    )


def completion_of_call(call: Call) -> Completion:
    """The recorded answer of a call. A recorded failure is raised."""
    if call.reply is None:
        outcome = "gave no answer" if call.error is None else f"failed with {call.error.type}: {call.error.message}"
        too_long = call.error is not None and call.error.type == ContextOverflowError.__name__
        raise _failure(f"In the record the {call.role} {outcome}", call.raw, too_long=too_long)
    return Completion(
        message=call.reply,
        termination=call.termination or to_completion(call.reply).termination,
        raw=call.raw,
        policy_version=call.policy_version,
        usage=call.usage,
    )


def describe_end(rollout: Rollout, request: Request, strict: bool = True) -> str:
    """Describe how the recorded rollout ended before this turn. A recorded failure of the policy is raised."""
    overflowed = rollout.stop_reason == StopReason.CONTEXT_OVERFLOW
    # If the env failed on the last turn, the policy error may be another role's: the policy's own turn is a step.
    in_env = bool(rollout.steps) and rollout.steps[-1].env_failure is not None
    failed = rollout.error is not None and rollout.error.layer == Layer.POLICY and not in_env
    if request.step != len(rollout.steps) or not (overflowed or failed):
        return f"the record ends after {len(rollout.steps)} turns, with stop reason {rollout.stop_reason!r}"
    pending = rollout.pending_messages
    if strict and pending is not None and (difference := _difference(pending, request.messages)):
        return difference
    error = rollout.error
    reason = "a prompt that is too long" if error is None else f"{error.type}: {error.message}"
    raise _failure(f"In the record this turn failed with {reason}", rollout.pending_raw, too_long=overflowed)


def _failure(message: str, raw: str | None, *, too_long: bool) -> PolicyError:
    error = ContextOverflowError(message) if too_long else PolicyError(message)
    error.raw = raw
    return error


def _describe(request: Request) -> str:
    identity = request.identity
    if identity is None:
        return "a group"
    attempt = f", attempt {identity.attempt}" if identity.attempt else ""
    return (
        f"env {identity.env!r}, task {identity.task!r}, {identity.split} iteration {identity.iteration}, "
        f"group {identity.group!r}, index {identity.index}{attempt}"
    )


def _difference(recorded: Sequence[Message], sent: Sequence[Message]) -> str | None:
    """Describe the first difference between two prompts; None if they are equal."""
    for number, (old, message) in enumerate(zip(recorded, sent, strict=False)):
        if old == message:
            continue
        new = coerce_message(message, "", [])  # as recorded: valid UTF-8
        for field in Message.__struct_fields__:
            if getattr(old, field) != getattr(new, field):
                where = f"message {number} ({new.role}) differs in {field}"
                return f"{where}: {_text_difference(getattr(old, field), getattr(new, field))}"
    if len(recorded) != len(sent):
        longer, where = (sent, "now") if len(sent) > len(recorded) else (recorded, "in the record")
        extra = longer[min(len(recorded), len(sent))]
        return (
            f"{len(recorded)} messages were recorded, and {len(sent)} are sent now; only {where} there is "
            f"a {extra.role} message that begins {extra.content[:_MAX_SHOWN_CHARS]!r}"
        )
    return None


def _text_difference(recorded: object, sent: object) -> str:
    old, new = (value if isinstance(value, str) else repr(value) for value in (recorded, sent))
    pairs = enumerate(zip(old, new, strict=False))
    start = next((position for position, (one, other) in pairs if one != other), min(len(old), len(new)))
    end = start + _MAX_SHOWN_CHARS
    return f"from character {start} on, {old[start:end]!r} was recorded, and {new[start:end]!r} is sent now"


def _tool_difference(recorded: Sequence[ToolSpec], offered: Sequence[ToolSpec]) -> str | None:
    if tuple(recorded) == tuple(offered):
        return None
    old, new = (", ".join(tool.name for tool in tools) or "none" for tools in (recorded, offered))
    if old != new:
        return f"the tools were {old}, and are {new} now"
    changed = next(after.name for before, after in zip(recorded, offered, strict=True) if before != after)
    return f"the tool {changed!r} has another description or other parameters than in the record"
