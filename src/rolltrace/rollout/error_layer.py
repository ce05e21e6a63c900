"""Which layer an exception came from."""

from types import TracebackType

from rolltrace.cancellation import is_failure
from rolltrace.errors import RoleError
from rolltrace.trace.stop_reasons import Layer


class LayerError(Exception):
    """An exception together with the layer it came from; never leaves this room."""

    def __init__(self, layer: Layer, cause: BaseException) -> None:
        super().__init__(layer, cause)
        self.layer = layer
        self.cause = cause


class ErrorLayer:
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
        if error is not None and not isinstance(error, LayerError) and is_failure(error):
            raise LayerError(self._layer_of(error), error) from error

    def _layer_of(self, error: BaseException) -> Layer:
        """An env whose answerer gives no answer has not failed; a grader is no grader without its model."""
        return Layer.POLICY if self._layer is Layer.ENV and isinstance(error, RoleError) else self._layer


POLICY_LAYER = ErrorLayer(Layer.POLICY)
ENV_LAYER = ErrorLayer(Layer.ENV)
GRADER_LAYER = ErrorLayer(Layer.GRADER)
HOOK_LAYER = ErrorLayer(Layer.HOOK)
