"""Explains why a group has no learning signal (all advantages are zero or missing)."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from rolltrace.query.groups import Group
from rolltrace.trace.failure import Failure
from rolltrace.trace.json_numbers import nonfinite_text
from rolltrace.trace.stop_reasons import Layer, Status, StopReason

_MAX_MESSAGE_CHARS = 200
_MAX_NAMED = 3


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a member has an advantage, and why it has none."""

    index: int | None
    reward: float | None
    status: Status
    stop_reason: str
    error: Failure | None = None
    """Why it failed."""
    grading_error: Failure | None = None
    """Why its group's grade is missing."""


def why_no_signal(group: Group, members: Sequence[MemberStatus]) -> str | None:
    """Explain why every advantage of a group is zero or missing; None if the group has a signal.

    `members` are those that were loaded, which are not all members of a very large group.
    """
    if not all(value is None or math.isfinite(value) for value in (group.mean, group.min, group.max)):
        return _non_finite(members, group.n)
    if group.has_signal:
        return None
    if group.n >= 2:
        return _equal(group, members)
    if group.size == 1:
        alone = "The group has one member: there is nothing to compare it with."
        return alone if group.n else f"The group's one member has no reward: {_reasons(members, group.size)}."
    start = f"Only one of {group.size:,} members has" if group.n else f"None of {group.size:,} members has"
    return f"{start} a reward: {_reasons(members, group.size)}."


def _equal(group: Group, members: Sequence[MemberStatus]) -> str:
    count = "Both" if group.n == 2 else f"All {group.n:,}"
    text = f"{count} rewards are {_format(group.max or 0.0)}: every advantage is 0."
    missing = group.size - group.n
    if not missing:
        return text
    have = f"{missing:,} of {group.size:,} members {'has' if missing == 1 else 'have'}"
    return f"{text} {have} no reward: {_reasons(members, group.size)}."


def _non_finite(members: Sequence[MemberStatus], n: int) -> str:
    wrong = [(one.index, one.reward) for one in members if one.reward is not None and not math.isfinite(one.reward)]
    which = ", ".join(f"member {index} has {_format(reward)}" for index, reward in wrong[:_MAX_NAMED])
    more = ", …" if len(wrong) > _MAX_NAMED else ""
    count = "One" if len(wrong) == 1 else f"{len(wrong):,}" if wrong else "Some"
    text = f"{count} of {n:,} rewards {'is' if len(wrong) == 1 else 'are'} not finite"
    return f"{text}{f' ({which}{more})' if wrong else ''}: so the mean and every advantage are NaN."


def _reasons(members: Sequence[MemberStatus], size: int) -> str:
    """The reasons for missing rewards, the most frequent first."""
    reasons = Counter(_reason(member) for member in members if member.reward is None)
    text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return text if size == len(members) else f"{text}, of the first {len(members):,}"


def _reason(member: MemberStatus) -> str:
    if member.grading_error is not None:
        return f"without a grade ({_failure(member.grading_error)})"
    if member.stop_reason == StopReason.EPISODE_ABORTED:
        return "aborted because another seat or member failed"
    if member.status is Status.CANCELLED:
        return "cancelled"
    if member.error is not None:
        return f"failed ({_failure(member.error)})"
    return "failed" if member.status is Status.ERROR else "without a grade so far"


def _failure(failure: Failure) -> str:
    """The layer and type; for a grader also its message, because no transcript shows it."""
    kind = f"{failure.layer.value}: {failure.type[:_MAX_MESSAGE_CHARS]}"
    if failure.layer is not Layer.GRADER or not failure.message:
        return kind
    message = " ".join(failure.message[: 2 * _MAX_MESSAGE_CHARS].split()).rstrip(".")
    cut = f"{message[:_MAX_MESSAGE_CHARS]}…" if len(message) > _MAX_MESSAGE_CHARS else message
    return f"{kind}: {cut}"


def _format(value: float) -> str:
    """A number with at most six digits, always written as a float."""
    text = f"{value:.6g}" if math.isfinite(value) else nonfinite_text(value)
    return f"{text}.0" if text.removeprefix("-").isdigit() else text
