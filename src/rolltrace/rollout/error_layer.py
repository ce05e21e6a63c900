"""Attributes each exception to the layer it came from, and closes envs and builders within a time limit."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from rolltrace.cancellation import is_failure
from rolltrace.errors import RoleError
from rolltrace.policies.validation import require_awaitable
from rolltrace.trace.stop_reasons import Layer


class LayerError(Exception):
    """An exception together with the layer it came from; it does not leave this package."""

    def __init__(self, layer: Layer, cause: BaseException) -> None:
        super().__init__(layer, cause)
        self.layer = layer
        self.cause = cause


class ErrorLayer:
    """A context manager that attributes each exception raised inside it to one layer.

    A requested cancellation passes unchanged. A stray `CancelledError` and a `SystemExit` are failures like any other.
    """

    __slots__ = ("_layer",)

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, LayerError) and is_failure(error):
            raise LayerError(self._layer_of(error), error) from error

    def _layer_of(self, error: BaseException) -> Layer:
        """A role that fails inside an env is a failure of the policy; inside a grader it is the grader's."""
        return Layer.POLICY if self._layer is Layer.ENV and isinstance(error, RoleError) else self._layer


POLICY_LAYER = ErrorLayer(Layer.POLICY)
ENV_LAYER = ErrorLayer(Layer.ENV)
GRADER_LAYER = ErrorLayer(Layer.GRADER)
HOOK_LAYER = ErrorLayer(Layer.HOOK)


async def close_with_timeout(
    seconds: float, close: Callable[[], Awaitable[None]], owner: object
) -> BaseException | None:
    """Call `close` and return the exception it raised, if any; a failure here changes no reward."""
    try:
        async with asyncio.timeout(seconds):
            with ENV_LAYER:
                await require_awaitable(close(), owner, close.__name__)
    except TimeoutError:  # only our own: one that `close` raises arrives as a LayerError
        return TimeoutError(f"it did not end within {seconds} s")
    except LayerError as error:
        return error.cause
    return None
