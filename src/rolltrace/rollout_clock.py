"""The wall clock of a rollout, which is paused while the rollout waits for others."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import Self

import msgspec


def pause_deadline() -> AbstractContextManager[None]:
    """A block whose time does not count against the time-out of the rollout that is being played.

    It is for waits that others cause: another seat's turn, a queue. Blocks may overlap in parallel tasks.
    """
    clock = _CLOCK.get()
    return nullcontext() if clock is None else clock.paused()


class RolloutClock(msgspec.Struct):
    """The deadline of one rollout. It moves back by the time that the rollout spends waiting for others.

    In its block, `pause_deadline` pauses this clock, also in tasks that are started inside.
    """

    _deadline: float | None = None
    _timeout: asyncio.Timeout | None = None
    """None before the start, after the end, and if the rollout has no time limit."""
    _pauses: int = 0
    _paused_at: float = 0.0
    _token: "Token[RolloutClock | None] | None" = None

    def __enter__(self) -> Self:
        self._token = _CLOCK.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            try:
                _CLOCK.reset(self._token)
            except ValueError:  # an abandoned coroutine is closed in another context
                return

    def start(self, seconds: float) -> asyncio.Timeout:
        """A context manager that raises `TimeoutError` when the rollout has run for `seconds`."""
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._timeout = asyncio.timeout_at(self._deadline)
        return self._timeout

    def stop(self) -> None:
        """Ignore later pauses: the play is over."""
        self._timeout = None

    @property
    def is_running(self) -> bool:
        """Whether there is a deadline to pause."""
        return self._timeout is not None and not self._timeout.expired()

    @property
    def has_expired(self) -> bool:
        """Whether the time-out has cancelled the play."""
        return self._timeout is not None and self._timeout.expired()

    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose time does not count. Blocks may overlap in parallel tasks."""
        if self._timeout is None or not self.is_running:
            yield
            return
        loop = asyncio.get_running_loop()
        if self._pauses == 0:
            self._paused_at = loop.time()
            self._timeout.reschedule(None)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._resume(loop.time() - self._paused_at)

    def _resume(self, paused_seconds: float) -> None:
        if self._timeout is not None and self._deadline is not None and self.is_running:
            self._deadline += paused_seconds
            self._timeout.reschedule(self._deadline)


_CLOCK: ContextVar[RolloutClock | None] = ContextVar("rolltrace.clock", default=None)
