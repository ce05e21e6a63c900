"""Reads a run. Damaged parts are skipped and reported."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Self, TypeVar

from rolltrace.errors import ChecksumError, RecordError, RolltraceError, StorageError, UnknownNameError
from rolltrace.store.blobs import read_blob
from rolltrace.store.cursor import Cursor, LineLocation, decode_lines, line_error
from rolltrace.store.id_index import IdIndex, record_id
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES, LedgerName, RunInfo, read_info
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.object_files import files_of
from rolltrace.store.read_errors import ReadError, ReadErrors
from rolltrace.store.run_files import RunFiles
from rolltrace.store.segment_reader import open_segment
from rolltrace.trace.codec import decode_rollout, decode_score
from rolltrace.trace.quote import TextSource, text_source
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

Record = TypeVar("Record")


class RunReader:
    """The records of a run as they are stored, in a stable order: by file name, then line by line.

    Rollouts come without late scores, so their `reward` is that of the line. `open_run` opens a run whose rollouts have
    their scores.

    Lines that are damaged, torn or of a newer version are skipped, and reported once in `read_errors`. Only a few
    records are in memory at a time.
    """

    def __init__(self, run: str | Path | RunFiles) -> None:
        self.files = files_of(run)
        self.path = self.files.path
        self.info: RunInfo = read_info(self.files)
        """The contents of `run.json`."""
        self.errors = ReadErrors()
        """Collects what could not be read, also for others who read these files."""
        self.id_index = IdIndex(self.files, self.info.id, ROLLOUTS, self.errors)
        """Finds the lines of rollouts by id."""
        self.score_index = IdIndex(self.files, self.info.id, SCORES, self.errors)
        """Finds the lines of scores by the id of the rollout."""

    @property
    def read_errors(self) -> tuple[ReadError, ...]:
        """What could not be read so far, without duplicates."""
        return self.errors.all()

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout that can be read."""
        return self._records(self.cursor(ROLLOUTS), decode_rollout)

    def scores(self) -> Iterator[Score]:
        """Every score that can be read."""
        return self._records(self.cursor(SCORES), self.decode_score)

    def ledgers(self) -> dict[str, Ledger]:
        """The last ledger of each session. Only the ends of files are read, because a long session writes many ledgers.

        Damage before the last line is not reported; `cursor("ledger")` reads every line.
        """
        latest: dict[str, tuple[int, Ledger]] = {}
        for lines in self.cursor(LEDGER).read_backwards():
            for location, ledger in decode_lines(lines, decode_ledger, self.errors.report):
                name = LedgerName.parse(location.file.partition("/")[2])
                sequence = 0 if name is None else name.sequence
                if ledger.session not in latest or sequence >= latest[ledger.session][0]:
                    latest[ledger.session] = (sequence, ledger)
                break
        return {session: ledger for session, (_, ledger) in latest.items()}

    def blob(self, name: str) -> bytes:
        """The bytes of a blob. The name must be the digest of the bytes."""
        return read_blob(self.files, name)

    def cursor(
        self,
        folder: str,
        covered: Mapping[str, int] | None = None,
        reads: Callable[[str], bool] = lambda _file: True,
        limits: Mapping[str, int] | None = None,
        on_error: Callable[[ReadError], object] = lambda _error: None,
        finished: Mapping[str, int] | None = None,
    ) -> Cursor:
        """The lines of a folder that `covered` does not include. What cannot be read is added to the read errors."""

        def report(error: ReadError) -> None:
            on_error(error)
            self.errors.report(error)

        return Cursor(self.files, folder, report, covered, self.errors.clear_transient, reads, limits, finished)

    def read_line(self, location: LineLocation) -> bytes:
        """The line at a location; raises if its checksum is wrong."""
        try:
            with closing(open_segment(self.files, location.file)) as segment:
                line = segment.read(location.offset, location.length)
        except FileNotFoundError as error:
            raise RecordError(f"Expected a line in {location.file}, got: {error.strerror or error}.") from error
        except OSError as error:
            raise StorageError(
                f"Cannot read {location.file} of {self.path}: {error.strerror or error}. "
                "The data may still be intact; retry."
            ) from error
        except ChecksumError as error:
            raise ChecksumError(f"{_expected(location)} {error}") from error
        if (found := line_error(line)) is not None:
            raise ChecksumError(f"{_expected(location)} {found[1]}")
        if len(line) != location.length:
            raise ChecksumError(f"{_expected(location)} The line ends too early.")
        return line

    def get(self, rollout: str) -> Rollout:
        """The rollout with this id; if several lines have it, the first of those that are indexed.

        Raises `RecordError` if its line is damaged, and `StorageError` if the disk cannot be read.
        """
        location = self.id_index.find(rollout)
        damage: RecordError | None = None
        line = b""
        if location is not None:
            try:
                line = self.read_line(location)
            except RecordError as error:
                damage = error
            if record_id(line) != rollout:
                # The line is damaged, or the index belongs to other files. Another line may have the id.
                lines = (line for _, line in self.cursor(ROLLOUTS).read() if record_id(line) == rollout)
                line = next(lines, b"")
        if line:
            return decode_rollout(line)
        raise damage or self._not_found(rollout)

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

    def _not_found(self, rollout: str) -> RolltraceError:
        """The error for an id that no line has; it says so if the line may be in a place that cannot be read."""
        own = [error for error in self.read_errors if error.file.partition("/")[0] == ROLLOUTS]
        if unreadable := [error for error in own if error.is_retryable]:
            return StorageError(f"Cannot read {unreadable[0]}. The data may still be intact; retry.")
        hint = f", but {len(own)} of its places cannot be read: `rolltrace check` lists them" if own else ""
        return UnknownNameError(f"There is no rollout {rollout!r} in {self.path}{hint}.")

    def close(self) -> None:
        """Free the memory of the indexes."""
        self.id_index.close()
        self.score_index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self, cursor: Cursor, decode: Callable[[bytes], Record]) -> Iterator[Record]:
        for _, record in decode_lines(cursor.read(), decode, self.errors.report):
            yield record


def _expected(location: LineLocation) -> str:
    return f"Expected a line of {location.length} bytes at byte {location.offset} of {location.file}:"
