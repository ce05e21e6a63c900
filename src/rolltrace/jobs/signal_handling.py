"""Runs a play from synchronous code, also in a notebook; Ctrl-C and SIGTERM cancel it and leave a complete record."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from rolltrace.policies.human import interrupt_on_quit
from rolltrace.store.sigterm import cancel_open_rollouts, close_writers, is_default, restore_sigterm_handler
from rolltrace.store.writer import RunWriter
from rolltrace.trace.sink import OpenRollouts

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")

SIGTERM_EXIT_CODE = 143
"""The exit code of a process that ended because of SIGTERM: 128 + 15."""
RECORD_SECONDS = 8.0
"""After SIGTERM, how long envs and tools have to end before their rollouts are recorded as cancelled without them."""
_EXIT_SECONDS = 11.0
"""After SIGTERM, when the process ends at the latest, not counting the closing of the writer."""
_CLOSE_SECONDS = 2.0
_ANSWER_SECONDS = 1.0
"""How long a running event loop may take to record before it counts as blocked."""

abandoned_tasks: "list[asyncio.Task[Any]]" = []
"""Tasks of plays that a second Ctrl-C abandoned. References are kept, because a task that is garbage-collected without
its event loop logs an error."""


class ActivePlay:
    """The writer and runners of a play, so that any thread can record the rollouts in flight and close the session."""

    def __init__(self) -> None:
        self.writer: RunWriter | None = None
        """The writer to close."""
        self.runners: list[OpenRollouts] = []
        """Runners whose rollouts are recorded if the process ends."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_task_cancelled = False
        self.is_cancelled = False
        """Whether the play was cancelled, perhaps before it started."""

    async def run(self, make: Callable[["ActivePlay"], Coroutine[Any, Any, Result]]) -> Result:
        """Play in the running task. It is cancelled at once if `cancel` was called before."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.is_cancelled:
            self._cancel_task()
        return await make(self)

    def cancel(self) -> None:
        """Cancel the play, from any thread or signal handler; a second call does nothing."""
        self.is_cancelled = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the play has ended
                self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        """Cancel the task once, in the thread of its loop: a second time would cancel its clean-up."""
        if self._task is not None and not self._is_task_cancelled:
            self._is_task_cancelled = True
            self._task.cancel()

    def record_cancelled(self) -> None:
        """Record every rollout in flight as cancelled, without waiting for its env. Not for the loop's thread."""
        recorded = threading.Event()

        def record() -> None:
            self._record_here()
            recorded.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(record)
                if recorded.wait(_ANSWER_SECONDS):
                    return
        self._record_here()  # the loop is blocked, so nothing changes meanwhile

    def end(self) -> None:
        """Record the rollouts in flight and close the session, in bounded time even if a disk hangs."""
        _run_with_deadline(self._end)

    def exit(self) -> NoReturn:
        """Close this play and every other open run, in bounded time, and end the process."""
        _run_with_deadline(self._end_all)
        os._exit(SIGTERM_EXIT_CODE)

    def _end(self) -> None:
        self._record_here()
        if self.writer is not None:
            self.writer.close()

    def _end_all(self) -> None:
        cancel_open_rollouts()
        self._end()
        close_writers(_CLOSE_SECONDS)

    def _record_here(self) -> None:
        for runner in self.runners:
            runner.record_cancelled()


def _run_with_deadline(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action, name="rolltrace-end", daemon=True)
    thread.start()
    thread.join(_CLOSE_SECONDS)


