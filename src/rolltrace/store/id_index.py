"""Index by id: the locations of each rollout's line, or of its scores. Derived from the segments."""

import contextlib
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.cache_key import cache_folders
from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.id_index_file import (
    ByteRange,
    IdIndexFile,
    IndexHeader,
    find_entries,
    find_files,
    hash_file,
    hash_id,
    make_entry,
    merge_ranges,
    parse_entry,
    split_entries,
    write_index_file,
)
from rolltrace.store.layout import PLAIN_SUFFIX, ROLLOUTS, SegmentName, strip_extension
from rolltrace.store.read_errors import ReadError, ReadErrorKind, ReadErrors
from rolltrace.store.run_files import RunFiles
from rolltrace.store.segment_reader import SegmentReader, open_segment
from rolltrace.trace.field_types import FORMAT_VERSION

MAX_LINES_IN_MEMORY = 5000
MAX_BYTES_IN_MEMORY = 8 * 1024 * 1024
"""If more lines or bytes were scanned, their locations are written to an index file."""
_MAX_UNWRITTEN = 250_000
"""How many lines a long scan indexes before it writes a file."""
_MAX_MERGED = 500_000
"""Larger index files are not merged, which bounds the memory and the time that this takes."""
_TRIES = 3
_MAX_NAME_CHARS = 200
_HEAD = b'{"v":%d,"id":"' % FORMAT_VERSION
_ID_WITH_TIME = re.compile(r"[0-9a-f]{32}")
"""An id that Rolltrace made: it begins with the time at which the rollout began."""


class _IdOnly(msgspec.Struct):
    id: str


class _RolloutIdOnly(msgspec.Struct):
    rollout: str | None = None


def record_id(line: bytes) -> str | None:
    """The id of a line; None if it has none."""
    if line.startswith(_HEAD):  # fast path: the line starts as Rolltrace writes it
        name, quote, _ = line[len(_HEAD) : len(_HEAD) + _MAX_NAME_CHARS].partition(b'"')
        if quote and name.isascii() and b"\\" not in name:
            return name.decode()
    try:
        return msgspec.json.decode(line, type=_IdOnly).id
    except (ValueError, RecursionError):
        return None


def scored_rollout_id(line: bytes) -> str | None:
    """The id of the rollout that a score's line is about, or None."""
    try:
        return msgspec.json.decode(line, type=_RolloutIdOnly).rollout
    except (ValueError, RecursionError):
        return None


