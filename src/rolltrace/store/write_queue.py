"""What waits to be written: bounded in bytes, filled by any thread, emptied by one.

A caller may be a signal handler, which interrupts another caller in the same thread, and then waits for the thread that
empties the backlog. So no caller ever holds a lock: every change is one call into C (of a deque, a raw lock), and
numbers that cannot be changed in one are corrected by the thread that empties.
"""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence

from rolltrace.trace.blob import Blob

BATCH_DELAY_SECONDS = 0.02
"""How long what has come may wait for more: waking up for each line would cost more than the line."""

BATCH_BYTES = 4 << 20
"""How much is taken out at once: what was taken waits no more, and so does not count."""

MAX_WAIT_FRACTION = 0.05
"""Which part of the time callers may spend waiting for room, after they have waited for `patience` seconds."""

_MAX_WAIT_SECONDS = 3600.0


class SignalSafeEvent:
    """What one thread waits for; unlike a `threading.Event` it has no lock that a signal handler could find taken."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End one wait, this or the next."""
        with contextlib.suppress(RuntimeError):  # set already
            self._lock.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set; False if it was not in that time."""
        return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, min(seconds, _MAX_WAIT_SECONDS)))


class QueuedLine:
    """A line on its way to a folder."""

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
        """Whether it is written also if the rollout is not in flight here; else it was handed in twice."""
        self.size = len(data)
        """What it takes up while it waits."""
        for blob in blobs:
            self.size += 0 if blob.data is None else len(blob.data)


class Barrier(SignalSafeEvent):
    """Is set when all that was put in before it is on the disk."""

    __slots__ = ()


class WriteQueue:
    """Jobs in the order in which they came.

    Where there is no room, `put` waits: at most `patience` seconds at first, and then for a small part of the time.
    A thread that runs an event loop never waits. Where a caller may not wait any longer its job is refused, and so are
    all others until half of the room is free.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._waiting: deque[QueuedLine | Barrier] = deque()
        self._size = 0
        """Bytes that wait, as far as callers know; `take` corrects it."""
        self._refusing = False
        self._waited_until = -float("inf")
        """How long callers have waited, as the time at which that would be forgotten."""
        self._idle = False
        self._hurried = False
        self._wake = SignalSafeEvent()
        self._room: deque[SignalSafeEvent] = deque()
        self.is_closed = False
        """Whether nothing more is taken."""

    def put(self, job: QueuedLine) -> str | None:
        """Add a job; what is returned is why it was refused."""
        if self.is_closed:
            return "closed"
        if self._is_full(job.size) and (reason := self._wait_for_room(job.size)) is not None:
            return reason
        self._size += job.size
        self._waiting.append(job)
        if self._idle:
            self._wake.set()
        if self._size * 2 > self._limit:
            self._wake_now()
        return None

    def put_barrier(self, barrier: Barrier) -> None:
        """Have a barrier set, soon, by the thread that empties the backlog."""
        self._waiting.append(barrier)
        self._wake_now()

    def take(self, seconds: float) -> list[QueuedLine | Barrier] | None:
        """All that waits, when something does or the time has passed; None when there will be nothing more."""
        if not self._waiting and not self.is_closed:
            self._idle = True
            if not self._waiting and not self.is_closed:  # a job put before `_idle` was set did not wake us
                self._wake.wait(seconds)
            self._idle = False
        if self._waiting and not self._hurried and not self.is_closed:
            self._wake.wait(BATCH_DELAY_SECONDS)
        self._hurried = False
        is_last = self.is_closed  # what comes after this is refused, or left over
        taken = self._batch()
        return None if is_last and not taken else taken

    def close(self) -> None:
        """Take no more."""
        self.is_closed = True
        self._wake_now()
        self._make_room()

    @property
    def is_pending(self) -> bool:
        """Whether something came while the backlog was being closed."""
        return bool(self._waiting)

    def drain(self) -> list[QueuedLine | Barrier]:
        """What came while the backlog was being closed."""
        taken: list[QueuedLine | Barrier] = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def _batch(self) -> list[QueuedLine | Barrier]:
        batch: list[QueuedLine | Barrier] = []
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
            self._hurried = True
        self._make_room()
        return batch

    def _wake_now(self) -> None:
        self._hurried = True
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
        """Wait until there is room; what is returned is why there will be none."""
        self._wake_now()
        begun = time.monotonic()
        deadline = begun + self._allowed_wait(begun)
        try:
            while not self.is_closed and self._is_full(size):
                left = deadline - time.monotonic()
                if self._refusing or left <= 0 or _runs_event_loop():
                    self._refusing = True
                    return "queue full"
                room = SignalSafeEvent()
                self._room.append(room)
                if self._is_full(size):  # there may be room since it was looked at
                    room.wait(left)
        finally:
            self._count_wait(time.monotonic() - begun)
        return "closed" if self.is_closed else None

    def _allowed_wait(self, now: float) -> float:
        """How long a caller may wait now."""
        return min(self._patience, (now - self._waited_until) * MAX_WAIT_FRACTION)

    def _count_wait(self, seconds: float) -> None:
        forgotten = time.monotonic() - self._patience / MAX_WAIT_FRACTION
        self._waited_until = max(self._waited_until, forgotten) + seconds / MAX_WAIT_FRACTION


def _runs_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not stand still."""
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None
