"""Freezes a history that somebody else owns and keeps changing."""

from collections.abc import Iterable, Sequence
from typing import Any

from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import MAX_DEPTH, Note
from rolltrace.trace.message import Message
from rolltrace.trace.numbers import MAX_BITS


class Freezer:
    """Turns histories into immutable messages; what has not changed since the last one is compared, not converted.

    A message of the owner's is remembered by what it was, in a copy that shares nothing with it, so an edit at any
    depth, by anybody, is seen.
    """

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes
        self._by_id: dict[int, _Seen] = {}
        self._in_order: list[_Seen | None] = []
        self._copies: list[Any] = []
        """What each message was, as long as comparing with it tells all."""
        self._frozen: list[Message] = []

    def freeze(self, history: Iterable[Any], path: str = "messages") -> list[Message]:
        """The history as it is now; the list is the caller's."""
        if type(history) is list and self._only_grew(history):
            known = len(self._copies)
            for position, original in enumerate(history[known:], known):
                self._take_in(original, position, path)
            return self._frozen.copy()
        return self._freeze_each(history, path)

    def _only_grew(self, history: list[Any]) -> bool:
        """Whether the history is the one before with more at its end: one comparison tells it for all that is old."""
        known = len(self._copies)
        if not known or known != len(self._frozen) or len(history) < known:
            return False
        try:
            return history[:known] == self._copies
        except Exception:  # noqa: BLE001 - an owner's object may do anything when compared
            return False

    def _freeze_each(self, history: Iterable[Any], path: str) -> list[Message]:
        by_id, in_order = self._by_id, self._in_order
        self._by_id, self._in_order, self._copies, self._frozen = {}, [], [], []
        for position, original in enumerate(history):
            self._take_in(original, position, path, by_id, in_order)
        return self._frozen.copy()

    def _take_in(
        self,
        original: Any,
        position: int,
        path: str,
        by_id: "dict[int, _Seen] | None" = None,
        in_order: "Sequence[_Seen | None]" = (),
    ) -> None:
        if type(original) is Message:
            self._frozen.append(as_message(original, f"{path}[{position}]", self._notes))
            self._in_order.append(None)
            return
        seen = None if by_id is None else _find(original, position, by_id, in_order)
        if seen is None:
            seen = _Seen(original, as_message(original, f"{path}[{position}]", self._notes))
        self._by_id[id(original)] = seen
        self._in_order.append(seen)
        if seen.is_told_by_copy and len(self._copies) == len(self._frozen):
            self._copies.append(seen.copy)
        self._frozen.append(seen.message)


def _find(
    original: Any, position: int, by_id: "dict[int, _Seen]", in_order: "Sequence[_Seen | None]"
) -> "_Seen | None":
    """The message as it was seen before: the same object, or, where the owner makes copies, at the same place.

    An id may come to mean another object once its own is gone: what counts is what it holds.
    """
    seen = by_id.get(id(original))
    if seen is None and position < len(in_order):
        seen = in_order[position]
    return seen if seen is not None and seen.is_still(original) else None


class _Seen:
    """One message of the owner's as it was when it was frozen."""

    __slots__ = ("_spelling", "copy", "message")

    def __init__(self, original: Any, message: Message) -> None:
        self.message = message
        leaves: set[type] = set()
        self.copy = _copy(original, leaves) if type(original) is dict else _OPAQUE
        self._spelling: str | None = None
        if object in leaves:
            self.copy = _OPAQUE
        elif leaves:  # `1 == True == 1.0`: where there are numbers, their spelling tells them apart
            self._spelling = repr(self.copy)

    @property
    def is_told_by_copy(self) -> bool:
        """Whether all that is equal to the copy says the same."""
        return self.copy is not _OPAQUE and self._spelling is None

    def is_still(self, original: Any) -> bool:
        """Whether the owner's message says what it said."""
        try:
            if self.copy is _OPAQUE:
                return as_message(original, "", []) == self.message
            return bool(original == self.copy) and (self._spelling is None or repr(original) == self._spelling)
        except Exception:  # noqa: BLE001 - what cannot be compared has changed: it is converted, which never raises
            return False


_OPAQUE = object()
"""Stands for something whose parts cannot be copied and compared; it is converted each time."""


def _copy(value: Any, leaves: set[type], depth: int = 0) -> Any:
    """A copy of nested plain containers, and the kinds of what they hold; `object` for anything that is not plain."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind in (bool, float) or (kind is int and value.bit_length() <= MAX_BITS):
        leaves.add(kind)
        return value
    if kind is dict and depth < MAX_DEPTH:
        if any(type(key) is not str for key in value):
            leaves.add(object)
        return {key: _copy(item, leaves, depth + 1) for key, item in value.items()}
    if kind is list and depth < MAX_DEPTH:
        return [_copy(item, leaves, depth + 1) for item in value]
    leaves.add(object)
    return value
