"""Which layer an exception came from."""

import traceback
from types import TracebackType

from rolltrace.trace.freeform import clean_text
from rolltrace.trace.outcome import Layer
from rolltrace.trace.rollout import Failure

_LONGEST_TEXT = 20_000


class BlamedError(Exception):
    """An exception together with the layer it came from; never leaves this room."""

    def __init__(self, layer: Layer, cause: Exception) -> None:
        super().__init__(layer, cause)
        self.layer = layer
        self.cause = cause


class Blame:
    """A context in which an exception is one layer's fault. Cancellation is nobody's, and passes."""

    __slots__ = ("_layer",)

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, BlamedError):
            raise BlamedError(self._layer, error) from error


BLAME_POLICY = Blame(Layer.POLICY)
BLAME_ENV = Blame(Layer.ENV)
BLAME_GRADER = Blame(Layer.GRADER)
BLAME_HOOK = Blame(Layer.HOOK)


def failure_of(layer: Layer, error: BaseException) -> Failure:
    """An exception as the record holds it."""
    try:
        message = str(error)
        lines = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001 - a foreign exception may fail to describe itself
        message, lines = f"its text raises {type(broken).__name__}", ""
    return Failure(layer, type(error).__qualname__, _bounded(message), _bounded(lines))


def _bounded(text: str) -> str:
    """Text that UTF-8 can hold, its middle left out where it is very long."""
    text = clean_text(text, "", [])
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
