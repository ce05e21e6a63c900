"""Calls a user's async methods with a timeout, and measures how long each blocks the event loop."""

import asyncio
import contextlib
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Generator
from typing import Any

import msgspec

from rolltrace.policies.roles import RoleCallContext
from rolltrace.testing.conformance.probe_policies import RoleCallProbe
from rolltrace.testing.conformance.violations import Rule, ViolationLog

clock = time.perf_counter
"""Measures for how long a call blocks the event loop."""


class _Watched:
    """Runs an awaitable from one suspension to the next, and calls a method before and after."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaitable.__await__()
        thrown: BaseException | None = None
        while True:
            self._begin_piece()
            try:
                waiting = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            finally:
                self._end_piece()
            self._suspend()
            thrown = None
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001 - it is the inner coroutine's to handle
                thrown = error

    def _begin_piece(self) -> None:
        """Called before it runs."""

    def _end_piece(self) -> None:
        """Called when it has stopped running: it waits, or has ended."""

    def _suspend(self) -> None:
        """Called before it waits."""


class CancelPoint:
    """Cancels the current task at the await with a given number."""

    def __init__(self, at: int) -> None:
        self.at = at
        """The number of the await, from 1, over all awaitables that are wrapped by this."""
        self.reached = 0

    @property
    def fired(self) -> bool:
        """Whether the cancellation has happened."""
        return self.reached >= self.at

    def around(self, awaitable: Awaitable[Any]) -> Awaitable[Any]:
        """The awaitable, with its awaits counted."""
        return _Counted(self, awaitable)


class _Counted(_Watched):
    def __init__(self, point: CancelPoint, awaitable: Awaitable[Any]) -> None:
        super().__init__(awaitable)
        self._point = point

    def _suspend(self) -> None:
        self._point.reached += 1
        # A task that is cancelled while it runs meets the cancellation at its next suspension: this one.
        if self._point.reached == self._point.at and (task := asyncio.current_task()) is not None:
            task.cancel()


class TimedAwaitable(_Watched):
    """An awaitable that measures for how long it blocks the event loop."""

    longest = 0.0
    """The longest time between two suspensions so far, in seconds."""
    _began = 0.0

    def _begin_piece(self) -> None:
        self._began = clock()

    def _end_piece(self) -> None:
        self.longest = max(self.longest, clock() - self._began)


class CallOutcome(msgspec.Struct, frozen=True):
    """The result of one call."""

    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    """Whether `CancelledError` came out."""
    hung: bool = False
    """Whether it did not end in time."""
    blocked_seconds: float = 0.0
    """The longest time for which it blocked the event loop."""

    @property
    def returned(self) -> bool:
        """Whether the call returned a value."""
        return self.error is None and not self.cancelled and not self.hung


class CallTimeouts:
    """The timeout of each method: a method that has hung before gets at most one second."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._hung: set[str] = set()

    def for_method(self, method: str) -> float:
        """The seconds that a call of this method may take."""
        return min(self.seconds, 1.0) if method in self._hung else self.seconds

    def mark_hung(self, method: str) -> None:
        """Remember that the method hung."""
        self._hung.add(method)


_Job = tuple[Awaitable[Any], "asyncio.Future[CallOutcome]"]


