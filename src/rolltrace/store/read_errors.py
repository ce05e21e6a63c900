"""What of a run could not be read, each thing once."""

from collections import Counter
from enum import StrEnum

import msgspec

from rolltrace.errors import ChecksumError, NewerVersionError
from rolltrace.store.layout import strip_extension

__all__ = ["MAX_PER_FILE", "ReadError", "ReadErrorKind", "ReadErrors", "read_error_kind", "strip_extension"]

MAX_PER_FILE = 1000
"""How many problems of one file are kept; one more says that there are others."""


class ReadErrorKind(StrEnum):
    """What is wrong."""

    TORN = "torn"
    """A last line without an end: being written, or left by a writer that died."""
    DAMAGED = "damaged"
    """Bytes that are not those that were written."""
    MISSING = "missing"
    """A file or folder that should be there."""
    NEWER = "newer"
    """A record of a newer version of the format."""
    INVALID = "invalid"
    """A line with the right checksum that is not the record it should be."""
    UNEXPECTED_FILE = "strange"
    """A file that no run has, by its name or because it is no file."""
    UNREADABLE = "unreadable"
    """The system gave no bytes; what was written may yet be there."""


def read_error_kind(error: Exception) -> ReadErrorKind:
    """What an error that was met while reading says is wrong."""
    if isinstance(error, FileNotFoundError):
        return ReadErrorKind.MISSING
    if isinstance(error, OSError):
        return ReadErrorKind.UNREADABLE
    if isinstance(error, NewerVersionError):
        return ReadErrorKind.NEWER
    return ReadErrorKind.DAMAGED if isinstance(error, ChecksumError) else ReadErrorKind.INVALID


class ReadError(msgspec.Struct, frozen=True):
    """Something of a run that could not be read."""

    file: str
    """Which file, from the run's directory on."""
    offset: int | None
    """From which byte on, uncompressed; None where it is the whole file."""
    message: str
    is_transient: bool = False
    """Whether it may yet pass: a line that is being written, a file that is being put in place."""
    kind: ReadErrorKind = ReadErrorKind.DAMAGED

    def __str__(self) -> str:
        return f"{self.file}{'' if self.offset is None else f', byte {self.offset}'}: {self.message}"


class ReadErrors:
    """Problems in the order in which they were found; one that has passed is forgotten."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int | None], ReadError] = {}
        self._passing: dict[str, ReadError] = {}
        self._counts: Counter[str] = Counter()

    def report(self, problem: ReadError) -> None:
        """Keep a problem, unless something is known already to be wrong at that place."""
        file = strip_extension(problem.file)
        key = (file, problem.offset)
        if key in self._found or self._counts[file] > MAX_PER_FILE:
            return
        self._counts[file] += 1
        if self._counts[file] > MAX_PER_FILE:
            message = f"More than {MAX_PER_FILE} places of it are damaged."
            problem = ReadError(problem.file, problem.offset, message, kind=problem.kind)
        self._found[key] = problem
        if problem.is_transient:
            self._passing[file] = problem

    def clear_transient(self, file: str, end: int) -> None:
        """Forget what had still to come of a file before this byte: it was read meanwhile."""
        problem = self._passing.get(file)
        if problem is not None and (problem.offset or 0) < end:
            del self._passing[file]
            del self._found[file, problem.offset]
            self._counts[file] -= 1

    def all(self) -> tuple[ReadError, ...]:
        """Every problem."""
        return tuple(self._found.values())
