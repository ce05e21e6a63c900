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

from rolltrace.store.backlog import Flag
from rolltrace.store.sealed import seal_file

LOGGING_SECONDS = 1.0
"""How long `flush` and `close` wait for warnings to be logged: a log handler may hang."""

_unlogged: deque[Flag] = deque()


def start_thread(action: Callable[[], None]) -> bool:
    """Run something in a thread that does not keep the process alive; False if no thread can be started."""
    try:
        _thread.start_new_thread(action, ())
    except RuntimeError:  # too many threads, or the interpreter is shutting down
        return False
    return True


def log_soon(logger: logging.Logger, message: str, *args: Any) -> None:
    """Log a warning in a thread of its own."""
    logged = Flag()

    def log() -> None:
        with contextlib.suppress(BaseException):  # a log handler may raise anything, and no more is to be lost for it
            logger.warning(message, *args)
        logged.set()

    _unlogged.append(logged)
    if not start_thread(log):
        log()


def wait_until_logged() -> None:
    """Wait for warnings that are being logged, for a short time."""
    deadline = time.monotonic() + LOGGING_SECONDS
    while _unlogged:
        with contextlib.suppress(IndexError):  # another thread was quicker
            _unlogged.popleft().wait(deadline - time.monotonic())


def forget_logging_after_fork() -> None:
    """The threads of the parent, which log, are not in this process."""
    _unlogged.clear()


class Sealer:
    """Seals full segments, one after the other: the next lines need not wait for it."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self._paths: deque[Path] = deque()
        self._right = _thread.allocate_lock()
        """Held by the one thread that seals."""

    def seal(self, path: Path) -> None:
        """Have a segment sealed; where no thread can be started it stays as it is."""
        self._paths.append(path)
        if not start_thread(self._run):
            self._paths.clear()

    def wait(self) -> None:
        """Wait until all are sealed."""
        while self._paths or self._right.locked():
            with self._right:
                pass

    def _run(self) -> None:
        while self._paths and self._right.acquire(blocking=False):
            try:
                self._seal_all()
            finally:
                self._right.release()

    def _seal_all(self) -> None:
        while self._paths:
            try:
                seal_file(self._paths[0])
            except Exception as error:  # noqa: BLE001 - the plain segment stands, and can be sealed later
                self._on_failure(error)
            self._paths.popleft()
