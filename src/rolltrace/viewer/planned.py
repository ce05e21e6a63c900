"""How many rollouts a run announces."""

from rolltrace.store.layout import RunInfo

_FIELDS = ("iterations", "groups", "group_size")
_MOST = 10**12


def planned_rollouts(info: RunInfo, seats: int) -> int | None:
    """What the plan in its config comes to; None where there is none that can be counted."""
    planned = seats
    for name in _FIELDS:
        value = info.config.get(name)
        if type(value) is not int or not 0 < value <= _MOST:
            return None
        planned *= value
    return planned if planned <= _MOST else None
