"""Keeps recording and the program that is recorded apart: failures of the one, changes by the other."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

_log = logging.getLogger("rolltrace")
Params = ParamSpec("Params")
Result = TypeVar("Result")


class Guard:
    """Calls what records, one thread at a time. What goes wrong is counted and logged once, and never raised."""

    def __init__(self, subject: str, counter: str) -> None:
        self.failed = 0
        """How many calls failed."""
        self._subject = subject
        """What could not be recorded, such as "a call"."""
        self._counter = counter
        """Where the user finds `failed`, such as "RecordedClient.failed"."""
        self._lock = threading.RLock()

    def __call__(self, action: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result | None:
        """Call `action`; None if it failed."""
        try:
            with self._lock:
                return action(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed += 1
            if self.failed == 1:
                _log.warning(
                    "Could not record %s: %s: %s. Further failures are counted in %s.",
                    self._subject, type(error).__name__, error, self._counter,
                )  # fmt: skip
            return None

    def __reduce__(self) -> tuple[type["Guard"], tuple[str, str]]:
        return Guard, (self._subject, self._counter)


def copied(value: Any) -> Any:
    """A copy of lists and dicts: the recorded program may change them before they are written."""
    if isinstance(value, Mapping):
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) if isinstance(item, Mapping | list | tuple) else item for item in value]
    return value
