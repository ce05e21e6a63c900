"""Calls a user's async methods with a timeout, and measures how long each blocks the event loop."""

import asyncio
import contextlib
import inspect
import time
from collections import defaultdict
from collections.abc import Awaitable, Generator
from typing import Any

import msgspec

from rolltrace.policies.role_calls import RoleCallContext
from rolltrace.testing.conformance.probe_policies import Part
from rolltrace.testing.conformance.violations import Rule, ViolationLog

clock = time.perf_counter
"""What the time is measured with that nothing else could run in."""


class _Watched:
    """An awaitable, run piece by piece: from one suspension to the next."""

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
        """It is about to run."""

    def _end_piece(self) -> None:
        """It has stopped running, to wait or for good."""

    def _suspend(self) -> None:
        """It is about to wait."""


class CancelPoint:
    """Cancels whoever awaits through it, at an await chosen beforehand."""

    def __init__(self, at: int) -> None:
        self.at = at
        """The number of the await, from 1, over all that is awaited through this."""
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
    """An awaitable, with the time measured for which it lets nothing else run."""

    longest = 0.0
    """The longest such time so far, in seconds."""
    _began = 0.0

    def _begin_piece(self) -> None:
        self._began = clock()

    def _end_piece(self) -> None:
        self.longest = max(self.longest, clock() - self._began)


class CallOutcome(msgspec.Struct, frozen=True):
    """What came of one call."""

    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    """Whether `CancelledError` came out."""
    hung: bool = False
    """Whether it was given up."""
    blocked_seconds: float = 0.0
    """The longest time, in seconds, for which it let nothing else run."""

    @property
    def returned(self) -> bool:
        """Whether there is a value."""
        return self.error is None and not self.cancelled and not self.hung


class CallTimeouts:
    """How long to wait for a method: generously, but for one that has hung before, hardly at all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._hung: set[str] = set()

    def with_method(self, method: str) -> float:
        """The seconds that a call of this method may take."""
        return min(self.seconds, 1.0) if method in self._hung else self.seconds

    def lose(self, method: str) -> None:
        """Remember that the method hung."""
        self._hung.add(method)


_Job = tuple[Awaitable[Any], "asyncio.Future[CallOutcome]"]


class GuardedCall:
    """One task that makes all calls of one object, as a runner's would.

    What an environment enters in `initial_observation` it may have to leave in the same task.
    """

    def __init__(self, target: Any, report: ViolationLog, patience: CallTimeouts, part: Part | None = None) -> None:
        """`part` lets the target ask others; without one it may not."""
        self.target = target
        self.part = part
        self._report = report
        self._patience = patience
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._busy = False
        self._waiting = False
        self._given_up = False
        # A task keeps what it was made in.
        with contextlib.nullcontext() if part is None else RoleCallContext(lambda: part.asker):
            self.task = asyncio.create_task(self._serve())
        if part is not None:
            part.task = self.task

    async def call(self, method: str, *arguments: Any, point: CancelPoint | None = None) -> CallOutcome:
        """Call a method and wait for it, but not for ever."""
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

    def interrupt(self) -> None:
        """Cancel the call that is under way."""
        if self._busy:
            self.task.cancel()
        else:
            self._waiting = False

    async def stop(self) -> None:
        """End the task, where it can be ended."""
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
            await asyncio.wait({reply}, timeout=self._patience.with_method(method))
            if reply.done():
                return reply.result()
            owner = type(self.target).__name__
            self._report.add(
                Rule.HANGS,
                f"`{owner}.{method}` was still waiting after {self._patience.seconds:g} s",
                f"make sure that every await in `{method}` ends, with a timeout where it depends on others",
            )
            self._patience.lose(method)
            self.interrupt()
            await asyncio.wait({reply}, timeout=self._patience.with_method(method))
            self._given_up = not reply.done()
        finally:
            if not reply.done():
                self.interrupt()
        return CallOutcome(hung=True)

    async def _serve(self) -> None:
        while (job := await self._jobs.get()) is not None:
            awaitable, reply = job
            # A call that was cancelled before it began still runs up to its first await, where it meets that.
            awaitable = awaitable if self._waiting else CancelPoint(1).around(awaitable)
            self._set_busy(True)
            outcome = await self._outcome(awaitable)
            self._set_busy(False)
            while (task := asyncio.current_task()) is not None and task.cancelling():
                task.uncancel()  # it was the call that was cancelled, not this task
            if not reply.done():
                reply.set_result(outcome)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        if self.part is not None:
            self.part.active = busy

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


LONGEST = 0.5
"""Seconds for which a method may let nothing else run."""
_FEWEST = 3
"""Calls that must all have been too long: one may have been, because a machine is busy or a module was imported."""


class BlockedTimes:
    """Collects how long calls held up the loop, each kind of call by itself."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[float]] = defaultdict(list)

    def note(self, name: str, method: str, held: float) -> None:
        """Take in a call that returned; calls of one name do the same work."""
        self._held[name, method].append(held)

    def tell(self, report: ViolationLog) -> None:
        """Report the methods that always hold it up too long."""
        for (name, method), held in self._held.items():
            if len(held) >= _FEWEST and min(held) > LONGEST:
                report.add(
                    Rule.BLOCKING,
                    f"{name} let nothing else run for {min(held):.1f} s or more, at each of {len(held)} calls",
                    f"await in `{method}` whatever waits (`asyncio.sleep`, an async client), and run what computes "
                    "long or cannot be awaited with `asyncio.to_thread`",
                )
