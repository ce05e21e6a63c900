"""Makes the garbage collector look less often while many rollouts are in flight."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_GEN0_THRESHOLD = 200_000
"""How many new objects there may be before the collector looks at them: more than a thousand rollouts in flight have.

Python's own default is 700.
"""

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Within this, the young are looked at seldom.

    What a rollout makes lives until it ends, and holds no cycles: looking through a thousand rollouts again and again
    takes time and finds nothing. Where the collector is off, or set to look more seldom
    still, it is left as it is.
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
