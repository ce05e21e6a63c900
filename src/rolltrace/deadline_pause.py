"""Time that is not a rollout's own: while it waits for a place, a turn or a worker, its wall clock stands still."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token

Pause = Callable[[], AbstractContextManager[None]]

_PAUSE: ContextVar[Pause] = ContextVar("rolltrace.pause", default=nullcontext)


def pause_deadline() -> AbstractContextManager[None]:
    """A block whose time does not count against the `seconds` of the rollout that is being played.

    It is for waits that others cause: another seat's turn, a queue. Blocks may overlap in parallel tasks.
    """
    return _PAUSE.get()()


class DeadlinePause:
    """A block in which `pause_deadline` uses this, in the tasks that are started in it too."""

    __slots__ = ("_pause", "_token")

    def __init__(self, pause: Pause) -> None:
        self._pause = pause

    def __enter__(self) -> None:
        self._token: Token[Pause] = _PAUSE.set(self._pause)

    def __exit__(self, *error: object) -> None:
        try:
            _PAUSE.reset(self._token)
        except ValueError:  # a coroutine that nobody awaits any more is closed in another context
            return
