"""A policy that repeats the answers of a recorded run, as long as the prompts are the same."""

import asyncio
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rolltrace.errors import ContextOverflowError, PolicyError
from rolltrace.policies.policy import Completion, Request, to_completion
from rolltrace.policies.replay_index import RecordSource, ReplayIndex, SessionOrder, full_prompts, prompt_digest
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.convert import coerce_message
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Call, Rollout, Step
from rolltrace.trace.stop_reasons import Layer, StopReason
from rolltrace.trace.text_transform import has_hashed_text

_SHOWN = 40
"""How many characters of a text to show from the first difference on."""
_FIELDS = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name", "parts", "other")


class ReplayPolicy:
    """Answers each turn, and each call of another role, from the record of the same rollout.

    Rollouts are the same where split, iteration, env, task, group, index and attempt are. The prompt and the tools
    must be those of the record, or it is an error that names the first difference; with `strict=False` the recorded
    answer is given whatever is asked. Where the recorded policy failed, this one fails with the same words.
    """

    version: int | str | None = None
    context_length: int | None = None

    def __init__(
        self,
        records: RecordSource,
        *,
        name: str = "replay",
        strict: bool = True,
        supersedes: SessionOrder = operator.gt,
    ) -> None:
        """Replay `records`. `supersedes` says which of two sessions counts; by default the one with the larger id."""
        self.name = name
        self.strict = strict
        self._finder = ReplayIndex(records, supersedes)
        self._asked: Counter[tuple[str, str, bytes]] = Counter()
        """How many calls were answered, by rollout, role and prompt. A repeated call gets the next recorded answer."""

    async def complete(self, request: Request) -> Completion:
        """Return the recorded answer."""
        # Count before reading, so that the order of requests decides and not the time to read. Turns have a number.
        is_turn = request.role == POLICY_ROLE and request.identity is not None
        place = _Place(0, 0) if is_turn else self._count(request)
        if request.identity is None:
            calls = await asyncio.to_thread(self._finder.group_calls, request.role, request.messages)
            return self._group_call(request, calls, place)
        rollout = await asyncio.to_thread(self._finder.rollout, request.identity)
        if rollout is None:
            raise PolicyError(
                f"{self.name} has no rollout of {_place(request)}: play the same env with the same seed, "
                "groups, group size and iterations as the record."
            )
        if has_hashed_text(rollout):
            raise PolicyError(
                f"Rollout {rollout.id} of {self.name} was recorded as numbers: its text is hashed, and cannot be "
                "said again. Replay what was recorded in full."
            )
        return self._answer(request, rollout, place)

    def count_tokens(self, request: Request) -> int | None:
        """Return None: a record has token counts only of prompts that were answered."""
        return None

    async def close(self) -> None:
        """Close the files of the records."""
        await asyncio.to_thread(self._finder.close)

    def _answer(self, request: Request, rollout: Rollout, place: "_Place") -> Completion:
        """The recorded turn, or the recorded call of this role. A seat of a game may also be played by a role."""
        calls = [(call, prompt) for call, prompt in _whole(rollout.calls) if call.role == request.role]
        turn_first = request.role == POLICY_ROLE or not calls
        answer = _turn(request, rollout) if turn_first else _call(request, calls, place)
        if isinstance(answer, str) and calls:
            other = _call(request, calls, self._count(request)) if turn_first else _turn(request, rollout)
            answer = answer if isinstance(other, str) else other
        if isinstance(answer, str) and not self.strict:
            if not turn_first:
                return _completion_of_call(calls[min(place.of_role, len(calls) - 1)][0])
            answer = _turn(request, rollout, strict=False)
        if not isinstance(answer, str):
            return answer
        what = f"turn {request.step + 1}" if turn_first else f"what the {request.role} was asked"
        hint = "; strict=false answers all the same" if self.strict else ""
        raise PolicyError(
            f"Expected {what} of {_place(request)} to be as in the record, got another: {answer}. "
            f"The env, its arguments, its limits or the seed have changed{hint}."
        )

    def _group_call(self, request: Request, calls: Sequence[Call], place: "_Place") -> Completion:
        """The answer to a group's grader. Its request does not name the group, so only role and prompt identify it."""
        if not calls:
            last = repr(request.messages[-1].content[:_SHOWN]) if request.messages else "nothing"
            raise PolicyError(
                f"{self.name} holds no call in which a group's grader asked the {request.role} this: "
                f"{len(request.messages)} messages, of which the last begins {last}."
            )
        return _completion_of_call(calls[place.of_prompt % len(calls)])

    def _count(self, request: Request) -> "_Place":
        """The position of this call among calls of its kind."""
        whose = "" if request.identity is None else request.identity.id
        keys = (whose, request.role, prompt_digest(request.messages)), (whose, request.role, b"")
        place = _Place(*(self._asked[key] for key in keys))
        self._asked.update(keys)
        return place


class _Place(NamedTuple):
    """Counts of earlier calls of the same rollout."""

    of_prompt: int
    """Calls with the same prompt to the same role."""
    of_role: int
    """All calls to the same role."""


def _turn(request: Request, rollout: Rollout, *, strict: bool = True) -> Completion | str:
    """The recorded turn, or the difference from it. A recorded failure is raised."""
    step = next((step for step in rollout.steps if step.step == request.step), None)
    if step is None:
        return _end_of(rollout, request, strict)
    tools = () if step.tools is None else rollout.tools[step.tools]
    different = _difference(step.trace.prompt, request.messages) or _other_tools(tools, request.tools)
    return different if strict and different is not None else _completion_of_step(rollout, step, request)


