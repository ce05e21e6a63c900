"""Lines by their place, where the next place is often just behind the one before."""

from types import TracebackType
from typing import Self

from rolltrace.errors import RecordError
from rolltrace.store.cursor import LineLocation
from rolltrace.store.reader import RunReader
from rolltrace.store.segment_reader import SegmentReader, open_segment
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

READ_AHEAD_BYTES = 4 << 20
"""How much is read at once where lines are asked for in the order of the file."""
_NEAR = 1 << 20
"""A place that is not further on than this counts as the next."""


class LineReader:
    """Reads rollouts and scores at places; a sealed file is not opened and decompressed again for each of them."""

    def __init__(self, reader: RunReader, ahead: int = READ_AHEAD_BYTES) -> None:
        self.reader = reader
        self._ahead = ahead
        self._segment: SegmentReader | None = None
        self._file = ""
        self._start = 0
        self._data = b""

    def rollout(self, rollout: str, place: LineLocation) -> Rollout:
        """The rollout of this id, which is at this place unless its file was changed."""
        try:
            found = decode_rollout(self.line(place))
            if found.id == rollout:
                return found
        except (OSError, RecordError):
            pass
        return self.reader.get(rollout)

    def score(self, score: str, place: LineLocation) -> Score | None:
        """The score of this id, which is at this place; None where its file was changed."""
        try:
            found = self.reader.decode_score(self.line(place))
        except (OSError, RecordError):
            return None
        return found if found.id == score else None

    def close(self) -> None:
        """Give back the file."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self._file, self._data = None, "", b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def line(self, place: LineLocation) -> bytes:
        """The bytes at a place, not yet checked; raises `OSError` or `RecordError` if they cannot be read."""
        segment = self._open(place.file)
        end = self._start + len(self._data)
        if not self._start <= place.offset <= place.offset + place.length <= end:
            is_next = self._start <= place.offset <= end + _NEAR
            self._data = segment.read(place.offset, max(place.length, self._ahead if is_next else 0))
            self._start = place.offset
        first = place.offset - self._start
        return self._data[first : first + place.length]

    def _open(self, file: str) -> SegmentReader:
        if self._segment is None or file != self._file:
            self.close()
            folder, _, name = file.partition("/")
            self._segment, self._file, self._start = open_segment(self.reader.path / folder, name), file, 0
        return self._segment
