"""What of a run could not be read, each thing once."""

from collections import Counter

import msgspec

MOST_OF_ONE_FILE = 1000
"""How many problems of one file are kept; one more says that there are others."""


class Problem(msgspec.Struct, frozen=True):
    """Something of a run that could not be read."""

    file: str
    """Which file, from the run's directory on."""
    offset: int | None
    """From which byte on, uncompressed; None where it is the whole file."""
    message: str
    passing: bool = False
    """Whether it may yet pass: a line that is being written, a file that is being put in place."""

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
            problem = Problem(problem.file, problem.offset, f"More than {MOST_OF_ONE_FILE} places of it are damaged.")
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


def without_ending(file: str) -> str:
    """The name of a segment, the same before and after it is sealed."""
    return file.removesuffix(".zst").removesuffix(".jsonl")
