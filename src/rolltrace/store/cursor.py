"""Reads the lines of a folder of segments, each once, as far as they are there; and goes on where it stopped."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolltrace.errors import RecordError
from rolltrace.store.files import Listing, SegmentFile, list_segments, open_segment
from rolltrace.store.lines import TORN, split_lines
from rolltrace.store.problems import Problem
from rolltrace.trace.codec import Version, newer_version, verify
from rolltrace.trace.rollout import FORMAT_VERSION

__all__ = ["Cursor", "Place", "Problem", "check_line"]

_CURRENT = b'{"v":%d,' % FORMAT_VERSION


class Place(NamedTuple):
    """Where a line is; the same before and after its segment is sealed."""

    file: str
    """The folder and the name without endings, such as `rollouts/SESSION-000000`."""
    offset: int
    """Of the line's first byte, in the uncompressed file."""
    length: int
    """With its line feed."""


class Cursor:
    """A place in a folder of segments up to which everything was read.

    `covered` says, by file, how many bytes need no reading any more; `read` moves it on. What is damaged, torn or
    of a newer version is skipped and reported, once. A line that is torn may be one that is being written: when it is
    there, `settle` is told up to which byte the file was read.
    """

    def __init__(
        self,
        run: Path,
        folder: str,
        report: Callable[[Problem], None],
        covered: Mapping[str, int] | None = None,
        settle: Callable[[str, int], None] | None = None,
    ) -> None:
        self._run = run
        self._folder = folder
        self._report = report
        self._settle = settle
        self.covered: dict[str, int] = dict(covered or {})
        self._finished: set[str] = set()  # sealed, and read to the end: there is no more to come
        self._told: set[tuple[str, int | None]] = set()

    def read(self) -> Iterator[tuple[Place, bytes]]:
        """Every sound line that is new: whole, with the right checksum. It ends with a line feed."""
        listing = self._list()
        if listing is None:
            return
        for name in listing.strange:
            self._tell(
                Problem(f"{self._folder}/{name}", None, "Expected a file whose name ends in .jsonl or .jsonl.zst.")
            )
        for name in listing.segments:
            file = f"{self._folder}/{name}"
            if file in self._finished:
                continue
            try:
                segment = open_segment(self._run / self._folder, name)
            except (OSError, RecordError) as error:
                self._tell(Problem(f"{file}.jsonl", None, _reason(error), passing=isinstance(error, FileNotFoundError)))
                continue
            try:
                yield from self._read_segment(segment, file)
            finally:
                segment.close()

    def _list(self) -> Listing | None:
        """The folder's segments; each that should be there and is not is reported."""
        try:
            listing = list_segments(self._run / self._folder)
            missing = self._missing(listing)
            if missing:  # it may have been sealed, and so renamed, while the folder was listed
                listing = list_segments(self._run / self._folder)
                missing = self._missing(listing)
        except OSError as error:
            self._tell(Problem(self._folder, None, _reason(error), passing=True))
            return None
        self._settled(self._folder, 1)
        for name in missing:
            self._tell(
                Problem(f"{self._folder}/{name}.jsonl", None, "Expected this file, it is missing.", passing=True)
            )
        return listing

    def _missing(self, listing: Listing) -> list[str]:
        """The names of segments that were there before, or that a later one of the same session follows."""
        there = set(listing.segments)
        expected = {file.removeprefix(f"{self._folder}/") for file, size in self.covered.items() if size}
        last: dict[str, int] = {}
        for name in listing.segments:
            session, _, number = name.rpartition("-")
            if session and number.isascii() and number.isdigit() and len(number) == 6:
                first = last.get(session, -1) + 1
                # A hostile name could leave a gap of a million: the end of it stands for all.
                expected.update(f"{session}-{gap:06d}" for gap in range(max(first, int(number) - 100), int(number)))
                last[session] = int(number)
        return sorted(expected - there)

    def _read_segment(self, segment: SegmentFile, file: str) -> Iterator[tuple[Place, bytes]]:
        shown = f"{self._folder}/{segment.path.name}"
        start = self.covered.get(file, 0)
        if not segment.table_is_sound:
            self._tell(
                Problem(shown, segment.size, "Expected the table of its frames here; they were looked for instead.")
            )
        if segment.size < start:
            self._tell(Problem(shown, segment.size, f"Expected at least {start} bytes: it was cut or replaced."))
            return
        torn = None
        for line in split_lines(segment.blocks(start)):
            if line.fault == TORN:
                torn = line
                break
            self.covered[file] = line.end
            wrong = line.fault or check_line(line.data)
            if wrong:
                self._report(Problem(shown, line.offset, wrong))
            else:
                yield Place(file, line.offset, line.end - line.offset), line.data
        if segment.is_sealed:
            self._finished.add(file)
        self._settled(file, self.covered.get(file, 0))
        if torn is not None:
            message = f"Expected a whole line, got {torn.end - torn.offset} bytes without an end."
            self._tell(Problem(shown, torn.offset, message, passing=not segment.is_sealed))

    def _tell(self, problem: Problem) -> None:
        """Report a problem that is met at every reading."""
        key = (problem.file.removesuffix(".zst"), problem.offset)
        if key not in self._told:
            self._told.add(key)
            self._report(problem)

    def _settled(self, file: str, end: int) -> None:
        if self._settle is not None:
            self._settle(file, end)


def check_line(line: bytes) -> str:
    """What is wrong with a line, empty if nothing: its bytes are those that were written, in a known version."""
    try:
        verify(line)
        if not line.startswith(_CURRENT):
            _check_version(line)
    except RecordError as error:
        return str(error)
    return ""


def _check_version(line: bytes) -> None:
    try:
        version = msgspec.json.decode(line, type=Version).v
    except (ValueError, RecursionError) as error:
        raise RecordError(f"Expected a record: {error}.") from error
    if version > FORMAT_VERSION:
        raise newer_version("record", version)
    if version < 1:
        raise RecordError(f"Expected format version 1 to {FORMAT_VERSION}, got {version} - at `$.v`.")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