def run_blocking(make: Callable[[ActivePlay], Coroutine[Any, Any, Result]]) -> Result:
    """Run the coroutine to its end and return its result; if an event loop is running, in a thread of its own.

    In the main thread, Ctrl-C cancels it and raises `KeyboardInterrupt` when everything is recorded; a second one
    raises at once. SIGTERM, if it has its default action, cancels it and raises `SystemExit(143)`, and the process
    ends within 15 seconds whatever the envs do; a second signal then ends it at once.
    """
    play = ActivePlay()
    with interrupt_on_quit(), _Signals(play) as signals:
        try:
            value = _run_in_thread(make, play) if _is_loop_running() else _run_here(make, play)
        except BaseException as error:
            if not signals.received:
                raise
            raise signals.exception() from (None if isinstance(error, asyncio.CancelledError) else error)
        if signals.received:  # it arrived after the play, or an env swallowed the cancellation
            raise signals.exception()
        return value


def same_parameters(
    other: Callable[Parameters, object],
) -> Callable[[Callable[..., Result]], Callable[Parameters, Result]]:
    """A decorator for a function that passes its arguments on to `other`: type checkers and `help` show those."""

    def decorate(function: Callable[..., Result]) -> Callable[Parameters, Result]:
        returned = inspect.signature(function).return_annotation
        function.__signature__ = inspect.signature(other).replace(return_annotation=returned)  # type: ignore[attr-defined]
        return function

    return decorate


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_here(make: Callable[[ActivePlay], Coroutine[Any, Any, Result]], play: ActivePlay) -> Result:
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        try:
            return runner.run(play.run(make))
        except KeyboardInterrupt:  # from a second Ctrl-C: do not wait for tasks that may never end
            stack.pop_all()
            play.end()
            abandoned_tasks.extend(asyncio.all_tasks(runner.get_loop()))
            raise


def _run_in_thread(make: Callable[[ActivePlay], Coroutine[Any, Any, Result]], play: ActivePlay) -> Result:
    """Run in another thread, and block the event loop of this one meanwhile."""
    result: Future[Result] = Future()

    def run() -> None:
        try:
            with asyncio.Runner() as runner:
                value = runner.run(play.run(make))
            result.set_result(value)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            result.set_exception(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="rolltrace-play", daemon=True)
    thread.start()
    try:
        _join(thread, play)
    except KeyboardInterrupt:
        if thread.is_alive():  # the second one: do not wait for envs that may never end
            play.record_cancelled()
            play.end()
        raise
    return result.result()


def _join(thread: threading.Thread, play: ActivePlay) -> None:
    """Wait for the thread; the first `KeyboardInterrupt` of a handler that is not ours cancels the play."""
    try:
        thread.join()
    except KeyboardInterrupt:
        if not play.is_cancelled:
            play.cancel()
            thread.join()
        raise


class _Signals:
    """Handles SIGINT and SIGTERM while a play runs in the main thread, and restores their handlers after.

    Python runs a handler in the main thread, and only between bytecodes: if a signal arrives just before a call that
    blocks, its handler runs when the call returns. So a thread watches for signals, too: it cancels the play, which
    wakes up the event loop, and makes sure that SIGTERM ends the process in time.
    """

    def __init__(self, play: ActivePlay) -> None:
        self.received: list[int] = []
        self._play = play
        self._before: dict[int, Any] = {}
        self._watch: _SignalWatch | None = None

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            if _raises_interrupt(signal.getsignal(signal.SIGINT)):
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle)
            if is_default(signal.getsignal(signal.SIGTERM)):
                self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._handle)
            if self._before:
                self._watch = _SignalWatch(self._play, frozenset(self._before))
        return self

    def __exit__(self, *error: object) -> None:
        if self._watch is not None:
            self._watch.close()
        for number, handler in self._before.items():
            if number == signal.SIGTERM:
                restore_sigterm_handler(handler)
            else:
                signal.signal(number, handler)

    def exception(self) -> BaseException:
        """The exception that the play raises because of the received signals."""
        if signal.SIGTERM not in self.received:
            return KeyboardInterrupt()
        cancel_open_rollouts()  # of other runs, which may not be closed when this is raised
        return SystemExit(SIGTERM_EXIT_CODE)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        is_first = len(self.received) == 1
        if not is_first and signal.SIGTERM in self.received:
            self._play.exit()
        if not is_first:
            raise KeyboardInterrupt
        self._play.cancel()
        if number == signal.SIGTERM and self._watch is not None:
            self._watch.report_sigterm()


