"""How long a statement may take: one bound over making its tables, running it and fetching its rows."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from rolltrace.errors import QueryTimeoutError

_INTERRUPT_INTERVAL_SECONDS = 0.02
"""How often what is to be given up is told so, in seconds: telling it before it began has no effect."""


class QueryDeadline:
    """Runs while something is done for a statement, and not while whoever asked does something with the rows."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._since: float | None = None

    @property
    def remaining(self) -> float | None:
        """How many seconds are left; None where there is no bound."""
        if self._seconds is None:
            return None
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return max(self._seconds - self._spent - running, 0.0)

    def check(self) -> None:
        """Raise where no time is left."""
        if self.remaining == 0.0:
            raise QueryTimeoutError(
                f"The statement took longer than {self._seconds:g} seconds: ask for less of it, or give it more time. "
                "Tables that are not made yet take the longest, and `rolltrace compact` makes them."
            )

    @contextlib.contextmanager
    def limit(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Let it run; when the time is over, interrupt what is being done, whose error becomes ours."""
        self.check()
        if self._seconds is None:
            yield
            return
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(self.remaining, done, interrupt), daemon=True)
        self._since = time.monotonic()
        watcher.start()
        try:
            yield
        except Exception as error:
            if _is_interrupt(error):
                self.check()
            raise
        finally:
            done.set()
            watcher.join()
            self._spent += time.monotonic() - self._since
            self._since = None


def _watch(seconds: float, done: threading.Event, interrupt: Callable[[], None]) -> None:
    if not done.wait(seconds):
        interrupt()
        while not done.wait(_INTERRUPT_INTERVAL_SECONDS):
            interrupt()


def _is_interrupt(error: Exception) -> bool:
    import duckdb

    return isinstance(error, duckdb.InterruptException)
