"""What an environment or a grader told, without what no two plays have in common: how long things took."""

import re
from collections.abc import Mapping
from typing import Any

from rolltrace.trace.freeform import to_json_value

_TIMES = re.compile(r"(?:^|_)(?:seconds|ms|time|times|timestamp|duration|elapsed|latency|at)$", re.IGNORECASE)


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
        return {key: _without_times(held) for key, held in value.items() if not _TIMES.search(str(key))}
    if isinstance(value, list):
        return [_without_times(held) for held in value]
    return value
