"""Background threads for logging and compression, which a signal handler can start and wait for.

`threading.Thread.start` and `logging` take locks. A signal handler may have interrupted a thread that holds one; if it
then waited for a thread that needs the same lock, both would wait without end. So threads are started with `_thread`,
and the thread that writes to the disk never logs.
"""

import _thread
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolltrace.store.compression import compress_segment
from rolltrace.store.write_queue import SignalSafeEvent

LOGGING_SECONDS = 1.0
"""How long `flush` and `close` wait for warnings to be logged: a log handler may hang."""

_unlogged: deque[SignalSafeEvent] = deque()


def start_thread(action: Callable[[], None]) -> bool:
    """Run an action in a daemon thread; returns False if no thread can be started."""
    try:
        _thread.start_new_thread(action, ())
    except RuntimeError:  # too many threads, or the interpreter is shutting down
        return False
    return True


def log_in_thread(logger: logging.Logger, message: str, *args: Any) -> None:
    """Log a warning in a separate thread."""
    logged = SignalSafeEvent()

    def log() -> None:
        with contextlib.suppress(BaseException):  # a log handler may raise anything
            logger.warning(message, *args)
        logged.set()

    _unlogged.append(logged)
    if not start_thread(log):
        log()


def wait_for_logging() -> None:
    """Wait a short time for warnings that are being logged."""
    deadline = time.monotonic() + LOGGING_SECONDS
    while _unlogged:
        with contextlib.suppress(IndexError):  # another thread was quicker
            _unlogged.popleft().wait(deadline - time.monotonic())


def forget_logging_after_fork() -> None:
    """Drop the parent's logging threads, which a forked process does not have."""
    _unlogged.clear()


class SegmentCompressor:
    """Compresses full segments in the background, one at a time, so that the next lines need not wait."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._paths: deque[Path] = deque()
        self._work_lock = _thread.allocate_lock()
        """Held by the one thread that compresses."""

    def seal(self, path: Path) -> None:
        """Compress a segment in the background. If no thread can be started, it stays uncompressed."""
        self._paths.append(path)
        if not start_thread(self._run):
            with contextlib.suppress(ValueError):  # another thread has taken it
                self._paths.remove(path)

    def wait(self) -> None:
        """Return when all are compressed; the calling thread compresses those that no other has started."""
        self._run()

    def _run(self) -> None:
        with self._work_lock, contextlib.suppress(IndexError):  # until none is left
            while True:
                self._seal(self._paths.popleft())

    def _seal(self, path: Path) -> None:
        try:
            compress_segment(path)
        except Exception as error:  # noqa: BLE001 - the plain segment stands, and can be sealed later
            self._on_failure(error)
