"""Snapshots of what an environment returns, and the first difference between two of them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rolltrace.envs.env import Observation, StepResult
from rolltrace.testing.conformance.violations import short_repr
from rolltrace.trace.freeform import to_json_value

_TIMES = re.compile(r"(?:^|_)(?:seconds|ms|time|times|timestamp|duration|elapsed|latency|at)$", re.IGNORECASE)

OBSERVATION_FIELDS = Observation.__struct_fields__
_RESULT_FIELDS = tuple(field for field in StepResult.__struct_fields__ if field != "observation")
_COMPARED = ("raised", *(field for field in _RESULT_FIELDS if field != "logs"), *OBSERVATION_FIELDS)
"""What must be the same in two plays; logs may differ."""


class PlayEvent(msgspec.Struct, frozen=True):
    """The result of one call."""

    call: str
    value: Any = None
    """What the env returned."""
    fields: Mapping[str, Any] = {}
    """A snapshot of it, or only `raised`: the type of the exception."""


def snapshot(value: Any) -> dict[str, Any]:
    """The fields of a step result, with those of its observation beside them, or of an observation, as fresh JSON."""
    fields: dict[str, Any] = {}
    if isinstance(value, StepResult):
        fields = {field: to_json_value(getattr(value, field), field, []) for field in _RESULT_FIELDS}
        value = value.observation
    if isinstance(value, Observation):
        fields |= {field: to_json_value(getattr(value, field), field, []) for field in OBSERVATION_FIELDS}
    return fields


def without_timings(value: Any) -> Any:
    """The value as a record would hold it, with measured times left out."""
    return _without_times(to_json_value(value, "", []))


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if not _TIMES.search(str(key))}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value


def difference(one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """Where two JSON values first differ, with what is there in each."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            if found := difference(one.get(key), other.get(key)):
                return f"[{key!r}]{found[0]}", found[1], found[2]
        return None
    return None if one == other else ("", one, other)


def event_difference(left: PlayEvent, right: PlayEvent) -> str | None:
    """What differs between the outcomes of the same call in two plays, in words."""
    for field in _COMPARED:
        one, other = without_timings(left.fields.get(field)), without_timings(right.fields.get(field))
        if found := difference(one, other):
            verb = "are" if field in ("messages", "tools") else "is"
            return f"`{field}{found[0]}` {verb} {short_repr(found[1])}, then {short_repr(found[2])}"
    return None
