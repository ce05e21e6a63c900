"""What of a run could not be read, each thing once."""

from collections import Counter
from enum import StrEnum

import msgspec

from rolltrace.errors import ChecksumError, NewerVersionError
from rolltrace.store.layout import without_ending

__all__ = ["MOST_OF_ONE_FILE", "Kind", "Problem", "Problems", "kind_of", "without_ending"]

MOST_OF_ONE_FILE = 1000
"""How many problems of one file are kept; one more says that there are others."""


class Kind(StrEnum):
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
    STRANGE = "strange"
    """A file that no run has, by its name or because it is no file."""
    UNREADABLE = "unreadable"
    """The system gave no bytes; what was written may yet be there."""


def kind_of(error: Exception) -> Kind:
    """What an error that was met while reading says is wrong."""
    if isinstance(error, FileNotFoundError):
        return Kind.MISSING
    if isinstance(error, OSError):
        return Kind.UNREADABLE
    if isinstance(error, NewerVersionError):
        return Kind.NEWER
    return Kind.DAMAGED if isinstance(error, ChecksumError) else Kind.INVALID


class Problem(msgspec.Struct, frozen=True):
    """Something of a run that could not be read."""

    file: str
    """Which file, from the run's directory on."""
    offset: int | None
    """From which byte on, uncompressed; None where it is the whole file."""
    message: str
    passing: bool = False
    """Whether it may yet pass: a line that is being written, a file that is being put in place."""
    kind: Kind = Kind.DAMAGED

    def __str__(self) -> str:
        return f"{self.file}{'' if self.offset is None else f', byte {self.offset}'}: {self.message}"


class Problems:
    """Problems in the order in which they were found; one that has passed is forgotten."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int | None], Problem] = {}
        self._passing: dict[str, Problem] = {}
        self._counts: Counter[str] = Counter()

    def report(self, problem: Problem) -> None:
        """Keep a problem, unless something is known already to be wrong at that place."""
        file = without_ending(problem.file)
        key = (file, problem.offset)
        if key in self._found or self._counts[file] > MOST_OF_ONE_FILE:
            return
        self._counts[file] += 1
        if self._counts[file] > MOST_OF_ONE_FILE:
            message = f"More than {MOST_OF_ONE_FILE} places of it are damaged."
            problem = Problem(problem.file, problem.offset, message, kind=problem.kind)
        self._found[key] = problem
        if problem.passing:
            self._passing[file] = problem

    def settle(self, file: str, end: int) -> None:
        """Forget what had still to come of a file before this byte: it was read meanwhile."""
        problem = self._passing.get(file)
        if problem is not None and (problem.offset or 0) < end:
            del self._passing[file]
            del self._found[file, problem.offset]
            self._counts[file] -= 1

    def all(self) -> tuple[Problem, ...]:
        """Every problem."""
        return tuple(self._found.values())
