"""What was seen of a run, one small row per record, for audits that compare records with each other."""

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rolltrace.check.audit import Finding
from rolltrace.errors import StorageError
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import SegmentName
from rolltrace.temp_folders import explain_full_disk
from rolltrace.trace.json_numbers import INT64_LIMIT, as_float, json_number
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score

_TABLES = """
create table rollouts (id, run, session, split, iteration, env, "group", "index", attempt, status, line_reward,
                       reward_so_far, started_at, ended_at, file, offset, file_session);
create table scores (id, run, session, rollout, split, iteration, env, "group", name, value, reward_so_far,
                     file, offset, file_session);
create table blobs (name primary key, rollout) without rowid;
create table quotes (score, rollout, primary key (score, rollout)) without rowid;
"""
_INDEXES = """
create index rollouts_by_id on rollouts (id);
create index scores_by_rollout on scores (rollout);
create index rollouts_by_group on rollouts (split, iteration, env, "group", "index");
"""
_BATCH = 2_000

"""The columns that say which group."""


class RecordIndex:
    """Tables `rollouts`, `scores`, `blobs` and `quotes`, in a file of SQLite's own that goes when this does.

    Columns that the tables of `rolltrace query` have are called as there. Memory stays flat on a run of any size.
    What SQLite has no number for is text: NaN, integers of more than 64 bits, and times.
    """

    def __init__(self) -> None:
        self.failure: StorageError | None = None
        """Set where the tables could not be written: what audits then find is not to be believed."""
        self._database = sqlite3.connect("", isolation_level=None)  # no name: on disk once it outgrows its cache
        self._database.executescript(_TABLES)
        self._database.row_factory = sqlite3.Row
        self._rollouts: list[tuple[Any, ...]] = []
        self._scores: list[tuple[Any, ...]] = []
        self._blobs: list[tuple[Any, ...]] = []
        self._quotes: list[tuple[Any, ...]] = []

    def add_rollout(self, place: LineLocation, rollout: Rollout) -> None:
        """Note a rollout."""
        self._rollouts.append(
            (
                rollout.id, rollout.run, rollout.session, rollout.split, _storable(rollout.iteration), rollout.env,
                rollout.group, _storable(rollout.index), _storable(rollout.attempt), rollout.status.value,
                _storable(rollout.line_reward), _storable(rollout.reward_so_far), timestamp(rollout.started_at),
                timestamp(rollout.ended_at), place.file, place.offset, session_of_file(place.file),
            )
        )  # fmt: skip
        self._blobs.extend((name, rollout.id) for name in _blob_names(rollout))
        if len(self._rollouts) >= _BATCH:
            self._write()

    def add_score(self, place: LineLocation, score: Score) -> None:
        """Note a score."""
        key = score.group
        so_far = score.data.get("reward_so_far") if "group_grade" in score.data else None
        self._scores.append(
            (
                score.id, score.run, score.session, score.rollout,
                None if key is None else key.split, None if key is None else _storable(key.iteration),
                None if key is None else key.env, None if key is None else key.group,
                score.name, _storable(score.value), _storable(as_float(so_far)),
                place.file, place.offset, session_of_file(place.file),
            )
        )  # fmt: skip
        quoted = {quote.rollout for call in score.calls for quote in call.quotes if quote.rollout is not None}
        self._quotes.extend((score.id, rollout) for rollout in quoted)
        if len(self._scores) >= _BATCH:
            self._write()

    def finish(self) -> None:
        """Write what is left and make it quick to ask."""
        self._write()
        with self._told():
            self._database.executescript(_INDEXES)

    def rows(self, sql: str, *values: Any) -> Iterator[sqlite3.Row]:
        """The rows of a query, one after the other."""
        with self._told():
            yield from self._database.execute(sql, values)

    def close(self) -> None:
        """Give back the file."""
        self._database.close()

    def _write(self) -> None:
        tables = {
            "rollouts": self._rollouts, "scores": self._scores, "blobs": self._blobs, "quotes": self._quotes,
        }  # fmt: skip
        with self._told():
            self._database.execute("begin")
            for table, rows in tables.items():
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    insert = f"insert or ignore into {table} values ({places})"  # noqa: S608 - our own names
                    self._database.executemany(insert, rows)
                    rows.clear()
            self._database.execute("commit")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            with explain_full_disk():
                yield
        except StorageError as error:
            self.failure = error
            raise


def timestamp(time: datetime) -> str:
    """A time as text that sorts as times do, in UTC."""
    try:
        time = time.astimezone(UTC)
    except OverflowError:  # an hour before the first year, or after the last
        time = time.replace(tzinfo=UTC)
    return time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def session_of_file(file: str) -> str:
    """The session whose file this is, from its name without endings."""
    segment = SegmentName.parse(file.rpartition("/")[2])
    return "" if segment is None else segment.session


def group_address_of(row: sqlite3.Row) -> str:
    """The address of the row's group."""
    return GroupKey(row["split"], row["iteration"], row["env"], row["group"]).address


def rollout_finding(row: sqlite3.Row, message: str, **data: Any) -> Finding:
    """A finding about the rollout of a row of `rollouts`."""
    address = row["id"] if row["index"] is None else f"{group_address_of(row)}/{row['index']}"
    return Finding(
        message, rollout=row["id"], address=address, session=row["session"],
        file=row["file"], offset=row["offset"], data=data,
    )  # fmt: skip


def score_finding(row: sqlite3.Row, message: str, **data: Any) -> Finding:
    """A finding about the score of a row of `scores`."""
    address = None if row["group"] is None else group_address_of(row)
    return Finding(
        message, rollout=row["rollout"], address=address, session=row["session"], file=row["file"],
        offset=row["offset"], data={"score": row["id"], "name": row["name"], **data},
    )  # fmt: skip


def _storable(value: Any) -> Any:
    """A number as SQLite holds it; what it has none for is text."""
    if type(value) is int:
        return value if -INT64_LIMIT <= value < INT64_LIMIT else str(value)
    return json_number(value) if value != value else value  # NaN would become null


def _blob_names(rollout: Rollout) -> Iterator[str]:
    for message in _messages(rollout):
        for part in message.parts:
            if part.blob is not None:
                yield part.blob.name


def _messages(rollout: Rollout) -> Iterator[Message]:
    yield from rollout.messages
    for step in rollout.steps:
        if isinstance(step.response, Message):
            yield step.response
    for call in rollout.calls:
        yield from call.prompt
        if call.reply is not None:
            yield call.reply
