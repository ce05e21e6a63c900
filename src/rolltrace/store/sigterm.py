"""SIGTERM handler: records open rollouts as cancelled and closes runs. SLURM and Kubernetes send SIGTERM."""

import contextlib
import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Any, Protocol

CLOSE_TIMEOUT_SECONDS = 10.0
"""How long closing may take: a disk may hang, and SIGKILL usually follows soon after SIGTERM."""


class ClosableWriter(Protocol):
    """A writer of a run."""

    def cancel_open(self) -> None:
        """Record open rollouts as cancelled."""
        ...

    def close_with_timeout(self, seconds: float) -> None:
        """Close, waiting at most `seconds`."""
        ...


_writers: "weakref.WeakSet[ClosableWriter]" = weakref.WeakSet()


def close_on_sigterm(writer: ClosableWriter) -> None:
    """Close a writer on SIGTERM, if the signal has its default action and this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    current = signal.getsignal(signal.SIGTERM)
    if current is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not in the main interpreter
            signal.signal(signal.SIGTERM, _handle)
            _writers.add(writer)
    elif current is _handle:
        _writers.add(writer)


def stop_closing_on_sigterm(writer: ClosableWriter) -> None:
    """Stop handling SIGTERM for a writer. After the last one, the default action is restored."""
    _writers.discard(writer)
    if not _writers and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) is _handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def restore_default_after_fork() -> None:
    """Restore the default action of SIGTERM in a forked process, which may never record anything.

    A handler in Python would keep the process alive until a call into C returns.
    """
    _writers.clear()
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_default(handler: Any) -> bool:
    """Whether a SIGTERM handler is the default action or the handler of this module."""
    return handler is signal.SIG_DFL or handler is _handle


def restore_sigterm_handler(before: Any) -> None:
    """Restore a handler that was replaced; that of this module only if there still is a writer to close."""
    is_unused = before is _handle and not _writers
    signal.signal(signal.SIGTERM, signal.SIG_DFL if is_unused else before)


def cancel_open_rollouts() -> None:
    """Record the open rollouts of every writer as cancelled."""
    for writer in list(_writers):
        writer.cancel_open()


def close_writers(seconds: float) -> None:
    """Record open rollouts as cancelled and close every writer, waiting at most `seconds`."""
    deadline = time.monotonic() + seconds
    cancel_open_rollouts()
    for writer in list(_writers):
        writer.close_with_timeout(deadline - time.monotonic())


def _handle(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    try:
        close_writers(CLOSE_TIMEOUT_SECONDS)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
