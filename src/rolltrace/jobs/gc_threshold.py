"""Raises the threshold of the garbage collector while many rollouts are in flight."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_GEN0_THRESHOLD = 200_000
"""New objects before a collection: more than a thousand rollouts in flight allocate. Python's default is 700."""

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Raise the collector's gen-0 threshold inside the block.

    The objects of a rollout live until it ends and have no cycles, so frequent collections take time and free nothing.
    If the collector is off, or has a higher threshold, nothing changes.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _GEN0_THRESHOLD:
                gc.set_threshold(_GEN0_THRESHOLD, *_before[1:])
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_before)
