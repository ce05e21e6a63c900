"""Errors as HTTP responses: a status, the type of the error and its message."""

import logging

import msgspec

from rolltrace.errors import InputError, RolltraceError, RunNotFoundError, StorageError, UnknownNameError
from rolltrace.viewer.schemas import ErrorDetail, ErrorResponse

_logger = logging.getLogger("rolltrace.viewer")


class HttpError(msgspec.Struct, frozen=True):
    """An error response."""

    status: int
    type: str
    message: str

    @property
    def body(self) -> bytes:
        """The JSON of the response."""
        message = self.message.encode("utf-8", "replace").decode()
        return msgspec.json.encode(ErrorResponse(ErrorDetail(self.type, message)))


OUT_OF_MEMORY = HttpError(
    400, "OutOfMemory", "The statement took more memory than it may, and was given up: ask for less of it."
)


def http_error_of(error: Exception) -> HttpError:
    """The response for an error; for an unexpected error it names only the type, and the log has the rest."""
    kind = type(error).__name__
    if isinstance(error, RunNotFoundError | UnknownNameError):
        return HttpError(404, kind, str(error))
    if isinstance(error, StorageError):
        return HttpError(503, kind, str(error))
    # DuckDB's message suggests settings that a user of the viewer cannot change.
    if kind == "OutOfMemoryException" or (isinstance(error, InputError) and str(error).startswith("Out of Memory")):
        return OUT_OF_MEMORY
    if isinstance(error, RolltraceError):
        return HttpError(400, kind, str(error))
    _logger.error("A question failed.", exc_info=error)
    return HttpError(500, kind, "The server could not answer; its log says why.")
