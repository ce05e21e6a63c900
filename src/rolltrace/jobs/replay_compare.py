"""Compares a recorded rollout with its replay, step by step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import InputError, RecordEndedError
from rolltrace.policies.replay_index import prompt_digest, with_full_prompts
from rolltrace.trace.call import Call
from rolltrace.trace.failure import Failure, is_interruption
from rolltrace.trace.json_numbers import as_float
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status

ALSO = ("env_state", "extra", "metrics", "logs", "task_data")
"""Fields that are compared only if they are named, because they may have times and other things that always differ."""
TOLERANCE = 1e-9
"""Numbers that differ by less, relative to the larger one or absolutely, are equal."""
_OUTSIDE = (Layer.RUNNER, Layer.CALLER, Layer.HOOK)
"""Layers of failures that neither the env nor the recorded responses explain."""
_INTERRUPTED = (EnvFailure.TIMED_OUT, EnvFailure.CANCELLED, EnvFailure.ABORTED)


class ReplayDifference(msgspec.Struct, frozen=True):
    """A difference between a recorded rollout and its replay."""

    step: int | None
    """The step; None if it is about the rollout as a whole."""
    field: str
    """Such as `prompt[1].content`, `reward_data.correct` or `stop_reason`."""
    recorded: Any
    """The recorded value; None if the record lacks it."""
    replayed: Any
    """The value of the replay; None if the replay lacks it."""


class Comparison(NamedTuple):
    """The result of comparing a rollout with its replay."""

    differences: list[ReplayDifference]
    """In the order of the steps."""
    left_out: str | None
    """Why the end was not compared, if it was not."""


def check_also(also: Sequence[str]) -> tuple[str, ...]:
    """Raise `InputError` for a field that cannot be compared."""
    for name in also:
        if name not in ALSO:
            raise InputError(f"Expected also to be some of {', '.join(ALSO)}, got {name!r}.")
    return tuple(also)


def compare_rollout(recorded: Rollout, replayed: Rollout, also: Sequence[str], tolerance: float) -> Comparison:
    """Compare a rollout with its replay, without the grade of the group."""
    comparer = _Comparer(recorded, replayed, also, tolerance)
    differences = list(comparer.steps())
    left_out = _why_end_is_left_out(recorded, replayed)
    if left_out is None:
        differences += comparer.end()
    differences.sort(key=lambda difference: math.inf if difference.step is None else difference.step)
    return Comparison(differences, left_out)


def compare_group_grade(recorded: Score | None, replayed: Score | None, tolerance: float) -> Comparison:
    """Compare what the grader of a group said about one rollout."""
    if recorded is None or (recorded.error is not None and _was_not_graded(recorded.error)):
        return Comparison([], "not graded by its group")
    old, new = (_grade_fields(score) for score in (recorded, replayed))
    differences = [
        ReplayDifference(None, name, old.get(name), new.get(name))
        for name in dict.fromkeys((*old, *new))
        if not _is_same(old.get(name), new.get(name), tolerance)
    ]
    return Comparison(differences, None)


def group_score(rollout: Rollout) -> Score | None:
    """The score with the grade of the group's grader, or with its error; scores of a regrade do not count."""
    return next(
        (
            score
            for score in reversed(rollout.scores)
            if score.name == "reward"
            and score.session == rollout.session
            and ("group_grade" in score.data or score.error is not None)
        ),
        None,
    )


def compare_group_calls(recorded: Sequence[Call], replayed: Sequence[Call]) -> list[ReplayDifference]:
    """Compare the prompts that the grader of a group sent."""
    return list(_compare_calls(recorded, replayed))


def _was_not_graded(error: Failure) -> bool:
    return is_interruption(error.layer, error.type) or error.message.startswith("not graded:")


def _grade_fields(score: Score | None) -> dict[str, Any]:
    if score is None:
        return {}
    if score.error is not None:
        return {"group_grade.error": f"{score.error.layer}: {score.error.type}"}
    numbers = score.data.get("reward_data")
    terms = numbers if isinstance(numbers, Mapping) else {}
    return {
        "group_grade.reward": as_float(score.data.get("group_grade")),
        **{f"group_grade.reward_data.{name}": value for name, value in terms.items()},
        "reward": score.value,
    }


