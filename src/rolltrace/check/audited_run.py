"""The run that is checked: its files, its records in one pass, and an index of them."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.check.record_index import RecordIndex, session_of_file
from rolltrace.query.run import Run, open_run
from rolltrace.store.cursor import Cursor, LineLocation, decode_lines
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES, RunInfo, strip_extension
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.read_errors import ReadError, ReadErrorKind, ReadErrors
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
    """When it was last modified, in seconds since 1970."""

    @property
    def path(self) -> str:
        """The path relative to the run's directory."""
        return f"{self.folder}/{self.name}"


class AuditedRun:
    """One run under check, for audits over the whole run. The records themselves are read only once.

    Ledgers are read first, then scores, then rollouts, so that in a run that is being written, nothing that was read
    refers to records that were written later.
    """

    def __init__(self, path: str | Path) -> None:
        self.reader = RunReader(path)
        self.path: Path = self.reader.path
        self.info: RunInfo = self.reader.info
        self.ledgers: dict[str, Ledger] = self.reader.ledgers()
        """The last ledger of each session."""
        self.records = RecordIndex()
        """The records that were read, as SQLite tables."""
        self.newer_records: Counter[str] = Counter()
        """By file, how many records are of a newer version of the format."""
        self.rollouts_by_session: Counter[str] = Counter()
        """How many rollouts were read from the files of each session."""
        self.scores_by_session: Counter[str] = Counter()
        self._errors = ReadErrors()
        for error in self.reader.read_errors:
            self._report(error)
        for _ in self._records(LEDGER, decode_ledger):  # only here is every line read, and its damage reported
            pass

    @cached_property
    def tables(self) -> Run:
        """The run's SQL tables, for audits that aggregate; they are made when first used."""
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
        """The read errors, without duplicates and without records of a newer version."""
        return self._errors.all()

    def rollouts(self) -> Iterator[tuple[LineLocation, Rollout]]:
        """Every rollout that can be read; each is added to `records`."""
        for location, rollout in self._records(ROLLOUTS, decode_rollout):
            self.rollouts_by_session[session_of_file(location.file)] += 1
            self.records.add_rollout(location, rollout)
            yield location, rollout

    def scores(self) -> Iterator[tuple[LineLocation, Score]]:
        """Every score that can be read, as it is stored; each is added to `records`."""
        for location, score in self._records(SCORES, decode_stored_score):
            self.scores_by_session[session_of_file(location.file)] += 1
            self.records.add_score(location, score)
            yield location, score

    @property
    def is_closed(self) -> bool:
        """Whether every session was closed."""
        closed = {ledger.session for ledger in self.ledgers.values() if ledger.closed}
        return closed >= self.ledgers.keys() | self.rollouts_by_session.keys() | self.scores_by_session.keys()

    def count_by_session(self, folder: str) -> Counter[str]:
        """The number of rollouts or scores in each session's files: distinct ids, and records of newer versions."""
        counts: Counter[str] = Counter()
        for row in self.records.rows(_DISTINCT.format(folder)):
            counts[row["file_session"]] += row["n"]
        for file, count in self.newer_records.items():
            if file.startswith(f"{folder}/"):
                counts[session_of_file(file)] += count
        return counts

    def recorded_by_forks(self) -> Counter[str]:
        """The number of rollouts of each session that are in the files of another, which was forked from it."""
        query = "select session, count(distinct id) as n from rollouts where session <> file_session group by session"
        return Counter({row["session"]: row["n"] for row in self.records.rows(query)})

    def entries(self, folder: str) -> list[FolderEntry] | None:
        """The files of a folder, by name; None if the folder cannot be listed."""
        try:
            paths = sorted((self.path / folder).iterdir())
        except OSError:
            return None
        return [_entry(folder, path) for path in paths]

    def close(self) -> None:
        """Close the tables and delete the index."""
        if "tables" in self.__dict__:
            self.tables.close()
        self.records.close()

    def _records(self, folder: str, decode: Callable[[bytes], AnyRecord]) -> Iterator[tuple[LineLocation, AnyRecord]]:
        """Every record of a folder that can be read; what cannot is reported."""
        return decode_lines(Cursor(self.path, folder, self._report).read(), decode, self._report)

    def _report(self, error: ReadError) -> None:
        if error.kind is ReadErrorKind.NEWER and error.offset is not None:
            self.newer_records[strip_extension(error.file)] += 1
        else:
            self._errors.report(error)


def _entry(folder: str, path: Path) -> FolderEntry:
    try:
        status = path.lstat()
    except OSError:  # deleted since it was listed
        return FolderEntry(folder, path.name, 0, 0.0)
    return FolderEntry(folder, path.name, status.st_size, status.st_mtime)
