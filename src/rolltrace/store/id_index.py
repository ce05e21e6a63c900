"""Finds the line of a rollout, or those of its scores, by id: in the parts, then in the segments."""

import contextlib
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import msgspec

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.cursor import Cursor, LineLocation, record_read_error
from rolltrace.store.id_blocks import find_entries, find_in_part, hash_id, make_entry
from rolltrace.store.layout import ROLLOUTS, SegmentName
from rolltrace.store.parts import Part, covering_parts, find_parts, remove_parts
from rolltrace.store.read_errors import ReadErrors
from rolltrace.store.run_files import RunFiles
from rolltrace.store.segment_reader import SegmentReader, existing_segments, open_segment
from rolltrace.trace.field_types import FORMAT_VERSION

LINES_BEFORE_LOOK = 5000
"""After so many lines were scanned, it looks for new parts."""
_MAX_BYTES_IN_MEMORY = 64 << 20
"""The entries of two million lines; if more were scanned, the next lookup scans all of them again."""
_TRIES = 3
_MAX_NAME_CHARS = 200
_HEAD = b'{"v":%d,"id":"' % FORMAT_VERSION
_ID_WITH_TIME = re.compile(r"[0-9a-f]{32}")
"""An id that Rolltrace made: it begins with the time at which the rollout began."""


class _Ids(msgspec.Struct):
    id: str | None = None
    rollout: str | None = None


def record_id(line: bytes) -> str | None:
    """The id of a line; None if it has none."""
    if line.startswith(_HEAD):  # fast path: the line starts as Rolltrace writes it
        name, quote, _ = line[len(_HEAD) : len(_HEAD) + _MAX_NAME_CHARS].partition(b'"')
        if quote and name.isascii() and b"\\" not in name:
            return name.decode()
    return _decode_ids(line).id


def _decode_ids(line: bytes) -> _Ids:
    try:
        return msgspec.json.decode(line, type=_Ids)
    except (ValueError, RecursionError):
        return _Ids()


