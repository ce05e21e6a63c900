"""The run that is checked: its files, its records in one pass, and its tables."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from rolltrace.check.audit import Finding
from rolltrace.query.address import address
from rolltrace.query.run import Run
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.cursor import Cursor, LineLocation, decode_lines
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES, RunInfo, SegmentName, strip_extension
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.read_errors import ReadError, ReadErrorKind, ReadErrors
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import FileEntry
from rolltrace.trace.codec import decode_rollout, decode_stored_score
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score

AnyRecord = TypeVar("AnyRecord")
Row = dict[str, Any]

_LINES = """
    with rollouts as not materialized (select *, _file as file, _offset as offset from _everything {0}),
    scores as not materialized (select *, _file as file, _offset as offset from _score_places {0})
    {1}
"""
_MAX_INVALID = 1_000
"""How many lines with a right checksum that are not records are left out of the tables at most."""
_MAX_QUOTES = 10_000
"""How many quoted rollouts are looked up at once."""


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
        self.blobs: dict[str, str] = {}
        """By name of a blob, the first rollout that refers to it."""
        self.newer_records: Counter[str] = Counter()
        """By file, how many records are of a newer version of the format."""
        self.rollouts_by_session: Counter[str] = Counter()
        """How many rollouts were read from the files of each session."""
        self.scores_by_session: Counter[str] = Counter()
        self.recorded_by_forks: Counter[str] = Counter()
        """How many rollouts of each session are in the files of another, which was forked from it."""
        self.sessions: set[str] = set()
        """The sessions of the rollouts that were read."""
        self.has_retries = False
        """Whether a rollout that was read is another attempt than 0."""
        self.runs: set[str] = set()
        """The ids of runs that the records have which were read."""
        self._errors = ReadErrors()
        self._quotes: dict[str, list[Finding]] = {}
        self._looked_up = 0
        for error in self.reader.read_errors:
            self._report(error)
        for _ in self._records(LEDGER, decode_ledger):  # only here is every line read, and its damage reported
            pass

    @cached_property
    def tables(self) -> Run:
        """The run's SQL tables, for audits that compare records; they are made when first used, and do not change."""
        run = Run([self.reader])
        run.hold()
        return run

    @cached_property
    def has_repeated_lines(self) -> bool:
        """Whether there is a table `_repeated` of lines that repeat the id of an earlier one, which alone counts."""
        return any(problem.kind is ReadErrorKind.REPEATED for problem in self.tables.problems)

    def rows(self, sql: str) -> Iterator[Row]:
        """The rows of a statement over `rollouts` and `scores`. Use this only after all records were read.

        Besides the columns of these tables, both have `file` and `offset`, and `rollouts` has superseded rows, too.
        """
        invalid = [error for error in self.problems if error.kind is ReadErrorKind.INVALID and error.offset is not None]
        shown = invalid[:_MAX_INVALID]
        places = ", ".join(f"({sql_literal(strip_extension(error.file))}, {error.offset})" for error in shown)
        condition = f"where (_file, _offset) not in ({places})" if places else ""
        return self.tables.select(_LINES.format(condition, sql), frozenset({ROLLOUTS, SCORES})).dicts()

    @property
    def problems(self) -> tuple[ReadError, ...]:
        """The read errors, without duplicates and without records of a newer version."""
        return self._errors.all()

    def rollouts(self) -> Iterator[tuple[LineLocation, Rollout]]:
        """Every rollout that can be read."""
        for location, rollout in self._records(ROLLOUTS, decode_rollout):
            session = session_of_file(location.file)
            self.rollouts_by_session[session] += 1
            self.recorded_by_forks[rollout.session] += rollout.session != session
            self.sessions.add(rollout.session)
            self.runs.add(rollout.run)
            self.has_retries |= rollout.attempt != 0
            for name in _blob_names(rollout):
                self.blobs.setdefault(name, rollout.id)
            yield location, rollout

    def rows_about_scores(self, sql: str) -> Iterable[Row]:
        """The rows of a statement that has none if there are no scores, which is then not run."""
        return self.rows(sql) if self.scores_by_session.total() else ()

    def scores(self) -> Iterator[tuple[LineLocation, Score]]:
        """Every score that can be read, as it is stored."""
        for location, score in self._records(SCORES, decode_stored_score):
            self.scores_by_session[session_of_file(location.file)] += 1
            self.runs.add(score.run)
            for rollout in {quote.rollout for call in score.calls for quote in call.quotes} - {None}:
                message = f"calls of a score named {score.name} quote rollout {rollout}, which is missing"
                finding = with_location(Finding(message, data={"quoted": rollout}), score, location)
                self._quotes.setdefault(str(rollout), []).append(finding)
            if len(self._quotes) - self._looked_up > _MAX_QUOTES:
                self.unknown_quotes()
            yield location, score

    def unknown_quotes(self) -> Iterable[Finding]:
        """Findings about the scores that were read by now whose calls quote a rollout that is missing."""
        for rollout in self.reader.id_index.find_all(list(self._quotes)) if self._quotes else ():
            del self._quotes[rollout]
        self._looked_up = len(self._quotes)
        return chain.from_iterable(self._quotes.values())

    @property
    def is_closed(self) -> bool:
        """Whether every session was closed."""
        closed = {ledger.session for ledger in self.ledgers.values() if ledger.closed}
        return closed >= self.ledgers.keys() | self.rollouts_by_session.keys() | self.scores_by_session.keys()

    def count_by_session(self, folder: str) -> Counter[str]:
        """The number of rollouts or scores in each session's files: distinct ids, and records of newer versions."""
        counts = Counter(self.rollouts_by_session if folder == ROLLOUTS else self.scores_by_session)
        if self.has_repeated_lines:
            repeats = "regexp_extract(_file, '/(.+)-[0-9]+$', 1) as session, count(*) - count(distinct id) as repeats"
            lines = f"from {folder} select id, _file union all from _repeated select id, _file"
            of_folder = f"select {repeats} from ({lines}) where starts_with(_file, '{folder}/') group by session"
            for row in self.rows(of_folder):
                counts[row["session"]] -= row["repeats"]
        for file, count in self.newer_records.items():
            if file.startswith(f"{folder}/"):
                counts[session_of_file(file)] += count
        return counts

    def entries(self, folder: str) -> list[FileEntry]:
        """The files of a folder, by name; empty if it cannot be listed."""
        return self.reader.files.existing(folder)

    def close(self) -> None:
        """Close the tables and the files."""
        if "tables" in self.__dict__:
            self.tables.close()
        self.reader.close()

    def _records(self, folder: str, decode: Callable[[bytes], AnyRecord]) -> Iterator[tuple[LineLocation, AnyRecord]]:
        """Every record of a folder that can be read; what cannot is reported."""
        return decode_lines(Cursor(self.reader.files, folder, self._report).read(), decode, self._report)

    def _report(self, error: ReadError) -> None:
        if error.kind is ReadErrorKind.NEWER and error.offset is not None:
            self.newer_records[strip_extension(error.file)] += 1
        else:
            self._errors.report(error)


