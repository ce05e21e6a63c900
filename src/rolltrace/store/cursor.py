"""Reads the lines of a folder of segments, each once, as far as they are there; and goes on where it stopped."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolltrace.errors import RecordError
from rolltrace.trace.codec import verify


class Place(NamedTuple):
    """Where a line is; the same before and after its segment is sealed."""

    file: str
    """The folder and the name without endings, such as `rollouts/SESSION-000000`."""
    offset: int
    """Of the line's first byte, in the uncompressed file."""
    length: int
    """With its line feed."""


class Problem(msgspec.Struct, frozen=True):
    """Something of a run that could not be read."""

    file: str
    """Which file, from the run's directory on."""
    offset: int | None
    """From which byte on, uncompressed; None where it is the whole file."""
    message: str

    def __str__(self) -> str:
        return f"{self.file}{'' if self.offset is None else f', byte {self.offset}'}: {self.message}"


class Cursor:
    """A place in a folder of segments up to which everything was read.

    `covered` says, by file, how many bytes need no reading any more; `read` moves it on. What is damaged, torn or
    of a newer version is skipped and reported, once.
    """

    def __init__(
        self, run: Path, folder: str, report: Callable[[Problem], None], covered: Mapping[str, int] | None = None
    ) -> None:
        self._run = run
        self._folder = folder
        self._report = report
        self.covered: dict[str, int] = dict(covered or {})

    def read(self) -> Iterator[tuple[Place, bytes]]:
        """Every sound line that is new: whole, with the right checksum. It ends with a line feed."""
        for path in sorted((self._run / self._folder).glob("*.jsonl")):
            file = f"{self._folder}/{path.name.removesuffix('.jsonl')}"
            with path.open("rb") as stream:
                offset = stream.seek(self.covered.get(file, 0))
                for line in stream:
                    if not line.endswith(b"\n"):
                        self._report(Problem(f"{self._folder}/{path.name}", offset, "torn"))
                        break
                    place = Place(file, offset, len(line))
                    offset += len(line)
                    self.covered[file] = offset
                    try:
                        verify(line)
                    except RecordError as error:
                        self._report(Problem(f"{self._folder}/{path.name}", place.offset, str(error)))
                    else:
                        yield place, line