class IdIndex:
    """The lines of a folder of segments by the id of a rollout: the rollouts themselves, or their scores.

    Most of it is in immutable files in the cache, which any process may write, merge into larger ones or delete.
    Lines that they do not cover are scanned when they are needed, and indexed in memory, or in a new file if there are
    many.
    """

    def __init__(self, files: RunFiles, run_id: str, folder: str, errors: ReadErrors) -> None:
        self._run_files = files
        self._folder = folder
        self._errors = errors
        self._cache_folders = cache_folders(files.path, run_id)
        self._context = f"ids {folder} {run_id}"  # so that no file counts for another run
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._files: list[IdIndexFile] = []
        self._forget()

    def find(self, rollout: str) -> LineLocation | None:
        """The location of a line of this rollout: the first of those that are indexed.

        What is not indexed is scanned up to the line, the likeliest segments first.
        """
        with self._guard():
            return min(self._lookup(rollout) or self._scan_and_lookup([rollout], rollout)[rollout], default=None)

    def find_all(self, rollouts: Sequence[str]) -> dict[str, list[LineLocation]]:
        """The locations of all lines of each rollout, up to date."""
        with self._guard():
            found = self._scan_and_lookup(rollouts)
        return {rollout: locations for rollout, locations in found.items() if locations}

    def contains(self, rollout: str) -> bool:
        """Whether the index has it now, without scanning."""
        with self._guard():
            return bool(self._lookup(rollout))

    def invalidate(self, rollout: str) -> None:
        """Drop a wrong entry. The next lookup scans the segments."""
        with self._guard():
            for file in list(self._files):
                if self._find_in(file, hash_id(rollout)):
                    self._drop(file, deletes=True)
            self._reset_scan()

    def update(self) -> None:
        """Index all lines."""
        with self._guard():
            self._scan()

    def close(self) -> None:
        """Close open files. They are opened again when needed."""
        with self._guard():
            self._forget()

    def _guard(self) -> threading.Lock:
        """The lock. A forked process gets a new one, because the holder of the old one may not exist in it."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._forget()
        return self._lock

    def _forget(self) -> None:
        for file in self._files:
            file.close()
        self._files = []
        self._known: set[Path] = set()  # index files that were opened or rejected
        self._reset_scan()

    def _reset_scan(self) -> None:
        """Drop entries in memory and the position of the scan."""
        self._cursor: Cursor | None = None
        self._recent = bytearray()  # entries that are in no file
        self._recent_lines = self._recent_bytes = 0  # scanned since the last attempt to write a file
        self._recent_errors = ReadErrors()
        self._unreadable: dict[str, int] = {}  # by file, the offset from which the disk could not be read

    def _scan_and_lookup(self, rollouts: Sequence[str], wanted: str | None = None) -> dict[str, list[LineLocation]]:
        """Scan, then look up; again if an index file was damaged, because what it covered must be scanned, too."""
        found: dict[str, list[LineLocation]] = {}
        for _ in range(_TRIES):
            self._scan(wanted)
            cursor = self._cursor
            found = {rollout: self._lookup(rollout) for rollout in rollouts}
            if self._cursor is cursor:
                break
        return found

    def _lookup(self, rollout: str) -> list[LineLocation]:
        """The locations of the lines of a rollout, as far as they were scanned, in order."""
        self._begin()
        key = hash_id(rollout)
        entries = {entry for file in list(self._files) for entry in self._find_in(file, key)}
        entries.update(find_entries(self._recent, key))
        parsed = map(parse_entry, entries)
        return sorted(LineLocation(self._names[file], *rest) for file, *rest in parsed if file in self._names)

    def _find_in(self, file: IdIndexFile, key: bytes) -> list[bytes]:
        """Entries of a file. A file that cannot be read is dropped, so that what it covers is scanned."""
        try:
            return file.find(key)
        except (OSError, ChecksumError) as error:
            self._drop(file, deletes=isinstance(error, ChecksumError))
            self._reset_scan()
            return []

    def _begin(self) -> Cursor:
        """Open new index files, and return a cursor that starts where they end, unless there is one."""
        if self._cursor is None:
            self._open_files()
            ranges = merge_ranges(one for file in self._files for one in file.header.ranges)
            ranges = [one for one in ranges if one.file.count("/") == 1 and one.file.startswith(f"{self._folder}/")]
            self._names = {hash_file(one.file): one.file for one in ranges}
            self._written = {one.file: one.last for one in ranges if one.first == 0}
            clear = self._errors.clear_transient
            self._cursor = Cursor(self._run_files, self._folder, self._report, self._written, clear)
        return self._cursor

    def _open_files(self) -> None:
        for _ in range(_TRIES):  # a missing file was merged into one that was not listed yet
            listed = [path for folder in self._cache_folders for path in find_files(folder, self._folder)]
            if all(list(map(self._open_file, [path for path in listed if path not in self._known]))):
                return

    def _open_file(self, path: Path) -> bool:
        self._known.add(path)
        try:
            file = IdIndexFile(path, self._context)
        except ChecksumError:  # damaged, or signed with another key
            _delete(path)
        except (OSError, RecordError):
            return False
        else:
            self._files.append(file)
            for error in file.header.errors:
                self._errors.report(error)
        return True

    def _drop(self, file: IdIndexFile, *, deletes: bool) -> None:
        self._files.remove(file)
        file.close()
        if deletes:
            _delete(file.path)

    def _scan(self, wanted: str | None = None) -> None:
        """Index the lines that are new, or those up to the line of the wanted rollout."""
        try:
            id_of = record_id if self._folder == ROLLOUTS else scored_rollout_id
            order = None if wanted is None else partial(self._search_order, wanted)
            for location, line in self._begin().read(order):
                rollout = id_of(line)
                self._recent_lines += 1
                self._recent_bytes += location.length
                if rollout is not None:
                    self._recent += make_entry(rollout, location)
                    self._names[hash_file(location.file)] = location.file
                elif self._folder == ROLLOUTS:
                    self._report_without_id(location)
                if wanted is not None and rollout == wanted:
                    break
                if self._recent_lines >= _MAX_UNWRITTEN:
                    self._write()
            if self._recent_lines >= MAX_LINES_IN_MEMORY or self._recent_bytes >= MAX_BYTES_IN_MEMORY:
                self._write()
        except BaseException:
            self._reset_scan()
            raise

    def _search_order(self, rollout: str, names: list[str]) -> Iterator[str]:
        """The segments in the order in which to scan them for a rollout: first those that seem to have it, then all.

        A rollout is written when it ends, so it is in the segment of its session that was open at the time in its id,
        or near it. These are searched as bytes, which takes a third of the time. A rollout whose id has no time is
        searched for in the newest segment first.
        """
        covered = self._begin().covered
        newest_first = names[::-1]
        if _ID_WITH_TIME.fullmatch(rollout):
            distances: dict[str, int] = {}
            for _, session in groupby(names, key=lambda name: (SegmentName.parse(name) or (name,))[0]):
                own = list(session)
                open_then = bisect_right(own, rollout, key=self._first_id) - 1
                distances |= {name: abs(number - open_then) for number, name in enumerate(own)}
            newest_first.sort(key=distances.__getitem__)
            for name in newest_first:
                first = covered.get(f"{self._folder}/{name}", 0)
                if distances[name] <= 1 and self._has_bytes(name, first, _HEAD + rollout.encode()):
                    yield name
        yield from newest_first

    def _first_id(self, name: str) -> str:
        """The id of the first line of a segment, not verified; empty if it cannot be read."""
        with contextlib.suppress(OSError, RecordError), self._open_segment(name) as segment:
            return record_id(segment.first_bytes(len(_HEAD) + _MAX_NAME_CHARS)) or ""
        return ""

    def _has_bytes(self, name: str, first: int, data: bytes) -> bool:
        """Whether a segment has these bytes from the offset `first` on; those at the end of a block may be missed."""
        with contextlib.suppress(OSError, RecordError), self._open_segment(name) as segment:
            return any(data in block.data for block in segment.blocks(first))
        return False

    def _open_segment(self, name: str) -> "closing[SegmentReader]":
        return closing(open_segment(self._run_files, f"{self._folder}/{name}"))

    def _report_without_id(self, location: LineLocation) -> None:
        message = "Expected a rollout record with an id."
        self._report(ReadError(f"{location.file}{PLAIN_SUFFIX}", location.offset, message, kind=ReadErrorKind.INVALID))

    def _report(self, error: ReadError) -> None:
        self._errors.report(error)
        if error.kind is ReadErrorKind.UNREADABLE and error.offset is not None:
            self._unreadable.setdefault(strip_extension(error.file), error.offset)
        elif not error.is_transient and error.offset is not None:
            self._recent_errors.report(error)

    def _write(self) -> None:
        """Move the entries in memory to a new file, or keep them if no folder can be written to."""
        self._recent_lines = self._recent_bytes = 0
        # What could not be read is not covered, nor is what follows it. The next reader retries.
        read = self._begin().covered
        covered = {file: min(end, self._unreadable.get(file, end)) for file, end in read.items()}
        new = {file: end for file, end in covered.items() if read[file] > self._written.get(file, 0)}
        ranges = [ByteRange(file, min(self._written.get(file, 0), end), end) for file, end in new.items()]
        header = IndexHeader(ranges, list(self._recent_errors.all()))
        entries, smaller = self._merge_smaller(header)
        for folder in self._cache_folders:
            with contextlib.suppress(OSError, UnicodeEncodeError):  # the latter for a segment's name that is not text
                file = write_index_file(folder, self._folder, self._context, header, entries)
                break
        else:
            return
        self._known.add(file.path)
        for merged in smaller:
            self._drop(merged, deletes=True)
        self._files.append(file)
        self._written, self._recent, self._recent_errors = covered, bytearray(), ReadErrors()

    def _merge_smaller(self, header: IndexHeader) -> tuple[list[bytes], list[IdIndexFile]]:
        """The sorted entries in memory and in smaller files, so that files grow by doubling, and these files."""
        entries, smaller = split_entries(self._recent), []
        for file in sorted(self._files, key=lambda file: file.count):
            if file.count > min(2 * len(entries), _MAX_MERGED - len(entries)):
                break
            with contextlib.suppress(OSError, ChecksumError):  # the next lookup drops it
                entries += file.entries()
                smaller.append(file)
                header.ranges += file.header.ranges
                header.errors += file.header.errors
        header.ranges = merge_ranges(header.ranges)
        entries.sort()
        return [entry for entry, _ in groupby(entries)], smaller


def _delete(path: Path) -> None:
    """Delete an index file of this user's."""
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.getuid():
            path.unlink()
