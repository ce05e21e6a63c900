"""Reads the lines of a folder of segments, each once, and continues where it stopped."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from rolltrace.errors import ChecksumError, RecordError, RolltraceError
from rolltrace.store.layout import COMPRESSED_SUFFIX, PLAIN_SUFFIX, SegmentName
from rolltrace.store.read_errors import ReadError, ReadErrorKind, read_error_kind
from rolltrace.store.run_files import RunFiles
from rolltrace.store.segment_reader import (
    TORN,
    Line,
    SegmentEntry,
    SegmentListing,
    SegmentReader,
    list_segments,
    open_segment,
    split_lines,
)
from rolltrace.trace.codec import RecordVersion, check_checksum, has_checksum, version_error
from rolltrace.trace.field_types import FORMAT_VERSION
from rolltrace.trace.limits import MAX_DAMAGED_LINES

Record = TypeVar("Record")
Order = Callable[[list[str]], Iterable[str]]

_CURRENT = b'{"v":%d,' % FORMAT_VERSION
_TAIL_BYTES = 4 * 1024
"""How much is read at first of a file of which only the last lines are needed."""
_MAX_BACKWARD_LINES = 100
"""How many lines to keep of a file that must be read from the start to find its last lines."""


class LineLocation(NamedTuple):
    """The location of a line. It stays the same when the segment is compressed."""

    file: str
    """The folder and the file name without extension, for example `rollouts/SESSION-000000`."""
    offset: int
    """The offset of the first byte, in the uncompressed file."""
    length: int
    """The length in bytes, with the line feed."""


class Cursor:
    """A position in a folder of segments up to which everything was read.

    `covered` has, by file, how many bytes were read; `read` advances it. Lines that are damaged or of a newer version
    are skipped and reported, once. What may go away, such as a line that is being written or a file that cannot be read
    now, is reported by every `read` that meets it; `on_read` is called with each file and the offset up to which it was
    read, so that earlier reports can be removed. It skips files for which `reads` is false, and what is beyond the
    `limits`, by file, if there are any. Compressed segments do not grow: those whose file has the size in `finished`
    are not opened again. With `segments`, it reads these, and neither lists the folder nor looks for missing ones.
    """

    def __init__(
        self,
        files: RunFiles,
        folder: str,
        report: Callable[[ReadError], None],
        covered: Mapping[str, int] | None = None,
        on_read: Callable[[str, int], object] = lambda _file, _end: None,
        reads: Callable[[str], bool] = lambda _file: True,
        limits: Mapping[str, int] | None = None,
        finished: Mapping[str, int] | None = None,
        segments: Iterable[SegmentEntry] | None = None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._report = report
        self._on_read = on_read
        self.covered: dict[str, int] = dict(covered or {})
        self._reads = reads
        self._limits = limits
        self.finished: dict[str, int] = dict(finished or {})
        """By segment that was compressed and read to the end, the size of its file."""
        self._segments = segments
        self._reported: set[tuple[str, int | str, bool]] = set()

    def read(self, order: Order | None = None) -> Iterator[tuple[LineLocation, bytes]]:
        """Every new line that is complete and has a valid checksum, with its line feed.

        `order` sorts the names of segments. The caller may stop at any line, and continue with the next call.
        """
        for file, segment in self._open(order):
            yield from self._read_segment(segment, file)

    def read_backwards(self) -> Iterator[Iterator[tuple[LineLocation, bytes]]]:
        """The last valid lines of each file, the last first: those near its end, and then some from before.

        A caller that needs few of them reads little; one that needs many may get a line twice. Errors are reported.
        """
        for file, segment in self._open():
            yield self._read_segment_backwards(segment, file)

    def _open(self, order: Order | None = None) -> Iterator[tuple[str, SegmentReader]]:
        """Each segment that may have new lines, open for reading."""
        listing = self._list()
        if listing is None:
            return
        for name in listing.unexpected:
            message = f"Expected a printable name that ends in {PLAIN_SUFFIX} or {COMPRESSED_SUFFIX}."
            file = f"{self._folder}/{name}".encode(errors="backslashreplace").decode()
            self._report_once(ReadError(file, None, message, kind=ReadErrorKind.UNEXPECTED_FILE))
        for name in listing.segments if order is None else order(list(listing.segments)):
            file, entry = f"{self._folder}/{name}", listing.segments[name]
            size = (self.finished if entry.is_compressed else self.covered).get(file)
            is_beyond = self._limits is not None and self.covered.get(file, 0) >= self._limits.get(file, 0)
            if size == entry.size or is_beyond or not self._reads(file):
                continue
            if entry.is_compressed and size is not None:
                message = f"Expected a file of {size} bytes, got {entry.size}: it was truncated or replaced."
                self._report_once(ReadError(f"{file}{COMPRESSED_SUFFIX}", None, message))
            try:
                segment = open_segment(self._files, file)
            except (OSError, RecordError) as error:
                self._report_unreadable(error, f"{file}{PLAIN_SUFFIX}")
                continue
            self._on_read(file, 0)
            try:
                yield file, segment
            finally:
                segment.close()

    def _list(self) -> SegmentListing | None:
        """The segments of the folder. Missing ones are reported."""
        if self._segments is not None:
            return SegmentListing({entry.stem: entry for entry in self._segments}, [])
        try:
            listing = list_segments(self._files, self._folder)
            missing = self._missing(listing)
            if missing:  # it may have been compressed, and so renamed, while the folder was listed
                listing = list_segments(self._files, self._folder)
                missing = self._missing(listing)
        except OSError as error:
            self._report_once(
                ReadError(self._folder, None, _reason(error), is_transient=True, kind=read_error_kind(error))
            )
            return None
        self._on_read(self._folder, 1)
        for name in missing:
            message = "Expected this file, but it is missing."
            self._report_once(
                ReadError(
                    f"{self._folder}/{name}{PLAIN_SUFFIX}", None, message, is_transient=True, kind=ReadErrorKind.MISSING
                )
            )
        return listing

    def _missing(self, listing: SegmentListing) -> list[str]:
        """Names of segments that must exist: seen before, or followed by a later one of the same session."""
        expected = {file.removeprefix(f"{self._folder}/") for file, size in self.covered.items() if size}
        last: dict[str, int] = {}
        for entry in listing.segments.values():
            if entry.name is not None:
                session, number = entry.name
                first = last.get(session, -1) + 1
                # A hostile name could make a gap of a million: report only the end of it.
                expected.update(str(SegmentName(session, gap)) for gap in range(max(first, number - 100), number))
                last[session] = number
        return sorted(expected.difference(listing.segments))

    def _read_segment(self, segment: SegmentReader, file: str) -> Iterator[tuple[LineLocation, bytes]]:
        shown = segment.file
        start = self.covered.get(file, 0)
        limit = sys.maxsize if self._limits is None else self._limits.get(file, 0)
        torn = None
        is_whole = True
        try:
            if segment.is_compressed and start and segment.declared_size == start:  # it was read to the end
                self.finished[file] = segment.file_size
                return
            if not self._reaches(segment, start):
                return
            for line, data in self._validated(split_lines(segment.blocks(start)), segment, shown):
                if line.end > limit:
                    is_whole = False
                    break
                if line.error == TORN:
                    torn = line
                    break
                self.covered[file] = line.end
                if data:
                    yield LineLocation(file, line.offset, len(data)), data
        except OSError as error:  # transient: the rest is read the next time
            self._report_unreadable(error, shown, self.covered.get(file, 0))
            return
        if segment.is_compressed and is_whole:
            self.finished[file] = segment.file_size
        self._on_read(file, self.covered.get(file, 0) if torn is None else torn.end)
        if torn is not None:
            self._report_torn(torn, shown, segment)

    def _reaches(self, segment: SegmentReader, start: int) -> bool:
        """Whether a segment is at least so long; if it is not, or its seek table is damaged, that is reported."""
        if not segment.seek_table_matches:
            message = "Expected a valid seek table at its end; the frames were searched for instead."
            self._report_once(ReadError(segment.file, None, message))
        if segment.size < start:
            message = f"Expected at least {start} bytes: it was truncated or replaced."
            self._report_once(ReadError(segment.file, segment.size, message))
        return segment.size >= start

    def _read_segment_backwards(self, segment: SegmentReader, file: str) -> Iterator[tuple[LineLocation, bytes]]:
        try:
            start = max(segment.size - _TAIL_BYTES, 0)
            lines = list(split_lines(segment.blocks(start)))
            self._on_read(file, segment.size)
            if start:
                del lines[:1]  # it may have begun before
            for line, data in self._validated(reversed(lines), segment, segment.file):
                if line.error == TORN:
                    self._report_torn(line, segment.file, segment)
                elif data:
                    yield LineLocation(file, line.offset, line.end - line.offset), data
            is_whole = start == 0
        except (OSError, RecordError):  # damaged: find the lines before it from the start
            is_whole = False
        if not is_whole:
            yield from reversed(deque(self._read_segment(segment, file), _MAX_BACKWARD_LINES))

    def _validated(self, lines: Iterable[Line], segment: SegmentReader, shown: str) -> Iterator[tuple[Line, bytes]]:
        """Each line with its bytes, which are empty if it is torn or damaged. Ends early where damage prevails."""
        damage_left = MAX_DAMAGED_LINES
        for line in lines:
            data = line.data
            if not data.startswith(_CURRENT) or not has_checksum(data, len(data) - 1):  # it ends with a line feed
                data = b"" if line.error == TORN else self._read_or_report(line, segment, shown)
            yield line, data
            damage_left += 1 if data else -1
            if damage_left < 0:
                message = (
                    f"Expected at most {MAX_DAMAGED_LINES} more damaged lines than valid ones; the rest is not read."
                )
                self._report_once(ReadError(shown, None, message))
                yield Line(line.end, segment.size, b"", message), b""
                return

    def _read_or_report(self, line: Line, segment: SegmentReader, shown: str) -> bytes:
        """The bytes of a long line; empty, and reported, if a line is damaged."""
        kind, message = ReadErrorKind.UNREADABLE if line.is_unreadable else ReadErrorKind.DAMAGED, line.error
        data = line.data
        try:
            if not data and not message:
                data = segment.read(line.offset, line.end - line.offset)
        except ChecksumError as error:
            message = str(error)
        if not message:
            damage = line_error(data)
            if damage is None:
                return data
            kind, message = damage
        self._report(ReadError(shown, line.offset, message, kind=kind))
        return b""

    def _report_torn(self, line: Line, shown: str, segment: SegmentReader) -> None:
        message = f"Expected a whole line, got {line.end - line.offset} bytes without a line feed."
        self._report_once(
            ReadError(shown, line.offset, message, is_transient=not segment.is_compressed, kind=ReadErrorKind.TORN)
        )

    def _report_unreadable(self, error: Exception, shown: str, offset: int | None = None) -> None:
        """Report that a file, or the rest of it, cannot be read now."""
        kind = read_error_kind(error)
        if kind is ReadErrorKind.INVALID:  # not a regular file
            kind = ReadErrorKind.UNEXPECTED_FILE
        is_transient = kind in (ReadErrorKind.MISSING, ReadErrorKind.UNREADABLE)
        self._report_once(ReadError(shown, offset, _reason(error), is_transient=is_transient, kind=kind))

    def _report_once(self, error: ReadError) -> None:
        """Report an error once, although every read meets it, unless it may go away and come back."""
        if error.is_transient or error.place not in self._reported:
            self._reported.add(error.place)
            self._report(error)


def decode_lines(
    lines: Iterable[tuple[LineLocation, bytes]],
    decode: Callable[[bytes], Record],
    report: Callable[[ReadError], None],
) -> Iterator[tuple[LineLocation, Record]]:
    """Decode lines one by one. Those that cannot be decoded are reported and left out."""
    for location, line in lines:
        try:
            record = decode(line)
        except RecordError as error:
            report(record_read_error(location, error))
        else:
            yield location, record


def record_read_error(location: LineLocation, error: Exception) -> ReadError:
    """The read error for a line that cannot be decoded, or is no longer there."""
    message = str(error) if isinstance(error, RolltraceError) else f"Expected a record: {error}."
    return ReadError(f"{location.file}{PLAIN_SUFFIX}", location.offset, message, kind=read_error_kind(error))


def line_error(line: bytes) -> tuple[ReadErrorKind, str] | None:
    """The kind of the error in a line (checksum, version, JSON), and a message; None if the line is valid."""
    try:
        check_checksum(line)
    except RecordError as error:
        return ReadErrorKind.DAMAGED, str(error)
    try:
        if not line.startswith(_CURRENT):
            _check_version(line)
    except RecordError as error:
        return read_error_kind(error), str(error)
    return None


def _check_version(line: bytes) -> None:
    try:
        version = msgspec.json.decode(line, type=RecordVersion).v
    except (ValueError, RecursionError) as error:
        raise RecordError(f"Expected a record: {error}.") from error
    if version != FORMAT_VERSION:
        raise version_error("record", version)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
