"""Reads rollouts, scores and the late scores of rollouts by the locations of their lines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Self, TypeVar

from rolltrace.errors import RecordError, StorageError
from rolltrace.query.score_order import in_score_order
from rolltrace.store.cursor import LineLocation, record_read_error
from rolltrace.store.reader import RunReader
from rolltrace.store.segment_reader import SegmentReader, open_segment
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

READ_AHEAD_BYTES = 4 << 20
"""How much is read at once if lines are requested in the order of the file."""
_NEAR_BYTES = 1 << 20
"""A location at most this far behind the last one counts as the next."""
_MAX_BATCH = 512

Item = TypeVar("Item")


class LineReader:
    """Reads lines at locations. It keeps the last segment open, and what it read ahead of the last line."""

    def __init__(self, reader: RunReader, read_ahead: int = READ_AHEAD_BYTES) -> None:
        self.reader = reader
        self._read_ahead = read_ahead
        self._segment: SegmentReader | None = None
        self._file = ""
        self._start = 0
        self._data = b""

    def rollout(self, rollout: str, location: LineLocation) -> Rollout:
        """The rollout with this id at this location; if its file was changed, it is looked up by id."""
        try:
            record = decode_rollout(self.line(location))
            if record.id == rollout:
                return record
        except (OSError, RecordError):
            pass
        return self.reader.get(rollout)

    def score(self, score: str, location: LineLocation) -> Score | None:
        """The score with this id at this location; None if its file was changed, which is reported if it is damaged.

        Raises `StorageError` if the system cannot read it.
        """
        try:
            try:
                line = self.line(location)
            except OSError:
                line = self.reader.read_line(location)  # raises the error with a clear message
            record = self.reader.decode_score(line)
        except RecordError as error:
            self.reader.errors.report(record_read_error(location, error))
            return None
        return record if record.id == score else None

    def line(self, location: LineLocation) -> bytes:
        """The bytes at a location, not yet verified; raises `OSError` or `RecordError` if they cannot be read."""
        segment = self._open(location.file)
        end = self._start + len(self._data)
        if not self._start <= location.offset <= location.offset + location.length <= end:
            is_next = self._start <= location.offset <= end + _NEAR_BYTES
            self._data = segment.read(location.offset, max(location.length, self._read_ahead if is_next else 0))
            self._start = location.offset
        first = location.offset - self._start
        return self._data[first : first + location.length]

    def close(self) -> None:
        """Close the file that is open."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self._file, self._data = None, "", b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, file: str) -> SegmentReader:
        if self._segment is None or file != self._file:
            self.close()
            self._segment, self._file, self._start = open_segment(self.reader.files, file), file, 0
        return self._segment


class LateScoreReader:
    """Reads the late scores of rollouts, some rollouts at a time, in the order that decides which score counts."""

    def __init__(self, reader: RunReader, read_ahead: int = READ_AHEAD_BYTES) -> None:
        self._reader = reader
        self._lines = LineReader(reader, read_ahead)

    def scores_of(self, rollouts: Sequence[str], *, scans: bool = True) -> Mapping[str, Sequence[Score]]:
        """By rollout, its scores that are written by now, the latest last; without `scans`, those in parts."""
        scores, stale = self._read(self._reader.score_index.find_all(rollouts, scans=scans))
        if stale:  # the index belongs to other files, or a line was damaged since
            scores, _ = self._read(self._reader.score_index.scan_all(rollouts))
        return {rollout: in_score_order(own) for rollout, own in scores.items()}

    def with_late_scores(self, rollout: Rollout, *, scans: bool = True) -> Rollout:
        """The rollout with its scores."""
        return with_scores(rollout, self.scores_of([rollout.id], scans=scans))

    def close(self) -> None:
        """Close the file that is open."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(
        self, locations: Mapping[str, Sequence[LineLocation]]
    ) -> tuple[dict[str, list[tuple[LineLocation, Score]]], set[str]]:
        """The scores at these locations, and the rollouts for which a location has another line or a damaged one."""
        scores: dict[str, list[tuple[LineLocation, Score]]] = {}
        stale: set[str] = set()
        for location, rollout in sorted((one, rollout) for rollout, own in locations.items() for one in own):
            try:
                score = self._reader.decode_score(self._lines.line(location))
            except FileNotFoundError:
                stale.add(rollout)
            except OSError as error:
                reason = error.strerror or error
                raise StorageError(
                    f"Cannot read {location.file}: {reason}. The data may still be intact; retry."
                ) from error
            except RecordError as error:
                self._reader.errors.report(record_read_error(location, error))
                stale.add(rollout)
            else:
                if score.rollout == rollout:
                    scores.setdefault(rollout, []).append((location, score))
                else:
                    stale.add(rollout)
        return scores, stale


def with_scores(rollout: Rollout, scores: Mapping[str, Sequence[Score]]) -> Rollout:
    """The rollout with those of these scores that are about it."""
    own = scores.get(rollout.id)
    return rollout.with_scores(own) if own else rollout


def growing_batches(items: Iterable[Item], max_size: int = _MAX_BATCH) -> Iterator[list[Item]]:
    """Batches of items, small ones first: the first item comes soon, and a million do not take long."""
    rest, size = iter(items), 8
    while batch := list(islice(rest, size)):
        yield batch
        size = min(2 * size, max_size)
