"""The parts of a run that could not be read, without duplicates."""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import msgspec

from rolltrace.errors import ChecksumError, NewerVersionError
from rolltrace.store.layout import strip_extension

MAX_PER_FILE = 1000
"""How many errors of one file are kept; one more says that there are others."""


class ReadErrorKind(StrEnum):
    """The kind of damage."""

    TORN = "torn"
    """A last line without a line feed: it is being written, or its writer died."""
    DAMAGED = "damaged"
    """Bytes that differ from those that were written."""
    MISSING = "missing"
    """A file or folder that should be there."""
    NEWER = "newer"
    """A record of a newer version of the format."""
    INVALID = "invalid"
    """A line with the right checksum that is not the record it should be."""
    UNEXPECTED_FILE = "strange"
    """A file that does not belong to a run, by its name or because it is not a regular file."""
    REPEATED = "repeated"
    """A line with the id of an earlier one, which alone counts."""
    UNREADABLE = "unreadable"
    """The system could not read it; the data may still be intact."""


def read_error_kind(error: Exception) -> ReadErrorKind:
    """The kind of an error that was raised while reading."""
    if isinstance(error, FileNotFoundError):
        return ReadErrorKind.MISSING
    if isinstance(error, OSError):
        return ReadErrorKind.UNREADABLE
    if isinstance(error, NewerVersionError):
        return ReadErrorKind.NEWER
    return ReadErrorKind.DAMAGED if isinstance(error, ChecksumError) else ReadErrorKind.INVALID


class ReadError(msgspec.Struct, frozen=True):
    """A part of a run that could not be read."""

    file: str
    """The path of the file, relative to the run's directory."""
    offset: int | None
    """The first byte, uncompressed; None for the whole file."""
    message: str
    is_transient: bool = False
    """Whether it may go away: a line that is being written, a file that is being renamed."""
    kind: ReadErrorKind = ReadErrorKind.DAMAGED

    @property
    def is_retryable(self) -> bool:
        """Whether the system could not read it just now, and may be able to later."""
        return self.is_transient and self.kind is ReadErrorKind.UNREADABLE

    @property
    def place(self) -> tuple[str, int | str, bool]:
        """Equal for two errors at one place; those of a whole file differ by their message.

        What cannot be read just now differs from what is known to be damaged there.
        """
        return strip_extension(self.file), self.message if self.offset is None else self.offset, self.is_retryable

    def __str__(self) -> str:
        return f"{self.file}{'' if self.offset is None else f', byte {self.offset}'}: {self.message}"


class ReadErrors:
    """Errors in the order in which they were reported; a transient one is removed when it has gone away."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, int | str, bool], ReadError] = {}
        self._transient: dict[str, list[ReadError]] = {}
        """By file, those that may go away."""
        self._counts: Counter[str] = Counter()
        self.failures = 0
        """How often the system could not read something. It never decreases.

        What was read while it grew may be incomplete, also if the errors are gone by now: do not keep it.
        """

    def report(self, error: ReadError) -> None:
        """Add an error, unless one at the same location is known."""
        self.failures += error.kind is ReadErrorKind.UNREADABLE
        file, *_ = place = error.place
        is_capped = error.offset is not None and not error.is_transient and self._counts[file] >= MAX_PER_FILE
        if place in self._errors or (is_capped and self._counts[file] > MAX_PER_FILE):
            return
        self._counts[file] += 1
        if is_capped:
            message = f"More than {MAX_PER_FILE} places of it are damaged."
            error = ReadError(error.file, error.offset, message, kind=error.kind)
        self._errors[place] = error
        if error.is_transient:
            self._transient.setdefault(file, []).append(error)

    def clear_transient(self, file: str, end: int) -> None:
        """Remove the transient errors of a file that was read up to this byte."""
        self._remove(file, lambda error: error.offset is None or error.offset < end)

    def clear_retryable(self) -> None:
        """Remove what could not be read, before everything is tried again."""
        for file in list(self._transient):
            self._remove(file, lambda error: error.is_retryable)

    def _remove(self, file: str, is_gone: Callable[[ReadError], bool]) -> None:
        for error in self._transient.pop(file, ()):
            if not is_gone(error):
                self._transient.setdefault(file, []).append(error)
            elif self._errors.pop(error.place, None) is not None:  # or another thread removed it
                self._counts[file] -= 1

    def retryable(self) -> list[ReadError]:
        """What could not be read when it was last tried, and may be readable by now."""
        return [error for errors in list(self._transient.values()) for error in errors if error.is_retryable]

    def all(self) -> tuple[ReadError, ...]:
        """All errors."""
        return tuple(self._errors.values())
