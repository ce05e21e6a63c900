"""Retries what fails because too many files are open, in this process or in the whole system."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_RETRIES = 200
"""How often in a row to retry: for ten seconds."""

RETRY_SECONDS = 0.05

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorRetry:
    """Retries an action until there is a file descriptor for it.

    After `MAX_RETRIES` failures in a row every action is tried once only, until one succeeds.
    """

    def __init__(self) -> None:
        self._failures = 0

    def __call__(self, action: Callable[[], T]) -> T:
        """Return the action's result, or raise its error; the action must be safe to repeat."""
        while True:
            try:
                result = action()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS or self._failures >= MAX_RETRIES:
                    raise
                self._failures += 1
                time.sleep(RETRY_SECONDS)
            else:
                self._failures = 0
                return result
