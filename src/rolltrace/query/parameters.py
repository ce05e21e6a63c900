"""Values for a statement, which stand in the place of `?` or `$name` and are never taken for SQL."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

from rolltrace.errors import InputError

Parameters = Sequence[Any] | Mapping[str, Any] | None
"""A list for `?`, `$1` and so on; a mapping for `$name`."""

_WIDEST = 2**127
_DEEPEST = 16


def check_parameters(expected: set[str], given: Parameters) -> Parameters:
    """The values, if they are those that the statement names, and of kinds that SQL has."""
    if isinstance(given, str | bytes) or not isinstance(given, Mapping | Sequence | None):
        raise InputError(f"Expected the parameters as a list or a mapping, got {type(given).__name__}.")
    values = dict(given) if isinstance(given, Mapping) else {str(n): value for n, value in enumerate(given or (), 1)}
    if set(values) != expected:
        raise InputError(
            f"Expected values for {_names(expected) or 'no parameters'}, got {_names(values) or 'none'}: "
            "give a list for ?, a mapping for $name."
        )
    for name, value in values.items():
        if not _is_value(value):
            raise InputError(
                f"Expected text, a number, a time, bytes, None or a list of these for the parameter {name!r}, "
                f"got {type(value).__name__}{' that is too large' if isinstance(value, int) else ''}."
            )
    if not values:
        return None
    return values if isinstance(given, Mapping) else list(values.values())


def _names(names: Any) -> str:
    return ", ".join(sorted(map(repr, names)))


def _is_value(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list | tuple):
        return depth < _DEEPEST and all(_is_value(one, depth + 1) for one in value)
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, int):
        return -_WIDEST <= value < _WIDEST
    return value is None or isinstance(value, float | bytes | datetime | date)
