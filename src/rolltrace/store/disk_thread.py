"""The thread that writes a session's queue to disk, until the session is closed or the process ends."""

import _thread
import atexit
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from rolltrace.store.disk_writer import (
    SYNC_SECONDS,
    DiskWriter,
    forget_logging_after_fork,
    start_thread,
    wait_for_logging,
)
from rolltrace.store.ledger import LedgerCounter
from rolltrace.store.write_queue import QueuedLine, SignalSafeEvent, WriteQueue

LATE_LOSS_DELAY_SECONDS = 0.1
"""How long losses after closing are collected before the ledger is written again."""

_INTERRUPTED_WAIT_SECONDS = 1.0
"""How long a signal handler waits for work that it may itself have interrupted."""


class DiskThread:
    """Consumes a session's write queue.

    Any caller may start it, any number of times: one thread does the work. While no thread can be started, callers do.
    """

    def __init__(self, queue: WriteQueue, disk_writer: DiskWriter, counter: LedgerCounter) -> None:
        self._queue = queue
        self._disk_writer = disk_writer
        self._counter = counter
        self._thread_lock = _thread.allocate_lock()
        """Taken by the first thread and never released, so that a second one ends at once."""
        self._work_lock = _thread.allocate_lock()
        """Held while the disk writer is used, by the thread or by a caller that works in its place."""
        self._callers: set[int] = set()
        """Ids of the threads that are in `_work_here`."""
        self._late_lock = _thread.allocate_lock()
        self._is_late = False
        self._late_is_running = False
        self._thread: int | None = None
        self._close_waiters: deque[SignalSafeEvent] = deque()
        self.is_started = False
        self.is_finished = False
        """Whether the final ledger is written and the files are closed."""

    def start(self) -> bool:
        """Start the thread if needed. Returns False if none can be started: `flush` and `close` then do the work."""
        if not self.is_started and not self.is_finished and start_thread(self._run):
            self.is_started = True
            _running[self] = None
            finish_at_exit()
        return self.is_started or self.is_finished

    def flush(self) -> None:
        """Return when everything queued before would survive a power loss."""
        if self._thread == _thread.get_ident():  # for example in a finalizer of a user's object
            self._disk_writer.sync()
        elif self._queue.is_closed:
            self.wait_until_finished()
            self.write_late_losses()
        else:
            barrier = SignalSafeEvent()
            self._queue.put_barrier(barrier)
            if not self.start():
                self._work_here()
            if not self.is_finished:  # it may have finished in between
                barrier.wait(_INTERRUPTED_WAIT_SECONDS if self._may_be_stuck() else None)
        wait_for_logging()

    def close(self, seconds: float | None = None) -> None:
        """Write everything and the final ledger, and close the files; waits at most `seconds`."""
        self._disk_writer.is_closing = True
        self._queue.close()
        if not self.is_started and not self._queue.is_pending and self._counter.is_unused:
            self.close_unused()
        elif not self.start():
            self._work_here()
        self.wait_until_finished(seconds)
        if seconds is None:
            self.write_late_losses()
        wait_for_logging()

    def close_unused(self) -> None:
        """Finish without writing anything, in a forked process that has nothing to record."""
        self._queue.close()
        self._counter.closed = True
        self.is_finished = True

    def wait_until_finished(self, seconds: float | None = None) -> None:
        """Wait for the end after the queue was closed."""
        finished = SignalSafeEvent()
        self._close_waiters.append(finished)
        if not self.is_finished and self._thread != _thread.get_ident():
            finished.wait(_INTERRUPTED_WAIT_SECONDS if self._may_be_stuck() else seconds)

    # Losses after closing

    def count_late_loss(self) -> None:
        """Arrange for the ledger on disk to count what was lost after closing."""
        self._is_late = True
        _late[self] = None
        if not self.is_finished:  # finishing writes the ledger anyway
            return
        if _is_exiting:
            self.write_late_losses()
        elif not self._late_is_running:
            self._late_is_running = True
            if not start_thread(self._run_late):
                self._late_is_running = False
                self.write_late_losses()

    def write_late_losses(self, seconds: float = _INTERRUPTED_WAIT_SECONDS) -> None:
        """Write the ledger again after closing; returns when it is on disk, even if another thread writes it.

        Lines that are still in the queue are lost. A negative timeout waits for the other thread without limit.
        """
        if not self.is_finished or not self._late_lock.acquire(timeout=seconds):
            return
        try:
            if self._has_late_losses:
                self._is_late = False
                self._drop_left_over()
                self._try(self._disk_writer.write_late_ledger)
            _late.pop(self, None)
            if self._has_late_losses:  # including losses since the check above
                _late[self] = None
        finally:
            self._late_lock.release()

    @property
    def _has_late_losses(self) -> bool:
        return self._is_late or self._queue.is_pending or self._disk_writer.ledger_is_missing

    def _run_late(self) -> None:
        while True:
            time.sleep(LATE_LOSS_DELAY_SECONDS)
            self.write_late_losses()
            self._late_is_running = False  # the next loss starts another thread
            if not self._is_late:
                return
            self._late_is_running = True  # a loss came before it was reset

    def _drop_left_over(self) -> None:
        for item in self._queue.drain():
            if isinstance(item, QueuedLine):
                self._disk_writer.drop(item, "closed")
            else:
                item.set()

    # The work

    def _run(self) -> None:
        if not self._thread_lock.acquire(blocking=False):
            return
        with self._work_lock:  # a caller may be working in place of this thread
            if self.is_finished:
                return
            self._thread = _thread.get_ident()
            self._try(self._disk_writer.sync)  # so that readers see the session before it records anything
            while (batch := self._queue.take(SYNC_SECONDS)) is not None:
                self._write(batch)
            self._finish()

    def _work_here(self) -> None:
        """Write everything in the calling thread, because no other can be started."""
        caller = _thread.get_ident()
        is_nested = caller in self._callers  # a signal handler interrupted this function
        try:
            self._callers.add(caller)  # before the lock is taken: a handler may come in between
            if self._work_lock.acquire(blocking=False):
                try:
                    self._empty_queue()
                finally:
                    self._work_lock.release()
        finally:
            if not is_nested:
                self._callers.discard(caller)

    def _empty_queue(self) -> None:
        while not self.is_finished and (batch := self._queue.take(0)):
            self._write(batch)
        if self._queue.is_closed and not self.is_finished:
            self._finish()

    def _may_be_stuck(self) -> bool:
        """Whether the calling thread may have interrupted the work, or there is no thread to wait for."""
        return not self.is_started or _thread.get_ident() in self._callers

    def _finish(self) -> None:
        self._try(self._disk_writer.close)
        self.is_finished = True
        self._thread = None
        if self._has_late_losses:
            _late[self] = None
            self.write_late_losses()
        while self._close_waiters:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._close_waiters.popleft().set()
        _running.pop(self, None)

    def _write(self, batch: Sequence[QueuedLine | SignalSafeEvent]) -> None:
        """Write lines, and set each barrier when the lines before it are on disk, whatever happens."""
        lines: list[QueuedLine] = []
        for item in batch:
            if isinstance(item, QueuedLine):
                lines.append(item)
                continue
            self._try(partial(self._disk_writer.write, lines))
            lines = []
            self._try(self._disk_writer.sync)
            item.set()
        if lines:
            self._try(partial(self._disk_writer.write, lines))
        self._try(self._disk_writer.sync_if_due)

    def _try(self, action: Callable[[], None]) -> None:
        """Run an action. If it raises, count the loss and keep the thread alive."""
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - a bug here must not stop recording
            with contextlib.suppress(BaseException):
                self._disk_writer.report_loss(type(error).__name__, "something", error)


# Exit and fork

_running: dict[DiskThread, None] = {}
_late: dict[DiskThread, None] = {}
"""Threads whose ledger on disk does not count all losses yet."""
_exit_actions: list[Callable[[], None]] = []
_guarded_process: int | None = None
_is_exiting = False


def call_before_exit(action: Callable[[], None]) -> None:
    """Call an action when the process exits, before disk threads are waited for."""
    _exit_actions.append(action)


def finish_at_exit() -> None:
    """Finish all work when this process exits. Processes of multiprocessing exit without `atexit`."""
    global _guarded_process
    if _guarded_process != os.getpid():
        _guarded_process = os.getpid()
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, _finish_all, exitpriority=0)


def forget_threads_after_fork() -> None:
    """Drop the parent's threads, which a forked process does not have."""
    global _is_exiting
    _is_exiting = False
    _running.clear()
    _late.clear()
    forget_logging_after_fork()


def _finish_all() -> None:
    global _is_exiting
    _is_exiting = True
    for action in _exit_actions:
        action()
    for thread in list(_running):  # also those of writers that were deleted
        thread.wait_until_finished()
    for thread in list(_late):
        thread.write_late_losses(-1)  # wait: a thread that is writing the ledger would be killed
    wait_for_logging()
