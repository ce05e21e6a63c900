"""Reads a run: whatever of it is whole, with a report of what is not."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TypeVar, overload

from rolltrace.errors import ChecksumError, RecordError, RolltraceError, StorageError, UnknownNameError
from rolltrace.store.blobs import read_blob
from rolltrace.store.cursor import Cursor, LineLocation, line_error
from rolltrace.store.id_index import IdIndex, record_id
from rolltrace.store.layout import BLOBS, LEDGER, PLAIN_SUFFIX, ROLLOUTS, SCORES, LedgerName, RunInfo
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.read_errors import ReadError, ReadErrors, read_error_kind
from rolltrace.store.run_info import read_info
from rolltrace.store.segment_reader import open_segment
from rolltrace.trace.codec import decode_rollout, decode_score
from rolltrace.trace.quote import TextSource, text_source
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

Record = TypeVar("Record")

_TRIES = 3


class StopEvent(Protocol):
    """What ends the following of a run, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to end."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is set, or after so many seconds."""


class RunReader:
    """A run's records as its lines have them, in a stable order: by file name, then line by line.

    This is the raw reader: a rollout that it gives knows nothing of late scores, so its `reward` is the line's. A run
    opened with `open_run` gives rollouts their scores.

    What is damaged, torn or of a newer version costs only itself: it is reported once in `problems`. Nothing here
    holds more than a few records at a time.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.info: RunInfo = read_info(self.path)
        """What `run.json` says."""
        self._problems = ReadErrors()
        self.id_index = IdIndex(self.path, self._problems)
        """Where each rollout is, and the scores about it."""

    @property
    def read_errors(self) -> tuple[ReadError, ...]:
        """What could not be read so far, each once."""
        return self._problems.all()

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout that can be read."""
        return self._records(self.cursor(ROLLOUTS), decode_rollout)

    def scores(self) -> Iterator[Score]:
        """Every score that can be read."""
        return self._records(self.cursor(SCORES), self.decode_score)

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session, for which only the ends of files are read: a long session writes very many.

        Damage further up is not met; `cursor("ledger")` gives every line.
        """
        latest: dict[str, tuple[int, Ledger]] = {}
        for lines in self.cursor(LEDGER).read_backwards():
            for place, ledger in self._decoded(lines, decode_ledger):
                named = LedgerName.parse(place.file.partition("/")[2])
                sequence = 0 if named is None else named.sequence
                if ledger.session not in latest or sequence >= latest[ledger.session][0]:
                    latest[ledger.session] = (sequence, ledger)
                break
        return {session: ledger for session, (_, ledger) in latest.items()}

    def blob(self, name: str) -> bytes:
        """The bytes of that name; the name must be a digest, and theirs."""
        return read_blob(self.path / BLOBS, name)

    def cursor(self, folder: str, covered: Mapping[str, int] | None = None) -> Cursor:
        """The lines of a folder, from what is covered on; what cannot be read is among this reader's problems."""
        return Cursor(self.path, folder, self._problems.report, covered, self._problems.clear_transient)

    def read_line(self, place: LineLocation) -> bytes:
        """The line at a place; bytes that are not those that were written there are refused."""
        folder, _, name = place.file.partition("/")
        try:
            segment = open_segment(self.path / folder, name)
            try:
                line = segment.read(place.offset, place.length)
            finally:
                segment.close()
        except FileNotFoundError as error:
            raise RecordError(f"Expected a line in {place.file}, got: {error.strerror or error}.") from error
        except OSError as error:
            raise StorageError(
                f"Cannot read {place.file} of {self.path}: {error.strerror or error}. What it holds may yet be there."
            ) from error
        except ChecksumError as error:
            raise ChecksumError(f"{_expected(place)} {error}") from error
        wrong = line_error(line) or ("" if len(line) == place.length else "The line ends too early.")
        if wrong:
            raise ChecksumError(f"{_expected(place)} {wrong}")
        return line

    def get(self, rollout: str) -> Rollout:
        """The rollout of this id; where several have it, the first.

        One whose line is damaged is a `RecordError` that says where; a disk that gives no answer, a `StorageError`.
        """
        for _ in range(_TRIES):
            place = self.id_index.find(rollout)
            if place is None:
                break
            try:
                line = self.read_line(place)
            except RecordError:
                if not self._is_in_segments(rollout):  # so the index is right, and the line is not
                    raise
            else:
                if record_id(line) == rollout:
                    return decode_rollout(line)
            # Files only grow: a place that is wrong means that the index is of other files. Look for it anew.
            self.id_index.invalidate(rollout)
        raise UnknownNameError(f"There is no rollout {rollout!r} in {self.path}{self._unreadable_hint()}.")

    def decode_score(self, line: bytes) -> Score:
        """The score of a line, with the text that its calls quote from rollouts of this run."""
        return decode_score(line, self._quoted)

    def _quoted(self, rollout: str) -> TextSource | str:
        try:
            return text_source(self.get(rollout), rollout)
        except UnknownNameError:
            return f"rollout {rollout} is not in this run"
        except (RolltraceError, OSError):
            return f"rollout {rollout} cannot be read"

    def _is_in_segments(self, rollout: str) -> bool:
        """Whether some line of the run is that rollout, whatever an index says."""
        return any(record_id(line) == rollout for _, line in self.cursor(ROLLOUTS).read())

    def _unreadable_hint(self) -> str:
        """What to add where something was not found: it may be in what cannot be read."""
        count = sum(problem.file.startswith(f"{ROLLOUTS}/") for problem in self.read_errors)
        return f" among what can be read; {count} of its places cannot, as `rolltrace check` tells" if count else ""

    def close(self) -> None:
        """Give back the files that are open; a reader that is asked again opens them again."""
        self.id_index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def follow(
        self, kind: Literal["rollouts"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Rollout]: ...
    @overload
    def follow(
        self, kind: Literal["scores"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Score]: ...
    @overload
    def follow(
        self, kind: Literal["ledger"], *, stop: StopEvent | None = ..., seconds: float = ...
    ) -> Iterator[Ledger]: ...
    def follow(
        self, kind: Literal["rollouts", "scores", "ledger"], *, stop: StopEvent | None = None, seconds: float = 0.5
    ) -> Iterator[Rollout] | Iterator[Score] | Iterator[Ledger]:
        """The records that are there, and then those that come, looking every so many seconds.

        It ends when `stop` is set, after all that was written before that.
        """
        stop = stop or threading.Event()
        if kind == ROLLOUTS:
            return self._follow(ROLLOUTS, decode_rollout, stop, seconds)
        if kind == SCORES:
            return self._follow(SCORES, self.decode_score, stop, seconds)
        return self._follow(LEDGER, decode_ledger, stop, seconds)

    def _follow(
        self, folder: str, decode: Callable[[bytes], Record], stop: StopEvent, seconds: float
    ) -> Iterator[Record]:
        cursor = self.cursor(folder)
        ending = False
        while not ending:
            ending = stop.is_set()
            yield from self._records(cursor, decode)
            if not ending:
                stop.wait(seconds)

    def _records(self, cursor: Cursor, decode: Callable[[bytes], Record]) -> Iterator[Record]:
        for _, record in self._decoded(cursor.read(), decode):
            yield record

    def _decoded(
        self, lines: Iterator[tuple[LineLocation, bytes]], decode: Callable[[bytes], Record]
    ) -> Iterator[tuple[LineLocation, Record]]:
        for place, line in lines:
            try:
                record = decode(line)
            except RecordError as error:
                message, kind = str(error), read_error_kind(error)
                self._problems.report(ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, message, kind=kind))
            else:
                yield place, record


def _expected(place: LineLocation) -> str:
    return f"Expected a line of {place.length} bytes at byte {place.offset} of {place.file}:"