def session_of_file(file: str) -> str:
    """The session that wrote a file, from its name without a suffix."""
    segment = SegmentName.parse(file.rpartition("/")[2])
    return "" if segment is None else segment.session


def group_address_of(row: Row) -> str:
    """The address of the row's group."""
    return GroupKey(*(row[name] for name in GroupKey.__struct_fields__)).address


def rollout_finding(row: Row, message: str, **data: Any) -> Finding:
    """A finding about the rollout of a row of `rollouts`."""
    where = row["id"] if row["index"] is None else f"{group_address_of(row)}/{row['index']}"
    return _located(row, message, (row["id"],), where, data)


def score_finding(row: Row, message: str, **data: Any) -> Finding:
    """A finding about the score of a row of `scores`."""
    where = None if row["group"] is None else group_address_of(row)
    data = {"score": row["id"], "name": row["name"], **data}
    rollouts = () if row["rollout"] is None else (row["rollout"],)
    return replace(_located(row, message, rollouts, where, data), subject=_score_subject(rollouts, row["name"]))


def _score_subject(rollouts: tuple[str, ...], name: str) -> str:
    """What tells findings about scores apart: several scores may be about one rollout."""
    return "/".join((*rollouts, name))


def _located(row: Row, message: str, rollouts: tuple[str, ...], where: str | None, data: dict[str, Any]) -> Finding:
    session, file, offset = row["session"], row["file"], row["offset"]
    return Finding(message, rollouts, where, session=session, file=file, offset=offset, data=data)


def with_location(finding: Finding, target: object, location: LineLocation | None) -> Finding:
    """The finding with the record that it is about, and the location of its line, if that is known."""
    if isinstance(target, Rollout):
        about: dict[str, Any] = {"rollouts": (target.id,), "address": address(target)}
    elif isinstance(target, Score):
        rollouts = () if target.rollout is None else (target.rollout,)
        group = None if target.group is None else target.group.address
        about = {"rollouts": rollouts, "address": group, "subject": _score_subject(rollouts, target.name)}
        finding = replace(finding, data={"score": target.id, "name": target.name, **finding.data})
    else:
        return finding
    missing = {name: value for name, value in about.items() if not getattr(finding, name)}
    line = {} if location is None else {"file": location.file, "offset": location.offset}
    return replace(finding, **missing, session=target.session, **line)


def _blob_names(rollout: Rollout) -> set[str]:
    responses = [step.response for step in rollout.steps if isinstance(step.response, Message)]
    in_calls = [message for call in rollout.calls for message in (*call.prompt, call.reply) if message is not None]
    messages = (*rollout.messages, *responses, *in_calls)
    return {part.blob.name for message in messages for part in message.parts if part.blob is not None}