class IdIndex:
    """The lines of a folder of segments by the id of a rollout: the rollouts themselves, or their scores.

    Parts have an index of their lines. Lines that they do not cover are scanned when they are needed, and indexed in
    memory.
    """

    def __init__(self, files: RunFiles, run_id: str, folder: str, errors: ReadErrors) -> None:
        self._run_files = files
        self._run_id = run_id
        self._folder = folder
        self._id_of = record_id if folder == ROLLOUTS else lambda line: _decode_ids(line).rollout
        self._errors = errors
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._unusable: set[Path] = set()  # parts that were damaged, or could not be read
        self._reset()

    def find(self, rollout: str) -> LineLocation | None:
        """The location of a line of this rollout: the first of those that are indexed.

        What is not indexed is scanned up to the line, the likeliest segments first.
        """
        with self._guard():
            found = self._lookup(rollout) or self._scan_and_lookup([rollout], rollout)[rollout]
        return min(found, default=None)

    def find_all(self, rollouts: Sequence[str], *, scans: bool = True) -> dict[str, list[LineLocation]]:
        """The locations of all lines of each rollout; without `scans`, of lines that were scanned or are in parts."""
        with self._guard():
            if scans:
                found = self._scan_and_lookup(rollouts)
            else:
                self._use_newer_parts()
                found = {rollout: self._lookup(rollout) for rollout in rollouts}
                self._lines_before_look = 0  # the next lookup looks for newer parts first
        return {rollout: locations for rollout, locations in found.items() if locations}

    def scan_all(self, rollouts: Sequence[str]) -> dict[str, list[LineLocation]]:
        """The same without the index, for lines that are not where it says."""
        found: dict[str, list[LineLocation]] = {rollout: [] for rollout in rollouts}
        for location, line in Cursor(self._run_files, self._folder, self._errors.report).read():
            if (rollout := self._id_of(line)) in found:
                found[rollout].append(location)
        return found

    def contains(self, rollout: str) -> bool:
        """Whether the index has it now, without scanning."""
        with self._guard():
            return bool(self._lookup(rollout))

    def close(self) -> None:
        """Free the memory, and use the parts that there are the next time."""
        with self._guard():
            self._unusable.clear()
            self._reset()

    def _guard(self) -> threading.Lock:
        """The lock. A forked process gets a new one, because the holder of the old one may not exist in it."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._lock = threading.Lock()
            self._reset()
        return self._lock

    def _reset(self) -> None:
        """Drop the entries in memory, the parts and the position of the scan."""
        self._cursor: Cursor | None = None
        self._parts: list[Part] = []
        self._covered: dict[str, int] = {}  # by the parts
        self._recent = bytearray()  # entries of other lines
        self._names: dict[str, int] = {}  # numbers of files in these entries
        self._lines_before_look = LINES_BEFORE_LOOK

    def _scan_and_lookup(self, rollouts: Sequence[str], last: str | None = None) -> dict[str, list[LineLocation]]:
        """Scan, then look up; again if a part was damaged, because what it covered must be scanned, too."""
        found: dict[str, list[LineLocation]] = {}
        for _ in range(_TRIES):
            self._scan({*rollouts}, last)
            cursor = self._cursor
            found = {rollout: self._lookup(rollout) for rollout in rollouts}
            if self._cursor is cursor:
                break
        return found

    def _lookup(self, rollout: str) -> list[LineLocation]:
        """The locations of the lines of a rollout, as far as they were scanned, in order."""
        self._begin()
        key = hash_id(rollout)
        found = set(find_entries(self._recent, key, list(self._names)))
        for part in self._parts:
            first, last = part.info.stats.ids
            if self._folder == ROLLOUTS and not first <= rollout <= last:  # of scores, these are their own ids
                continue
            try:
                found.update(find_in_part(part, key))
            except (OSError, RecordError) as error:  # what it covers will be scanned
                self._unusable.add(part.path)
                if isinstance(error, ChecksumError):
                    remove_parts([part.path])
                self._reset()
        return sorted(found)

    def _begin(self) -> Cursor:
        """A cursor that starts where the parts end, unless there is one."""
        if self._cursor is None:
            self._parts, self._covered = self._find_parts()
            for error in (error for part in self._parts for error in part.info.errors):
                self._errors.report(error)
            report, clear = self._errors.report, self._errors.clear_transient
            self._cursor = Cursor(self._run_files, self._folder, report, self._covered, clear)
        return self._cursor

    def _find_parts(self) -> tuple[list[Part], dict[str, int]]:
        """The parts that fit together, and how far they reach."""
        parts = find_parts(self._run_files.path, self._run_id, self._folder)
        usable = [part for part in parts if part.path not in self._unusable]
        return covering_parts(usable, self._folder, existing_segments(self._run_files, self._folder))

    def _scan(self, wanted: set[str], last: str | None) -> None:
        """Index the lines that are new, or those up to the line of the rollout `last`; the wanted ones in any case."""
        if self._use_newer_parts() and last is not None and self._lookup(last):
            return
        order = None if last is None else partial(self._search_order, last)
        try:
            for location, line in self._begin().read(order):
                rollout = self._id_of(line)
                self._lines_before_look -= 1
                if rollout in wanted or (rollout is not None and len(self._recent) < _MAX_BYTES_IN_MEMORY):
                    file = self._names.setdefault(location.file, len(self._names))
                    self._recent += make_entry(hash_id(rollout), file, location.offset, location.length)
                elif rollout is None and self._folder == ROLLOUTS:
                    no_id = RecordError("Expected a rollout record with an id.")
                    self._errors.report(record_read_error(location, no_id))
                if last is not None and rollout == last:
                    break
        except BaseException:
            self._reset()
            raise

    def _use_newer_parts(self) -> bool:
        """After many lines were scanned, look for newer parts; returns whether they replace what is in memory."""
        if self._lines_before_look <= 0 and self._find_parts()[1] == self._covered:
            self._lines_before_look = LINES_BEFORE_LOOK
        if self._lines_before_look > 0 and len(self._recent) < _MAX_BYTES_IN_MEMORY:
            return False
        self._reset()
        return True

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

    def _open_segment(self, name: str) -> "contextlib.closing[SegmentReader]":
        return contextlib.closing(open_segment(self._run_files, f"{self._folder}/{name}"))
