"""A failure as a record holds it, and how one is made from an exception."""

from traceback import format_exception

import msgspec

from rolltrace.trace.field_types import Text
from rolltrace.trace.freeform import clean_text
from rolltrace.trace.stop_reasons import Layer

INTERRUPTED = "Interrupted"
"""The type of the failure, of layer `runner`, of a score that is missing because the play ended before."""
_MAX_TEXT_CHARS = 20_000


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, and in which layer."""

    layer: Layer
    """Which part of the system it came from."""
    type: str
    """The name of the exception."""
    message: Text
    traceback: Text = ""


def is_interruption(layer: str, kind: str) -> bool:
    """Whether a failure of this layer and type says that grading was interrupted: nothing failed, a result is due."""
    return layer == Layer.RUNNER and kind == INTERRUPTED


def failure_of(layer: Layer, error: BaseException) -> Failure:
    """What went wrong, and in which layer, whatever the exception does when it is asked."""
    try:
        message = str(error)
        lines = "".join(format_exception(error))
    except Exception as broken:  # noqa: BLE001 - a foreign exception may fail to describe itself
        message, lines = f"its text raises {type(broken).__name__}", ""
    return bounded_failure(layer, type(error).__qualname__, message, lines)


def bounded_failure(layer: Layer, type: str, message: str, traceback: str = "") -> Failure:  # noqa: A002 - a field
    """A failure whose texts are not longer than a record should have them."""
    return Failure(layer, _bounded(type), _bounded(message), _bounded(traceback))


def _bounded(text: str) -> str:
    """Text that UTF-8 can hold, its middle left out where it is very long."""
    text = clean_text(text, "", [])
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    half = _MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
