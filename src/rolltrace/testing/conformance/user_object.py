"""Passes the runner's calls on to a user's object, and reports those that hang or are not async."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any

from rolltrace.cancellation import is_failure
from rolltrace.errors import RolltraceError
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.violations import Rule, short_repr

clock = time.perf_counter
"""Measures for how long a call blocks the event loop."""

_LATE_ITERATIONS = 2
"""How many iterations of the event loop the answer to a question from another task takes."""


class AlreadyReported(Exception):  # noqa: N818 - it ends a rollout, and is no error of its own
    """Ends a rollout whose env, builder or grader broke a rule that is in the report."""


class CancelPoint:
    """Cancels the play of one seat at the await with a given number."""

    def __init__(self, at: int, seat: int) -> None:
        self.seat = seat
        self._at = at
        self._reached = 0

    @property
    def fired(self) -> bool:
        """Whether the cancellation has happened."""
        return self._reached >= self._at

    def count_await(self) -> None:
        """Count an await that is about to suspend the current task, and cancel the task if it is the one."""
        self._reached += 1
        # A task that is cancelled while it runs gets the cancellation at its next suspension: this one.
        if self._reached == self._at and (task := asyncio.current_task()) is not None:
            task.cancel()


class _WatchedAwaitable:
    """Runs an awaitable from one suspension to the next, as `await` does, and measures how long it blocks the loop."""

    def __init__(self, awaitable: Awaitable[Any], limit: asyncio.Timeout, point: CancelPoint | None) -> None:
        self.blocked_seconds = 0.0
        """The longest time between two suspensions so far."""
        self._awaitable = awaitable
        self._limit = limit
        self._point = point

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaitable.__await__()
        thrown: BaseException | None = None
        while True:
            began = clock()
            try:
                waiting = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration as stop:
                return stop.value
            finally:
                self.blocked_seconds = max(self.blocked_seconds, clock() - began)
            if thrown is not None and self._limit.expired():  # it ignores that its time is up
                with contextlib.suppress(Exception):
                    inner.close()
                raise thrown
            if self._point is not None:
                self._point.count_await()
            thrown = None
            try:
                yield waiting
            except BaseException as error:  # noqa: BLE001 - the inner coroutine handles it
                thrown = error


class UserObject:
    """An env, builder or grader of the user, and what it asks of other roles."""

    def __init__(self, target: Any, harness: Harness) -> None:
        self.target = target
        self.name = type(target).__name__
        self.over = False
        """Whether the rollout or the grading has ended, so that a later answer of another role is not recorded."""
        self._harness = harness
        self._roles: list[str] = []
        """The roles that were asked since the last call began."""
        self._calls_running = 0
        self._task: asyncio.Task[Any] | None = None

    async def call(self, method: str, *arguments: Any, rule: Rule, name: str, fix: str, work: str = "") -> Any:
        """Await a method, and report what it raises. Calls with the same `work` should block the loop equally long."""
        try:
            return await self.run(method, *arguments, work=work or name)
        except BaseException as error:
            self.report_error(error, method, rule, name, fix)
            raise

    async def run(self, method: str, *arguments: Any, work: str, point: CancelPoint | None = None) -> Any:
        """Await a method. Raises `AlreadyReported` if it is not async, or exceeds its time."""
        self._roles = []
        self._task = asyncio.current_task()
        self._calls_running += 1
        token = _CALLER.set(self)
        try:
            awaitable = getattr(self.target, method)(*arguments)
            if not inspect.isawaitable(awaitable):
                self._harness.report(
                    Rule.TYPES,
                    f"`{self.name}.{method}` is not `async def`: it returned its {type(awaitable).__name__} at once",
                    f"write `async def {method}`",
                )
                raise AlreadyReported
            return await self._run_with_timeout(method, awaitable, work, point)
        finally:
            _CALLER.reset(token)
            self._calls_running -= 1

    async def _run_with_timeout(
        self, method: str, awaitable: Awaitable[Any], work: str, point: CancelPoint | None
    ) -> Any:
        # The runner's own time limit is for a whole rollout, and cannot end a call that ignores its cancellation.
        seconds = self._harness.seconds
        limit = asyncio.timeout(seconds)
        watched = _WatchedAwaitable(awaitable, limit, point)
        value: Any = None
        try:
            async with limit:
                value = await watched
        except Exception:
            if not limit.expired():
                raise
        if limit.expired():
            self._harness.report(
                Rule.HANGS,
                f"`{self.name}.{method}` was still waiting after {seconds:g} s",
                f"make sure that every await in `{method}` ends, with a timeout where it depends on others",
            )
            raise AlreadyReported
        self._harness.add_blocked_time(work, method, watched.blocked_seconds)
        return value

    def report_error(self, error: BaseException, method: str, rule: Rule, name: str, fix: str) -> None:
        """Report what a method raised, unless that was reported before, or the task was cancelled."""
        if isinstance(error, AlreadyReported) or not is_failure(error):
            return
        if self._roles and isinstance(error, RolltraceError):
            role = self._roles[-1]
            self._harness.report(
                Rule.ANSWERS,
                f"`{self.name}.{method}` could not use what the role {role!r} answered: {short_repr(error)}",
                f"pass `roles={{{role!r}: …}}` to the check, a policy that answers as `{self.name}` expects",
            )
        elif isinstance(error, asyncio.CancelledError):
            self._harness.report(rule, f"{name} raised CancelledError without being cancelled", fix)
        else:
            self._harness.report(rule, f"{name} raised {short_repr(error)}", fix)

    async def delay_answer(self, role: str) -> None:
        """Delay the answer of another role, so that the asking task can be cancelled meanwhile.

        An answer that a task of the user's asks for, and that no method awaits, comes when all is over.
        """
        self._roles.append(role)
        await asyncio.sleep(0)
        if asyncio.current_task() is not self._task:
            iterations = 0
            while iterations < _LATE_ITERATIONS and not self.over:
                await asyncio.sleep(0)
                iterations += self._calls_running > 0
        if self.over:
            self._harness.report(
                Rule.ROLES,
                f"`{self.name}` asked the role {role!r}, and ended before the answer came",
                "await every `ask` before `step`, `close` or the grade returns: no record holds a later answer",
            )


_CALLER: ContextVar[UserObject | None] = ContextVar("rolltrace.check_env", default=None)


def current_caller() -> UserObject | None:
    """The user's object whose method runs now, or has started the running task; None if the runner itself calls."""
    return _CALLER.get()
