"""Which layer an exception came from."""

import asyncio
from types import TracebackType

from rolltrace.trace.outcome import Layer


class BlamedError(Exception):
    """An exception together with the layer it came from; never leaves this room."""

    def __init__(self, layer: Layer, cause: BaseException) -> None:
        super().__init__(layer, cause)
        self.layer = layer
        self.cause = cause


class Blame:
    """A context in which an exception is one layer's fault.

    Cancellation is nobody's, and passes; but a `CancelledError` that nobody asked for is a failure like any other, as
    is a `sys.exit()` in the middle of a rollout.
    """

    __slots__ = ("_layer",)

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BlamedError) or error is None:
            return
        if isinstance(error, Exception | SystemExit) or (
            isinstance(error, asyncio.CancelledError) and not _is_being_cancelled()
        ):
            raise BlamedError(self._layer, error) from error


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


BLAME_POLICY = Blame(Layer.POLICY)
BLAME_ENV = Blame(Layer.ENV)
BLAME_GRADER = Blame(Layer.GRADER)
BLAME_HOOK = Blame(Layer.HOOK)
