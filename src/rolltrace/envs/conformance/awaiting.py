"""Awaits on behalf of others, and looks in whenever what is awaited stops to wait."""

import asyncio
import time
from collections.abc import Awaitable, Generator
from typing import Any

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
