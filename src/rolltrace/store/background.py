"""Work in threads of its own: logging and sealing, started so that a signal handler can start and wait for it.

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
    """Run something in a thread that does not keep the process alive; False if no thread can be started."""
    try:
        _thread.start_new_thread(action, ())
    except RuntimeError:  # too many threads, or the interpreter is shutting down
        return False
    return True


def log_in_thread(logger: logging.Logger, message: str, *args: Any) -> None:
    """Log a warning in a thread of its own."""
    logged = SignalSafeEvent()

    def log() -> None:
        with contextlib.suppress(BaseException):  # a log handler may raise anything, and no more is to be lost for it
            logger.warning(message, *args)
        logged.set()

    _unlogged.append(logged)
    if not start_thread(log):
        log()


def wait_for_logging() -> None:
    """Wait for warnings that are being logged, for a short time."""
    deadline = time.monotonic() + LOGGING_SECONDS
    while _unlogged:
        with contextlib.suppress(IndexError):  # another thread was quicker
            _unlogged.popleft().wait(deadline - time.monotonic())


def forget_logging_after_fork() -> None:
    """The threads of the parent, which log, are not in this process."""
    _unlogged.clear()


class SegmentCompressor:
    """Seals full segments, one after the other: the next lines need not wait for it."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._paths: deque[Path] = deque()
        self._work_lock = _thread.allocate_lock()
        """Held by the one thread that seals."""

    def seal(self, path: Path) -> None:
        """Have a segment sealed; where no thread can be started it stays as it is."""
        self._paths.append(path)
        if not start_thread(self._run):
            with contextlib.suppress(ValueError):  # another thread has sealed it
                self._paths.remove(path)

    def wait(self) -> None:
        """Return when all are sealed; this thread seals those that no other has begun."""
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
