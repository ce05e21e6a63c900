"""Freezes the history of a caller who keeps changing it."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from rolltrace.trace.convert import as_message, as_tool, fast_copy, fast_message
from rolltrace.trace.freeform import MAX_DEPTH, Note
from rolltrace.trace.json_numbers import MAX_BITS
from rolltrace.trace.message import Message, ToolSpec


class ConversionCache:
    """Turns histories into immutable messages; what has not changed since the last one is compared, not converted.

    A message of the owner's is remembered by what it was, in a copy that shares nothing with it, so an edit at any
    depth, by anybody, is seen.
    """

    __slots__ = ("_by_id", "_copies", "_frozen", "_in_order", "_last_tools", "_notes", "_tools")

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes
        self._by_id: dict[int, _Seen] = {}
        self._in_order: list[_Seen | None] = []
        self._copies: list[Any] = []
        """What each message was, as long as comparing with it tells all."""
        self._frozen: list[Message] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._last_tools: Any = ()

    def convert(self, history: Iterable[Any], path: str = "messages") -> list[Message]:
        """The history as it is now; the list is the caller's."""
        if self.convert_appended(history, path) is not None:
            return self._frozen.copy()
        by_id, in_order = self._by_id, self._in_order
        self._by_id, self._in_order, self._copies, self._frozen = {}, [], [], []
        for position, original in enumerate(history):
            self._add(original, position, path, by_id, in_order)
        return self._frozen.copy()

    def convert_appended(self, history: Iterable[Any], path: str = "messages") -> list[Message] | None:
        """What a history has more than the one before, where it is that one and more; else None."""
        if type(history) is not list or not self._is_start_of(history):
            return None
        known = len(self._frozen)
        for position in range(known, len(history)):
            self._add(history[position], position, path, self._by_id, ())
        return self._frozen[known:]

    def convert_response(self, response: Any) -> Message:
        """What came back as it is now; the owner will often put the same object into the next history."""
        if type(response) is Message:
            return as_message(response, "response", self._notes)
        seen = self._by_id[id(response)] = _see(response, "response", self._notes)
        return seen.message

    def convert_tools(self, tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
        """The tools as they are now; what is equal, with the same repr (unlike 1 and True), is not converted again."""
        last, self._last_tools = self._last_tools, None
        try:
            is_same = bool(tools == last) and repr(tools) == repr(last)
            self._last_tools = last if is_same else deepcopy(tools)
        except Exception:  # noqa: BLE001 - an owner's object may do anything when compared or copied
            is_same = False
        if not is_same:
            self._tools = tuple(as_tool(tool, "tools", self._notes) for tool in tools)
        return self._tools

    def _is_start_of(self, history: list[Any]) -> bool:
        """Whether the history starts as the one before was: one comparison tells it for all that is old."""
        known = len(self._copies)
        if not known or known != len(self._frozen) or len(history) < known:
            return False
        try:
            return history[:known] == self._copies
        except Exception:  # noqa: BLE001 - an owner's object may do anything when compared
            return False

    def _add(
        self,
        original: Any,
        position: int,
        path: str,
        by_id: "dict[int, _Seen]",
        in_order: "Sequence[_Seen | None]",
    ) -> None:
        if type(original) is Message:
            self._frozen.append(as_message(original, f"{path}[{position}]", self._notes))
            self._in_order.append(None)
            return
        seen = _find(original, position, by_id, in_order)
        if seen is None:
            seen = _see(original, f"{path}[{position}]", self._notes)
        self._by_id[id(original)] = seen
        self._in_order.append(seen)
        if seen.is_comparable and len(self._copies) == len(self._frozen):
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
    return seen if seen is not None and seen.is_unchanged(original) else None


class _Seen:
    """One message of the owner's as it was when it was frozen."""

    __slots__ = ("_repr", "copy", "is_comparable", "message")

    def __init__(self, message: Message, copy: Any, spelling: str | None) -> None:
        self.message = message
        self.copy = copy
        self._repr = spelling
        self.is_comparable = copy is not _NOT_COMPARABLE and spelling is None
        """Whether all that is equal to the copy says the same."""

    def is_unchanged(self, original: Any) -> bool:
        """Whether the owner's message says what it said."""
        try:
            if self.copy is _NOT_COMPARABLE:
                return as_message(original, "", []) == self.message
            return bool(original == self.copy) and (self._repr is None or repr(original) == self._repr)
        except Exception:  # noqa: BLE001 - what cannot be compared has changed: it is converted, which never raises
            return False


def _see(original: Any, path: str, notes: list[Note]) -> _Seen:
    """Freeze a message of the owner's, and remember what it was."""
    if type(original) is not dict:
        return _Seen(as_message(original, path, notes), _NOT_COMPARABLE, None)
    if (quick := fast_message(original)) is not None:
        return _Seen(quick, fast_copy(original), None)
    leaves: set[type] = set()
    copy = _copy(original, leaves)
    message = as_message(original, path, notes)
    if object in leaves:
        return _Seen(message, _NOT_COMPARABLE, None)
    # `1 == True == 1.0`: where there are numbers, their spelling tells them apart.
    return _Seen(message, copy, repr(copy) if leaves else None)


_NOT_COMPARABLE = object()
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
