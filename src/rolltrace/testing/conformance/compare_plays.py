"""Compares two plays, or two grades, without the times that they measured."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rolltrace.testing.conformance.return_values import FrozenObservation
from rolltrace.testing.conformance.violations import short_repr
from rolltrace.trace.freeform import to_json_value

_TIMES = re.compile(r"(?:^|_)(?:seconds|ms|time|times|timestamp|duration|elapsed|latency|at)$", re.IGNORECASE)

COMPARED = ("reward_data", "env_state", "extra", "metrics", "stop_reason")
"""What an env tells about a step that must be the same in two plays; logs may name whatever they like."""


class PlayEvent(msgspec.Struct, frozen=True):
    """The result of one call, for comparing plays."""

    call: str
    observation: FrozenObservation | None = None
    reward: Any = None
    done: Any = None
    raised: str | None = None
    details: dict[str, Any] = {}
    """By the names of `COMPARED`."""


def without_timings(value: Any) -> Any:
    """The value as a record would hold it, with measured times left out."""
    return _without_times(to_json_value(value, "", []))


def difference(one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """Where two settled values first differ, with what is there in each."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            if found := difference(one.get(key), other.get(key)):
                return f"[{key!r}]{found[0]}", found[1], found[2]
        return None
    return None if one == other else ("", one, other)


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if not _TIMES.search(str(key))}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value


def event_difference(left: PlayEvent, right: PlayEvent) -> str:
    """What differs between the outcomes of the same call in two plays."""
    for field in ("raised", "reward", "done"):
        if (one := getattr(left, field)) != (other := getattr(right, field)):
            return f"`{field}` is {short_repr(one)}, then {short_repr(other)}"
    for field in COMPARED:
        if found := difference(left.details.get(field), right.details.get(field)):
            return f"`{field}{found[0]}` is {short_repr(found[1])}, then {short_repr(found[2])}"
    if left.observation is None or right.observation is None:
        return "there is an observation in only one of them"
    for field in left.observation.__struct_fields__:
        if (one := getattr(left.observation, field)) != (other := getattr(right.observation, field)):
            return f"`{field}` are {short_repr(one)}, then {short_repr(other)}"
    return "its observation"