def _call(request: Request, calls: Sequence[tuple[Call, tuple[Message, ...]]], place: _Place) -> Completion | str:
    """The next recorded call with this prompt, or the difference from the recorded calls."""
    same = [call for call, prompt in calls if _difference(prompt, request.messages) is None]
    if not same:
        return _difference(calls[min(place.of_role, len(calls) - 1)][1], request.messages) or ""
    if place.of_prompt >= len(same):
        return f"{len(same)} × this was asked in the record, and now once more"
    return _completion_of_call(same[place.of_prompt])


def _whole(calls: Sequence[Call]) -> Iterator[tuple[Call, tuple[Message, ...]]]:
    return zip(calls, full_prompts(calls), strict=True)


def _completion_of_step(rollout: Rollout, step: Step, request: Request) -> Completion:
    response = step.trace.policy_response
    tokens = None
    if request.include_tokens and step.tokens is not None:
        whole = rollout.prompt_tokens(step.step) or ()
        tokens = replace(step.tokens, prompt=whole, shared_prefix=0)
    return Completion(
        message=response,
        termination=to_completion(response).termination if step.termination is None else step.termination,
        parse_error=step.parse_error,
        raw=step.raw,
        policy_version=step.policy_version,
        usage=step.usage,
        tokens=tokens,
    )


def _completion_of_call(call: Call) -> Completion:
    if call.reply is None:
        what = "gave no answer" if call.error is None else f"failed with {call.error.type}: {call.error.message}"
        too_long = call.error is not None and call.error.type == ContextOverflowError.__name__
        raise _failure(f"In the record the {call.role} {what}", call.raw, too_long=too_long)
    return Completion(
        message=call.reply,
        termination=call.termination or to_completion(call.reply).termination,
        raw=call.raw,
        policy_version=call.policy_version,
        usage=call.usage,
    )


def _end_of(rollout: Rollout, request: Request, strict: bool) -> str:
    """Describe how the recorded rollout ended before this turn. A recorded failure of the policy is raised."""
    overflowed = rollout.stop_reason == StopReason.CONTEXT_OVERFLOW
    # Where the env failed on the last turn, another role may have failed it, and the policy's turn is a step.
    in_env = bool(rollout.steps) and rollout.steps[-1].env_failure is not None
    failed = rollout.error is not None and rollout.error.layer == Layer.POLICY and not in_env
    if request.step != len(rollout.steps) or not (overflowed or failed):
        return f"the record ends after {len(rollout.steps)} turns, with stop reason {rollout.stop_reason!r}"
    asked = rollout.pending_messages
    if strict and asked is not None and (difference := _difference(asked, request.messages)):
        return difference
    error = rollout.error
    what = "a prompt that is too long" if error is None else f"{error.type}: {error.message}"
    raise _failure(f"In the record this turn failed with {what}", rollout.pending_raw, too_long=overflowed)


def _failure(message: str, raw: str | None, *, too_long: bool) -> PolicyError:
    error = ContextOverflowError(message) if too_long else PolicyError(message)
    error.raw = raw
    return error


def _place(request: Request) -> str:
    identity = request.identity
    if identity is None:
        return "a group"
    attempt = f", attempt {identity.attempt}" if identity.attempt else ""
    return (
        f"env {identity.env!r}, task {identity.task!r}, {identity.split} iteration {identity.iteration}, "
        f"group {identity.group!r}, index {identity.index}{attempt}"
    )


def _difference(recorded: Sequence[Message], asked: Sequence[Message]) -> str | None:
    """Describe the first difference between two prompts; None if they are equal."""
    for number, (before, message) in enumerate(zip(recorded, asked, strict=False)):
        if before == message:
            continue
        now = coerce_message(message, "", [])  # as recorded: valid UTF-8
        for field in _FIELDS:
            if getattr(before, field) != getattr(now, field):
                where = f"message {number} ({now.role}) differs in {field}"
                return f"{where}: {_apart(getattr(before, field), getattr(now, field))}"
    if len(recorded) != len(asked):
        longer, which = (asked, "now") if len(asked) > len(recorded) else (recorded, "in the record")
        extra = longer[min(len(recorded), len(asked))]
        return (
            f"{len(recorded)} messages were recorded, and {len(asked)} are sent now; only {which} there is "
            f"one of the {extra.role} that begins {extra.content[:_SHOWN]!r}"
        )
    return None


def _apart(before: object, now: object) -> str:
    old, new = (value if isinstance(value, str) else repr(value) for value in (before, now))
    place = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), None)
    place = min(len(old), len(new)) if place is None else place
    ends = slice(place, place + _SHOWN)
    return f"from character {place} on, {old[ends]!r} was recorded, and {new[ends]!r} is sent now"


def _other_tools(recorded: Sequence[ToolSpec], offered: Sequence[ToolSpec]) -> str | None:
    if tuple(recorded) == tuple(offered):
        return None
    old, new = (", ".join(tool.name for tool in tools) or "none" for tools in (recorded, offered))
    if old != new:
        return f"the tools offered were {old}, and are {new} now"
    changed = next(after.name for before, after in zip(recorded, offered, strict=True) if before != after)
    return f"the tool {changed!r} has another description or other parameters than in the record"
