"""What was found out, kept as long as there is room, so that it is not found out again."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")

MAX_BYTES = 96 << 20
_OWN = 200
"""What keeping anything costs, in bytes."""


class LruCache:
    """Values by what they answer; the longest unused go first. Any thread may ask."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._finding: dict[Hashable, threading.Lock] = {}
        self._bytes = 0

    def get_or_compute(self, question: Hashable, find: Callable[[], Found], size: Callable[[Found], int]) -> Found:
        """What `find` finds; whoever asks the same at the same time waits for it."""
        with self._lock:
            if question in self._values:
                self._values.move_to_end(question)
                return self._values[question][0]  # type: ignore[no-any-return]
            turn = self._finding.setdefault(question, threading.Lock())
        with turn:
            with self._lock:
                if question in self._values:
                    return self._values[question][0]  # type: ignore[no-any-return]
            try:
                found = find()
                self._put(question, found, size(found) + _OWN)
            finally:
                with self._lock:
                    if self._finding.get(question) is turn:  # else somebody came anew after this had failed once
                        del self._finding[question]
        return found

    def _put(self, question: Hashable, found: Any, size: int) -> None:
        with self._lock:
            self._bytes += size - self._values.pop(question, (None, 0))[1]
            self._values[question] = found, size
            while self._bytes > self._most and self._values:
                self._bytes -= self._values.popitem(last=False)[1][1]
