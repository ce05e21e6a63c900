"""Queue of lines that wait to be written: bounded in bytes, many producers, one consumer.

A producer may be a signal handler that interrupted another producer in the same thread, and that then waits for the
consumer. Therefore no producer holds a lock: every change is one call into C (of a deque, a raw lock), and the consumer
corrects the numbers that cannot be changed atomically.
"""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from rolltrace.trace.blob import Blob

BATCH_DELAY_SECONDS = 0.02
"""How long the consumer waits for more lines before it writes: waking up for each would cost more than the line."""

BATCH_BYTES = 4 << 20
"""How much the consumer takes at once. Lines that were taken no longer count as queued."""

MAX_WAIT_FRACTION = 0.05
"""The fraction of time that callers may spend waiting for room once they have waited `max_wait_seconds`."""

_MAX_WAIT_SECONDS = 3600.0


class SignalSafeEvent:
    """An event for one waiting thread, without the lock of `threading.Event`, which a handler could find held."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End one wait, this or the next."""
        with contextlib.suppress(RuntimeError):  # set already
            self._lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set; returns False if the time ran out first."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, min(seconds, _MAX_WAIT_SECONDS)))


class QueuedLine:
    """One line to append to a folder of the run."""

    __slots__ = ("blobs", "data", "folder", "is_from_other_session", "rollout", "size")

    def __init__(
        self,
        folder: str,
        data: bytes,
        rollout: str = "",
        blobs: Sequence[Blob] = (),
        is_from_other_session: bool = True,
    ) -> None:
        self.folder = folder
        self.data = data
        self.rollout = rollout
        """The key of the rollout that the line records; empty for a score."""
        self.blobs = blobs
        self.is_from_other_session = is_from_other_session
        """Whether to write it although the rollout is not in flight here; otherwise that means a duplicate."""
        self.size = len(data)
        """Bytes that it occupies in the queue."""
        for blob in blobs:
            self.size += 0 if blob.data is None else len(blob.data)


class WriteQueue:
    """Lines in the order in which they were put.

    If the queue is full, `put` waits: at most `max_wait_seconds` at first, and then for a small fraction of the time. A
    thread that runs an event loop never waits. When a caller may not wait any longer its line is rejected, and so are
    all others until the queue is half empty.
    """

    def __init__(self, limit: int, max_wait_seconds: float) -> None:
        self._limit = limit
        self._max_wait_seconds = max_wait_seconds
        self._waiting: deque[QueuedLine | SignalSafeEvent] = deque()
        self._size = 0
        """Queued bytes as producers see them; `take` corrects the number."""
        self._refusing = False
        self._waited_until = -float("inf")
        """The time until which past waits count against the allowed fraction."""
        self._idle = False
        self._wake_requested = False
        self._wake = SignalSafeEvent()
        self._room: deque[SignalSafeEvent] = deque()
        self.is_closed = False
        """Whether `put` rejects everything."""

    def put(self, line: QueuedLine) -> str | None:
        """Add a line; returns the reason if it was rejected."""
        if self.is_closed:
            return "closed"
        if self._is_full(line.size) and (reason := self._wait_for_room(line.size)) is not None:
            return reason
        self._size += line.size
        self._waiting.append(line)
        if self._idle:
            self._wake.set()
        if self._size * 2 > self._limit:
            self._wake_now()
        return None

    def put_barrier(self, barrier: SignalSafeEvent) -> None:
        """Queue an event that the consumer sets when everything before it is on disk, and wake the consumer."""
        self._waiting.append(barrier)
        self._wake_now()

    def take(self, seconds: float) -> list[QueuedLine | SignalSafeEvent] | None:
        """Wait at most `seconds`, and return the next batch; None when the queue is closed and empty."""
        if not self._waiting and not self.is_closed:
            self._idle = True
            if not self._waiting and not self.is_closed:  # a line put before `_idle` was set did not wake us
                self._wake.wait(seconds)
            self._idle = False
        if self._waiting and not self._wake_requested and not self.is_closed:
            self._wake.wait(BATCH_DELAY_SECONDS)
        self._wake_requested = False
        is_last = self.is_closed  # later lines are rejected, or drained
        batch = self._batch()
        return None if is_last and not batch else batch

    def close(self) -> None:
        """Reject everything from now on."""
        self.is_closed = True
        self._wake_now()
        self._make_room()

    @property
    def is_pending(self) -> bool:
        """Whether lines were put while the queue was being closed."""
        return bool(self._waiting)

    def drain(self) -> list[QueuedLine | SignalSafeEvent]:
        """Remove and return the items that were put while the queue was being closed."""
        items: list[QueuedLine | SignalSafeEvent] = []
        while self._waiting:
            items.append(self._waiting.popleft())
        return items

    def _batch(self) -> list[QueuedLine | SignalSafeEvent]:
        batch: list[QueuedLine | SignalSafeEvent] = []
        size = 0
        while self._waiting and size < BATCH_BYTES:
            item = self._waiting.popleft()
            batch.append(item)
            if isinstance(item, QueuedLine):
                size += item.size
        self._size = (
            sum(item.size for item in list(self._waiting) if isinstance(item, QueuedLine)) if self._waiting else 0
        )
        if self._waiting:
            self._wake_requested = True
        self._make_room()
        return batch

    def _wake_now(self) -> None:
        self._wake_requested = True
        self._wake.set()

    def _make_room(self) -> None:
        while self._room:
            try:
                self._room.popleft().set()
            except IndexError:  # another thread was quicker
                return

    # Room

    def _is_full(self, size: int) -> bool:
        if not self._waiting:
            self._refusing = False
            return False
        if self._refusing:
            self._refusing = self._size * 2 > self._limit
        return self._refusing or self._size + size > self._limit

    def _wait_for_room(self, size: int) -> str | None:
        """Wait until there is room; returns the reason if the line is rejected."""
        self._wake_now()
        start = time.monotonic()
        deadline = start + self._allowed_wait(start)
        try:
            while not self.is_closed and self._is_full(size):
                remaining = deadline - time.monotonic()
                if self._refusing or remaining <= 0 or _runs_event_loop():
                    self._refusing = True
                    return "queue full"
                room = SignalSafeEvent()
                self._room.append(room)
                if self._is_full(size):  # room may have been made in between
                    room.wait(remaining)
        finally:
            self._count_wait(time.monotonic() - start)
        return "closed" if self.is_closed else None

    def _allowed_wait(self, now: float) -> float:
        """Seconds that a caller may wait now."""
        return min(self._max_wait_seconds, (now - self._waited_until) * MAX_WAIT_FRACTION)

    def _count_wait(self, seconds: float) -> None:
        forgotten = time.monotonic() - self._max_wait_seconds / MAX_WAIT_FRACTION
        self._waited_until = max(self._waited_until, forgotten) + seconds / MAX_WAIT_FRACTION


def _runs_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None
