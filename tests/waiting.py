"""Waits for what another thread or process does soon."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if it never does."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
