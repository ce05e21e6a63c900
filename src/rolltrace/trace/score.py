"""A late fact about a rollout or a group."""

from typing import Any

import msgspec

from rolltrace.trace.numbers import Float
from rolltrace.trace.rollout import FORMAT_VERSION, Call, Failure, Moment


class GroupKey(msgspec.Struct, frozen=True):
    """Which group of a session."""

    split: str
    iteration: int
    env: str
    group: str


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `scores/`: name, value, data, producer and time. It names one rollout, or one group."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere."""
    run: str
    session: str = ""
    rollout: str | None = None
    """The id of the rollout it is about."""
    group: GroupKey | None = None
    """The group it is about."""
    name: str
    """`reward` is the rollout's total, and the latest one counts."""
    value: Float | None
    """None where it could not be found out; `error` then says why."""
    data: dict[str, Any] = {}
    producer: str = ""
    at: Moment
    error: Failure | None = None
    calls: tuple[Call, ...] = ()
    """Model calls that were made to find it out."""