def _why_end_is_left_out(recorded: Rollout, replayed: Rollout) -> str | None:
    if recorded.status is Status.CANCELLED:
        return recorded.stop_reason
    if recorded.error is not None and recorded.error.layer in _OUTSIDE:
        return f"error in the {recorded.error.layer}"
    if recorded.steps and recorded.steps[-1].env_failure in _INTERRUPTED:
        return f"{recorded.stop_reason} during a step"
    if replayed.status is Status.CANCELLED:
        return "another seat ended differently"
    return None


class _Comparer:
    """Yields the differences of one rollout. A message that differs is reported once, at its first step."""

    def __init__(self, recorded: Rollout, replayed: Rollout, also: Sequence[str], tolerance: float) -> None:
        self._old = recorded
        self._new = replayed
        self._also = also
        self._tolerance = tolerance
        self._is_same_text = recorded.messages == replayed.messages
        self._reported: set[tuple[Any, ...]] = set()

    def steps(self) -> Iterator[ReplayDifference]:
        """The differences of the steps that both have."""
        if "task_data" in self._also:
            yield from self._maps(None, "task_data", self._old.task_data, self._new.task_data)
        for old, new in zip(self._old.steps, self._new.steps, strict=False):
            number = old.step
            if not (self._is_same_text and old.prompt == new.prompt):
                yield from self._messages(number, "prompt", old.trace.prompt, new.trace.prompt)
            yield from self._offered(old, new)
            if old.env_failure in _INTERRUPTED:
                continue
            # A limit may replace the env's reward, so that only `env_reward` differs.
            rewards = ("reward",) if old.reward != new.reward else ("env_reward",)
            yield from self._values(number, old, new, ("env_failure", *rewards))
            for name in ("reward_data", "reward_weights", *self._also):
                if name != "task_data":
                    yield from self._maps(number, name, getattr(old, name), getattr(new, name))

    def end(self) -> Iterator[ReplayDifference]:
        """How the rollout ended, and what its grader said."""
        old, new = self._old, self._new
        last = min(len(old.steps), len(new.steps)) - 1
        step = last if last >= 0 else None
        goes_on = _goes_on(new)
        if len(old.steps) != len(new.steps) or goes_on:
            ends = [
                None if len(one.steps) > last + 1 or (one is new and goes_on) else _describe_end(one)
                for one in (old, new)
            ]
            yield ReplayDifference(step, "stop_reason", *ends)
            return
        if not self._is_same_text or old.final != new.final:
            yield from self._messages(step, "final", old.conversation, new.conversation)
        if old.pending_messages is not None and new.pending_messages is not None:
            yield from self._messages(last + 1, "prompt", old.pending_messages, new.pending_messages)
        yield from self._outcome(step)
        yield from _compare_calls(old.calls, new.calls)
        grades = [_as_map(rollout.grade) for rollout in (old, new)]
        yield from self._maps(None, "grade", *grades)
        before = [_as_map(rollout.ended_before_first_turn) for rollout in (old, new)]
        yield from self._maps(None, "ended_before_first_turn", *before)
        yield from self._values(None, old, new, ("line_reward",))

    def _outcome(self, step: int | None) -> Iterator[ReplayDifference]:
        old, new = self._old, self._new
        is_policy_failure = all(one.error is not None and one.error.layer is Layer.POLICY for one in (old, new))
        if old.stop_reason != new.stop_reason or (old.error is not None and not is_policy_failure):
            ends = [_error_kind(rollout.error) for rollout in (old, new)]
            if old.stop_reason != new.stop_reason or ends[0] != ends[1]:
                yield ReplayDifference(step, "stop_reason", _describe_end(old), _describe_end(new))
                return
        yield from self._values(step, old, new, ("stopped_by",))

    def _offered(self, old: Step, new: Step) -> Iterator[ReplayDifference]:
        """The tools and stop sequences of a turn."""
        offers = [
            {tool.name: tool for tool in (() if step.tools is None else rollout.tools[step.tools])}
            for step, rollout in ((old, self._old), (new, self._new))
        ]
        yield from self._maps(old.step, "tools", *offers)
        stops = [
            () if step.sampling is None else rollout.sampling[step.sampling].stop
            for step, rollout in ((old, self._old), (new, self._new))
        ]
        if stops[0] != stops[1]:
            yield ReplayDifference(old.step, "stop_sequences", list(stops[0]), list(stops[1]))

    def _messages(
        self, step: int | None, name: str, old: Sequence[Message], new: Sequence[Message]
    ) -> Iterator[ReplayDifference]:
        for difference in compare_messages(step, name, old, new):
            key = (difference.field.partition("[")[2], repr(difference.recorded), repr(difference.replayed))
            if key not in self._reported:
                self._reported.add(key)
                yield difference

    def _values(self, step: int | None, old: Any, new: Any, names: Sequence[str]) -> Iterator[ReplayDifference]:
        for name in names:
            values = getattr(old, name), getattr(new, name)
            if not _is_same(*values, self._tolerance):
                yield ReplayDifference(step, "reward" if name == "line_reward" else name, *values)

    def _maps(
        self, step: int | None, name: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Iterator[ReplayDifference]:
        if old == new:
            return
        for key in dict.fromkeys((*old, *new)):
            if not _is_same(old.get(key), new.get(key), self._tolerance):
                yield ReplayDifference(step, f"{name}.{key}", old.get(key), new.get(key))


def compare_messages(
    step: int | None, name: str, recorded: Sequence[Message], replayed: Sequence[Message]
) -> Iterator[ReplayDifference]:
    """The fields of the messages that differ, and the messages that only one of the two has."""
    for number in range(max(len(recorded), len(replayed))):
        old = recorded[number] if number < len(recorded) else None
        new = replayed[number] if number < len(replayed) else None
        if old == new:
            continue
        if old is None or new is None:
            yield ReplayDifference(step, f"{name}[{number}]", old, new)
            continue
        for field in Message.__struct_fields__:
            if getattr(old, field) != getattr(new, field):
                yield ReplayDifference(step, f"{name}[{number}].{field}", getattr(old, field), getattr(new, field))


def _compare_calls(recorded: Sequence[Call], replayed: Sequence[Call]) -> Iterator[ReplayDifference]:
    """The prompts of calls that only one of the two has, in pairs of the same role; their order does not count."""
    if recorded == replayed:
        return
    old, new = (with_full_prompts(calls) for calls in (recorded, replayed))
    digests = [prompt_digest((Message(call.role, ""), *prompt)) for call, prompt in new]
    unmatched = []
    for number, (call, prompt) in enumerate(old):
        digest = prompt_digest((Message(call.role, ""), *prompt))
        if digest in digests:
            position = digests.index(digest)
            del digests[position], new[position]
        else:
            unmatched.append((number, call, prompt))
    for number, call, prompt in unmatched:
        name = f"calls[{number}].{call.role}"
        position = next((place for place, (other, _) in enumerate(new) if other.role == call.role), -1)
        if position < 0:
            yield ReplayDifference(call.step, name, prompt[-1] if prompt else None, None)
            continue
        yield from compare_messages(call.step, f"{name}.prompt", prompt, new.pop(position)[1])
    for call, prompt in new:
        yield ReplayDifference(call.step, f"calls.{call.role}", None, prompt[-1] if prompt else None)


def _as_map(record: Any) -> dict[str, Any]:
    """The reward and the terms of a grade, or of an end before the first turn."""
    if record is None:
        return {}
    return {"reward": record.reward, **{f"reward_data.{name}": value for name, value in record.reward_data.items()}}


def _goes_on(replayed: Rollout) -> bool:
    """Whether the env asked for a turn that the record does not have."""
    return replayed.error is not None and replayed.error.type == RecordEndedError.__name__


def _error_kind(error: Failure | None) -> tuple[str, str] | None:
    return None if error is None else (error.layer, error.type)


def _describe_end(rollout: Rollout) -> str:
    error = rollout.error
    if error is None:
        return rollout.stop_reason
    return f"{rollout.stop_reason} in the {error.layer}: {error.type}: {error.message}"


def _is_same(old: Any, new: Any, tolerance: float) -> bool:
    if old == new:
        return True
    if not (isinstance(old, int | float) and isinstance(new, int | float)):
        return False
    try:
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance) or (math.isnan(old) and math.isnan(new))
    except OverflowError:  # an int that no float can hold
        return False
