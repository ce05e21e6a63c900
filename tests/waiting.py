"""Looks at other threads and processes, and waits for what they do soon."""

import os
import time
from collections.abc import Callable


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if it never does."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
