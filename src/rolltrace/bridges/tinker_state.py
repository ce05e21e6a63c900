"""Reads the state of an env of tinker-cookbook, which has no method for it, from its attributes."""

import contextlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

_MAX_ITEMS = 1_000
_MAX_TEXT = 100_000
_MAX_DEPTH = 6
_SCALARS = (bool, int, float, str, type(None))
_TRANSCRIPTS = frozenset({"conversation", "history", "logs", "messages", "observations", "transcript", "turns"})
"""Names of lists that grow with each turn by what the record has as messages."""
_SKIP: Any = object()


def read_state(env: Any) -> dict[str, Any]:
    """The plain values among the attributes of an env, and those of the objects in its public attributes.

    An object with a `state`, such as a game's, counts as that. Left out are conversations, which the record has as
    messages; functions; and what is private and not a scalar.
    """
    return _attributes(env, depth=2)


def _attributes(owner: Any, depth: int) -> dict[str, Any]:
    fields = getattr(owner, "__dict__", None)
    if not isinstance(fields, dict):
        return {}
    values: dict[str, Any] = {}
    for name, value in list(fields.items()):
        if name in _TRANSCRIPTS and not isinstance(value, _SCALARS):
            continue
        if isinstance(value, _SCALARS) or not name.startswith("_"):
            plain = _plain(value, _MAX_DEPTH)
            if plain is _SKIP and depth > 1:
                plain = _object_state(value, depth - 1)
            if plain is not _SKIP:
                values[name] = plain
    return values


def _object_state(value: Any, depth: int) -> Any:
    """The state of an object that an env holds, such as the coordinator of a game."""
    if callable(value) or isinstance(value, list | tuple | set | frozenset | Mapping):
        return _SKIP
    with contextlib.suppress(Exception):  # a property may raise anything
        state = getattr(value, "state", None)
        state = state() if callable(state) else state
        plain = _plain(state, _MAX_DEPTH)
        found = (_attributes(state, 1) if plain is _SKIP else plain) if state is not None else None
        if found:
            return found
    return _attributes(value, depth) or _SKIP


def _plain(value: Any, depth: int) -> Any:
    """The value as JSON has it; `_SKIP` if it is not plain, too large, or a conversation."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else _SKIP
    if isinstance(value, _SCALARS):
        return value
    if not depth or not isinstance(value, list | tuple | set | frozenset | dict) or len(value) > _MAX_ITEMS:
        return _SKIP
    if isinstance(value, dict):
        if "role" in value and "content" in value:
            return _SKIP
        items = {str(name): _plain(item, depth - 1) for name, item in value.items()}
        plain: Any = {name: item for name, item in items.items() if item is not _SKIP}
    else:
        plain = [item for item in (_plain(item, depth - 1) for item in value) if item is not _SKIP]
    return _SKIP if value and not plain else plain