class GuardedCaller:
    """Calls the methods of one object, each with a timeout, and all in one task, as a runner does.

    An environment may enter a context in `initial_observation` that it must leave in the same task.
    """

    def __init__(
        self, target: Any, report: ViolationLog, timeouts: CallTimeouts, role_calls: RoleCallProbe | None = None
    ) -> None:
        """`role_calls` lets the target ask other roles."""
        self.target = target
        self.role_calls = role_calls
        self._report = report
        self._timeouts = timeouts
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._busy = False
        self._waiting = False
        self._given_up = False
        # A task keeps the context variables of its creation.
        with contextlib.nullcontext() if role_calls is None else RoleCallContext(lambda: role_calls.asker):
            self.task = asyncio.create_task(self._serve())
        if role_calls is not None:
            role_calls.task = self.task

    async def call(self, method: str, *arguments: Any, point: CancelPoint | None = None) -> CallOutcome:
        """Call a method and wait for it until its timeout. If the waiting is cancelled, so is the call."""
        if self._given_up:
            return CallOutcome(hung=True)
        try:
            result = getattr(self.target, method)(*arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the code under test may raise anything
            return CallOutcome(error=error)
        if not inspect.isawaitable(result):
            owner = type(self.target).__name__
            self._report.add(
                Rule.TYPES,
                f"`{owner}.{method}` is not `async def`: it returned its {type(result).__name__} at once",
                f"write `async def {method}`",
            )
            return CallOutcome(result)
        return await self._wait_for(method, result if point is None else point.around(result))

    async def stop(self) -> None:
        """End the task, if it can be ended."""
        if self._given_up:
            self.task.cancel()
        else:
            self._jobs.put_nowait(None)
            await asyncio.wait({self.task}, timeout=1.0)

    async def _wait_for(self, method: str, awaitable: Awaitable[Any]) -> CallOutcome:
        reply: asyncio.Future[CallOutcome] = asyncio.get_running_loop().create_future()
        self._waiting = True
        self._jobs.put_nowait((awaitable, reply))
        try:
            await asyncio.wait({reply}, timeout=self._timeouts.for_method(method))
            if reply.done():
                return reply.result()
            owner = type(self.target).__name__
            self._report.add(
                Rule.HANGS,
                f"`{owner}.{method}` was still waiting after {self._timeouts.seconds:g} s",
                f"make sure that every await in `{method}` ends, with a timeout where it depends on others",
            )
            self._timeouts.mark_hung(method)
            await self._cancel_call(method, reply)
        except asyncio.CancelledError:
            await self._cancel_call(method, reply)
            raise
        return CallOutcome(hung=True)

    async def _cancel_call(self, method: str, reply: "asyncio.Future[CallOutcome]") -> None:
        if self._busy:
            self.task.cancel()
        else:
            self._waiting = False
        await asyncio.wait({reply}, timeout=self._timeouts.for_method(method))
        self._given_up = not reply.done()

    async def _serve(self) -> None:
        while (job := await self._jobs.get()) is not None:
            awaitable, reply = job
            # A call that was cancelled before it began still runs to its first await, and is cancelled there.
            awaitable = awaitable if self._waiting else CancelPoint(1).around(awaitable)
            self._set_busy(True)
            outcome = await self._outcome(awaitable)
            self._set_busy(False)
            while (task := asyncio.current_task()) is not None and task.cancelling():
                task.uncancel()  # the call was cancelled, not this task
            if not reply.done():
                reply.set_result(outcome)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        if self.role_calls is not None:
            self.role_calls.active = busy

    async def _outcome(self, awaitable: Awaitable[Any]) -> CallOutcome:
        timed = TimedAwaitable(awaitable)
        try:
            value = await timed
            return CallOutcome(value, blocked_seconds=timed.longest)
        except asyncio.CancelledError:
            return CallOutcome(cancelled=True)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the code under test may raise anything
            return CallOutcome(error=error)


MAX_BLOCKED_SECONDS = 0.5
"""For how long a method may block the event loop."""
_MIN_CALLS = 3
"""A method is reported if so many calls were all too long: a single one may be, on a busy machine or at an import."""


class BlockedTimes:
    """Collects for how long calls blocked the event loop, by kind of call."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, name: str, method: str, blocked_seconds: float) -> None:
        """Add a call that returned; calls with the same name do the same work."""
        self._seconds[name, method].append(blocked_seconds)

    def report_to(self, report: ViolationLog) -> None:
        """Report the methods that always block for too long."""
        for (name, method), seconds in self._seconds.items():
            if len(seconds) >= _MIN_CALLS and min(seconds) > MAX_BLOCKED_SECONDS:
                report.add(
                    Rule.BLOCKING,
                    f"{name} let nothing else run for {min(seconds):.1f} s or more, at each of {len(seconds)} calls",
                    f"await in `{method}` whatever waits (`asyncio.sleep`, an async client), and run what computes "
                    "long or cannot be awaited with `asyncio.to_thread`",
                )