class _SignalWatch:
    """A thread that reads signals from the wakeup descriptor of the process, even if the main thread is blocked.

    An env may replace the descriptor, as `loop.add_signal_handler` does: then the handler reports SIGTERM.
    """

    def __init__(self, play: ActivePlay, numbers: frozenset[int]) -> None:
        self._play = play
        self._numbers = numbers
        self._has_deadline = False
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._descriptor = self._sender.fileno()
        self._previous = signal.set_wakeup_fd(self._descriptor, warn_on_full_buffer=False)
        _watches.append(self)
        threading.Thread(target=self._run, name="rolltrace-signals", daemon=True).start()

    def report_sigterm(self) -> None:
        """Make the process end in time; called by the handler of SIGTERM."""
        try:
            self._sender.send(_SIGTERM_HANDLED)
        except OSError:  # this is a forked process, which does not have the thread, or the socket's buffer is full
            self._set_deadline()

    def close(self) -> None:
        """End the thread and restore the descriptor."""
        _watches.remove(self)
        self._restore_descriptor(self._previous)
        with contextlib.suppress(OSError):  # this is a forked process
            self._sender.shutdown(socket.SHUT_RDWR)
        self._sender.close()

    def abandon_after_fork(self) -> None:
        """Keep signals of a forked process from reaching the watch of the process that plays."""
        with contextlib.suppress(ValueError):  # not in the main interpreter
            self._restore_descriptor(-1)
        self._sender.close()
        self._receiver.close()

    def _restore_descriptor(self, previous: int) -> None:
        """Set the wakeup descriptor to the previous one, unless other code has replaced it."""
        current = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(previous if current == self._descriptor else current, warn_on_full_buffer=False)

    def _run(self) -> None:
        received: list[int] = []
        with self._receiver:
            while data := self._receiver.recv(1):
                if data == _SIGTERM_HANDLED:
                    self._set_deadline()
                    continue
                self._forward(data)
                if data[0] in self._numbers:
                    received.append(data[0])
                    self._act(received)

    def _act(self, received: list[int]) -> None:
        """Do what the handler does in the main thread, if another thread can."""
        self._play.cancel()
        if signal.SIGTERM not in received:
            return
        self._set_deadline()
        if len(received) > 1:
            threading.Event().wait(_ANSWER_SECONDS)  # the handler ends the process before that, unless it is blocked
            self._play.exit()

    def _forward(self, data: bytes) -> None:
        """Pass a signal on to the previous descriptor, such as that of a notebook's event loop."""
        if self._previous != -1:
            with contextlib.suppress(OSError):
                os.write(self._previous, data)

    def _set_deadline(self) -> None:
        if not self._has_deadline:
            self._has_deadline = True
            threading.Thread(target=self._force_exit_after_deadline, name="rolltrace-sigterm", daemon=True).start()

    def _force_exit_after_deadline(self) -> None:
        """End the process if it has not ended by itself: an env may block, or swallow the cancellation.

        This also applies after the play, because a thread that an env left behind can keep the interpreter from ending.
        """
        pause = threading.Event()
        pause.wait(RECORD_SECONDS)
        self._play.record_cancelled()
        pause.wait(_EXIT_SECONDS - RECORD_SECONDS - _ANSWER_SECONDS)
        self._play.exit()


_SIGTERM_HANDLED = b"\0"
"""Sent by the handler; no signal has this number."""
_watches: list[_SignalWatch] = []


def _abandon_watches_after_fork() -> None:
    for watch in _watches:
        watch.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_watches_after_fork)


def _raises_interrupt(handler: Any) -> bool:
    """Whether SIGINT has Python's own handler, or that of `asyncio.run`, which a blocked loop does not act on."""
    if isinstance(handler, functools.partial):
        return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    return handler is signal.default_int_handler
