"""Reads a run. Damaged parts are skipped and reported."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from rolltrace.store.sessions import RolloutTime, Sessions
from rolltrace.trace.codec import decode_rollout, decode_score
from rolltrace.trace.quote import TextSource, text_source
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

Record = TypeVar("Record")

_TRIES = 3


class StopEvent(Protocol):
    """Ends the following of a run, for example a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is set, or after `timeout` seconds."""


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
        """The contents of `run.json`."""
        self._problems = ReadErrors()
        self.id_index = IdIndex(self.path, self._problems)
        """Finds the lines of rollouts and of their scores by id."""

    @property
    def read_errors(self) -> tuple[ReadError, ...]:
        """What could not be read so far, without duplicates."""
        return self._problems.all()

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout that can be read."""
        return self._records(self.cursor(ROLLOUTS), decode_rollout)

    def scores(self) -> Iterator[Score]:
        """Every score that can be read."""
        return self._records(self.cursor(SCORES), self.decode_score)

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session. Only the ends of files are read, because a long session writes many ledgers.

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

    def sessions(self, rollout_times: Iterable[RolloutTime] = ()) -> Sessions:
        """Which session supersedes which; `rollout_times` are those of sessions that may have no ledger."""
        return Sessions(self.ledgers().values(), rollout_times)

    def blob(self, name: str) -> bytes:
        """The bytes of a blob. The name must be the digest of the bytes."""
        return read_blob(self.path / BLOBS, name)

    def cursor(self, folder: str, covered: Mapping[str, int] | None = None) -> Cursor:
        """The lines of a folder that `covered` does not include. What cannot be read is added to the read errors."""
        return Cursor(self.path, folder, self._problems.report, covered, self._problems.clear_transient)

    def read_line(self, place: LineLocation) -> bytes:
        """The line at a location; raises if its checksum is wrong."""
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
        """The rollout with this id; the first, if several have it.

        One whose line is damaged is a `RecordError` that says where; a disk that gives no answer, a `StorageError`.
        """
        for _ in range(_TRIES):
            place = self.id_index.find(rollout)
            if place is None:
                break
            try:
                line = self.read_line(place)
            except RecordError:
                if not self._is_in_segments(rollout):  # then the index is right and the line is damaged
                    raise
            else:
                if record_id(line) == rollout:
                    return decode_rollout(line)
            # Files only grow, so a wrong location means that the index belongs to other files. Search again.
            self.id_index.invalidate(rollout)
        raise UnknownNameError(f"There is no rollout {rollout!r} in {self.path}{self._unreadable_hint()}.")

    def decode_score(self, line: bytes) -> Score:
        """The score of a line. Quotes in its calls are replaced by the text of the quoted rollouts."""
        return decode_score(line, self._quoted)

    def _quoted(self, rollout: str) -> TextSource | str:
        try:
            return text_source(self.get(rollout), rollout)
        except UnknownNameError:
            return f"rollout {rollout} is not in this run"
        except (RolltraceError, OSError):
            return f"rollout {rollout} cannot be read"

    def _is_in_segments(self, rollout: str) -> bool:
        """Whether a line of the run is that rollout, without use of the index."""
        return any(record_id(line) == rollout for _, line in self.cursor(ROLLOUTS).read())

    def _unreadable_hint(self) -> str:
        """A hint for "not found" errors: the record may be in a part that cannot be read."""
        count = sum(problem.file.startswith(f"{ROLLOUTS}/") for problem in self.read_errors)
        return f" among what can be read; {count} of its places cannot, as `rolltrace check` tells" if count else ""

    def close(self) -> None:
        """Close open files. They are opened again when needed."""
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
        """The existing records, then new ones as they arrive, polling every `seconds`.

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
