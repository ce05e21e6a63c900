"""Records open rollouts and closes runs when SIGTERM comes, which is how SLURM and Kubernetes end a process."""

import contextlib
import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Any, Protocol

CLOSE_TIMEOUT_SECONDS = 10.0
"""How long closing may take: a disk may hang, and who sends SIGTERM sends SIGKILL soon after."""


class ClosableWriter(Protocol):
    """A writer of a run."""

    def cancel_open(self) -> None:
        """Record open rollouts as cancelled."""
        ...

    def close_with_timeout(self, seconds: float) -> None:
        """Close, and wait for it at most so long."""
        ...


_writers: "weakref.WeakSet[ClosableWriter]" = weakref.WeakSet()


def close_on_sigterm(writer: ClosableWriter) -> None:
    """Have a writer closed on SIGTERM, if the signal has its default action and this is the main thread."""
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
    """Leave a writer alone that was closed; after the last, SIGTERM has its default action again."""
    _writers.discard(writer)
    if not _writers and threading.current_thread() is threading.main_thread():
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) is _handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


def restore_default_after_fork() -> None:
    """Give SIGTERM its default action in a forked process, which may never record anything.

    A handler in Python would keep the process alive until a call into C returns.
    """
    _writers.clear()
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGTERM) is _handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_default(handler: Any) -> bool:
    """Whether a handler of SIGTERM is the default action, or the one that this module installs in its place."""
    return handler is signal.SIG_DFL or handler is _handle


def restore_sigterm_handler(before: Any) -> None:
    """Install again what another handler has replaced; ours only if there still is a writer to close."""
    is_unused = before is _handle and not _writers
    signal.signal(signal.SIGTERM, signal.SIG_DFL if is_unused else before)


def cancel_open_rollouts() -> None:
    """Record the open rollouts of every writer as cancelled."""
    for writer in list(_writers):
        writer.cancel_open()


def close_writers(seconds: float) -> None:
    """Record open rollouts as cancelled and close every writer; wait for it at most so long."""
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
