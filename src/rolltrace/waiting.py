"""Time that is not a rollout's own: while it waits for a place, a turn or a worker, its wall clock stands still."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar

_PAUSE: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("rolltrace.pause", default=nullcontext)


def waiting() -> AbstractContextManager[None]:
    """A block whose time does not count against the `seconds` of the rollout that is being played.

    It is for waits that others cause: another seat's turn, a queue. Blocks may overlap in parallel tasks.
    """
    return _PAUSE.get()()


@contextmanager
def pausing(pause: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let `waiting` use this in the block, and in the tasks that are started in it."""
    token = _PAUSE.set(pause)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that nobody awaits any more is closed in another context
            _PAUSE.reset(token)
