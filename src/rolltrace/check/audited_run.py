"""The run that is checked: its files, its records in one pass, and what was noted of them."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from rolltrace.check.record_index import RecordIndex, session_of_file
from rolltrace.errors import RecordError
from rolltrace.query.run import Run, open_run
from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.layout import LEDGER, PLAIN_SUFFIX, ROLLOUTS, SCORES, RunInfo
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.read_errors import ReadError, ReadErrorKind, ReadErrors, read_error_kind, strip_extension
from rolltrace.store.reader import RunReader
from rolltrace.store.sessions import Sessions
from rolltrace.trace.codec import decode_rollout, decode_stored_score
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

AnyRecord = TypeVar("AnyRecord")

_DISTINCT = "select file_session, count(distinct id) as n from {} group by file_session"


class FolderEntry(msgspec.Struct, frozen=True):
    """A file of one of the run's folders."""

    folder: str
    name: str
    size: int
    modified_at: float
    """When it was last written to, in seconds since 1970."""

    @property
    def path(self) -> str:
        """From the run's directory on."""
        return f"{self.folder}/{self.name}"


class AuditedRun:
    """One run under check. Audits over the run find here what they need; the records themselves come only once.

    Ledgers are read first, then scores, then rollouts, so that in a run which is being written nothing speaks of
    what was not there yet when it was looked for.
    """

    def __init__(self, path: str | Path) -> None:
        self.reader = RunReader(path)
        self.path: Path = self.reader.path
        self.info: RunInfo = self.reader.info
        self.ledgers: dict[str, Ledger] = self.reader.ledgers()
        """The last ledger of each session."""
        self.records = RecordIndex()
        """Everything that was read, as SQLite tables."""
        self.newer_records: Counter[str] = Counter()
        """By file, how many records are of a newer version of the format."""
        self.rollouts_by_session: Counter[str] = Counter()
        """How many rollouts were read from the files of each session."""
        self.scores_by_session: Counter[str] = Counter()
        self._problems = ReadErrors()
        for problem in self.reader.read_errors:
            self._report(problem)
        for _ in self._records(LEDGER, decode_ledger):  # only here is every line read, and its damage reported
            pass

    @cached_property
    def tables(self) -> Run:
        """The run's SQL tables, for audits that count and compare much; they are made when first asked."""
        return open_run(self.path)

    @cached_property
    def sessions(self) -> Sessions:
        """Which session supersedes which. Use this only after all records were read."""
        rows = self.records.rows("select session, min(started_at), max(ended_at) from rollouts group by session")
        times = [
            (session, datetime.fromisoformat(first), datetime.fromisoformat(last)) for session, first, last in rows
        ]
        return Sessions(self.ledgers.values(), times)

    @property
    def problems(self) -> tuple[ReadError, ...]:
        """What could not be read, each once; not what is of a newer version."""
        return self._problems.all()

    def rollouts(self) -> Iterator[tuple[LineLocation, Rollout]]:
        """Every rollout that can be read; each is noted in the catalogue."""
        for place, rollout in self._records(ROLLOUTS, decode_rollout):
            self.rollouts_by_session[session_of_file(place.file)] += 1
            self.records.add_rollout(place, rollout)
            yield place, rollout

    def scores(self) -> Iterator[tuple[LineLocation, Score]]:
        """Every score that can be read, as it is stored; each is noted in the catalogue."""
        for place, score in self._records(SCORES, decode_stored_score):
            self.scores_by_session[session_of_file(place.file)] += 1
            self.records.add_score(place, score)
            yield place, score

    @property
    def is_closed(self) -> bool:
        """Whether every session that left a record has said that it ended."""
        ended = {ledger.session for ledger in self.ledgers.values() if ledger.closed}
        return ended >= self.ledgers.keys() | self.rollouts_by_session.keys() | self.scores_by_session.keys()

    def count_by_session(self, folder: str) -> Counter[str]:
        """How many rollouts or scores the files of each session hold, each id once; those of a newer version count."""
        counts: Counter[str] = Counter()
        for row in self.records.rows(_DISTINCT.format(folder)):
            counts[row["file_session"]] += row["n"]
        for file, count in self.newer_records.items():
            if file.startswith(f"{folder}/"):
                counts[session_of_file(file)] += count
        return counts

    def recorded_by_forks(self) -> Counter[str]:
        """How many rollouts of each session are in the files of another, which was forked from it meanwhile."""
        non_numeric = (
            "select session, count(distinct id) as n from rollouts where session <> file_session group by session"
        )
        return Counter({row["session"]: row["n"] for row in self.records.rows(non_numeric)})

    def entries(self, folder: str) -> list[FolderEntry] | None:
        """The files of a folder, by name; None where the folder cannot be listed."""
        try:
            paths = sorted((self.path / folder).iterdir())
        except OSError:
            return None
        return [_entry(folder, path) for path in paths]

    def close(self) -> None:
        """Give back what was opened."""
        if "tables" in self.__dict__:
            self.tables.close()
        self.records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _records(self, folder: str, decode: Callable[[bytes], AnyRecord]) -> Iterator[tuple[LineLocation, AnyRecord]]:
        """Every record of a folder that can be read; what cannot is reported."""
        for place, line in Cursor(self.path, folder, self._report).read():
            try:
                record = decode(line)
            except RecordError as error:
                self._report(
                    ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, str(error), kind=read_error_kind(error))
                )
            else:
                yield place, record

    def _report(self, problem: ReadError) -> None:
        if problem.kind is ReadErrorKind.NEWER and problem.offset is not None:
            self.newer_records[strip_extension(problem.file)] += 1
        else:
            self._problems.report(problem)


def _entry(folder: str, path: Path) -> FolderEntry:
    try:
        status = path.lstat()
    except OSError:  # gone since it was listed
        return FolderEntry(folder, path.name, 0, 0.0)
    return FolderEntry(folder, path.name, status.st_size, status.st_mtime)
