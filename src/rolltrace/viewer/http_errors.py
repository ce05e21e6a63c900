"""What a question that could not be answered is told: a status, the kind of error and its message."""

import logging

import msgspec

from rolltrace.errors import InputError, RolltraceError, RunNotFoundError, StorageError, UnknownNameError

_logger = logging.getLogger("rolltrace.viewer")


class HttpError(msgspec.Struct, frozen=True):
    """Why there is no answer."""

    status: int
    type: str
    message: str

    @property
    def body(self) -> bytes:
        """As the page reads it."""
        message = self.message.encode("utf-8", "replace").decode()
        return msgspec.json.encode({"error": {"type": self.type, "message": message}})


OUT_OF_MEMORY = HttpError(
    400, "OutOfMemory", "The statement took more memory than it may, and was given up: ask for less of it."
)


def http_error_of(error: Exception) -> HttpError:
    """What an error is told as; of one that nobody expected only its kind is told, and the log has the rest."""
    kind = type(error).__name__
    if isinstance(error, RunNotFoundError | UnknownNameError):
        return HttpError(404, kind, str(error))
    if isinstance(error, StorageError):
        return HttpError(503, kind, str(error))
    # The engine's own advice is not for here.
    if kind == "OutOfMemoryException" or (isinstance(error, InputError) and str(error).startswith("Out of Memory")):
        return OUT_OF_MEMORY
    if isinstance(error, RolltraceError):
        return HttpError(400, kind, str(error))
    _logger.error("A question failed.", exc_info=error)
    return HttpError(500, kind, "The server could not answer; its log says why.")
