"""What waits to be written: bounded in bytes, filled by any thread, emptied by one."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rolltrace.trace.blob import Blob

LINGER_SECONDS = 0.02
"""How long what has come may wait for more: waking up for each line would cost more than the line."""


BATCH_BYTES = 4 << 20
"""How much is taken out at once: what was taken waits no more, and so does not count."""


class Job:
    """A line on its way to a folder."""

    __slots__ = ("blobs", "data", "folder", "rollout")

    def __init__(self, folder: str, data: bytes, rollout: str = "", blobs: Sequence[Blob] = ()) -> None:
        self.folder = folder
        self.data = data
        self.rollout = rollout
        """The id of the rollout that the line records; empty for a score."""
        self.blobs = blobs

    @property
    def size(self) -> int:
        """What it takes up while it waits."""
        return len(self.data) + sum(len(blob.data) for blob in self.blobs if blob.data is not None)


class Errand:
    """Something to be done when all that was put in before it is written."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.done = threading.Event()


class Backlog:
    """Jobs in the order in which they came.

    Where there is no room, `put` waits; when it has waited in vain, further jobs are refused at once until there is
    room again.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._waiting: deque[Job | Errand] = deque()
        self._size = 0
        self._refusing = False
        self._hurried = False
        self.is_closed = False
        """Whether nothing more is taken."""
        # A writer that is no longer used is closed by the garbage collector, which may run in a thread that holds this.
        self._lock = threading.RLock()
        self._something = threading.Condition(self._lock)
        self._urgent = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    def put(self, job: Job) -> str | None:
        """Add a job; what is returned is why it was refused."""
        size = job.size
        with self._lock:
            if self.is_closed:
                return "closed"
            if self._size + size > self._limit and (reason := self._wait_for_room(size)) is not None:
                return reason
            self._refusing = False
            self._size += size
            self._waiting.append(job)
            if len(self._waiting) == 1:
                self._something.notify()
            if self._size * 2 > self._limit:
                self._hurry()
        return None

    def send(self, action: Callable[[], None]) -> Errand | None:
        """Have something done by whoever empties the backlog, soon; None where nobody will."""
        errand = Errand(action)
        with self._lock:
            if self.is_closed:
                return None
            self._waiting.append(errand)
            self._something.notify()
            self._hurry()
        return errand

    def take(self, seconds: float) -> list[Job | Errand] | None:
        """All that waits, when something does or the time has passed; None when there will be nothing more."""
        with self._lock:
            if not self._waiting and not self.is_closed:
                self._something.wait(seconds)
            if self._waiting and not self._hurried and not self.is_closed:
                self._urgent.wait(LINGER_SECONDS)
            taken = self._batch()
            self._hurried = bool(self._waiting)
            self._room.notify_all()
            return None if self.is_closed and not taken else taken

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self.is_closed = True
            self._something.notify_all()
            self._room.notify_all()
            self._hurry()

    def _batch(self) -> list[Job | Errand]:
        batch: list[Job | Errand] = []
        size = 0
        while self._waiting and size < BATCH_BYTES:
            item = self._waiting.popleft()
            batch.append(item)
            if isinstance(item, Job):
                size += item.size
        self._size -= size
        return batch

    def _hurry(self) -> None:
        self._hurried = True
        self._urgent.notify_all()

    def _wait_for_room(self, size: int) -> str | None:
        """Wait until there is room; what is returned is why there will be none."""
        self._hurry()
        deadline = time.monotonic() + (0.0 if self._refusing else self._patience)
        while self._size and self._size + size > self._limit and not self.is_closed:
            left = deadline - time.monotonic()
            if left <= 0:
                self._refusing = True
                return "queue full"
            self._room.wait(left)
        return "closed" if self.is_closed else None
