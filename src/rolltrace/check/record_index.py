"""A temporary SQLite index of a run's records, one small row each, for audits that compare records."""

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec.structs import astuple

from rolltrace.check.audit import Finding
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import SegmentName
from rolltrace.temp_folders import explain_full_disk
from rolltrace.trace.coerce import coerce_time
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


class RecordIndex:
    """Tables `rollouts`, `scores`, `blobs` and `quotes`, in a temporary file that is deleted when this is closed.

    Columns have the names of those in the tables of `rolltrace query`. Memory use does not grow with the run. NaN,
    integers of more than 64 bits, and times are stored as text.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect(
            "", isolation_level=None
        )  # a temporary file, written when it outgrows its cache
        self._database.executescript(_TABLES)
        self._database.row_factory = sqlite3.Row
        self._rollouts: list[tuple[Any, ...]] = []
        self._scores: list[tuple[Any, ...]] = []
        self._blobs: list[tuple[Any, ...]] = []
        self._quotes: list[tuple[Any, ...]] = []

    def add_rollout(self, location: LineLocation, rollout: Rollout) -> None:
        """Add a rollout."""
        self._rollouts.append(
            (
                rollout.id, rollout.run, rollout.session, rollout.split, _storable(rollout.iteration), rollout.env,
                rollout.group, _storable(rollout.index), _storable(rollout.attempt), rollout.status.value,
                _storable(rollout.line_reward), _storable(rollout.reward_so_far), timestamp(rollout.started_at),
                timestamp(rollout.ended_at), location.file, location.offset, session_of_file(location.file),
            )
        )  # fmt: skip
        self._blobs.extend((name, rollout.id) for name in _blob_names(rollout))
        if len(self._rollouts) >= _BATCH:
            self._write()

    def add_score(self, location: LineLocation, score: Score) -> None:
        """Add a score."""
        key = (None,) * 4 if score.group is None else map(_storable, astuple(score.group))
        so_far = score.data.get("reward_so_far") if "group_grade" in score.data else None
        self._scores.append(
            (
                score.id, score.run, score.session, score.rollout, *key, score.name, _storable(score.value),
                _storable(as_float(so_far)), location.file, location.offset, session_of_file(location.file),
            )
        )  # fmt: skip
        quoted = {quote.rollout for call in score.calls for quote in call.quotes if quote.rollout is not None}
        self._quotes.extend((score.id, rollout) for rollout in quoted)
        if len(self._scores) >= _BATCH:
            self._write()

    def finish(self) -> None:
        """Write the last batch, and create the indexes."""
        self._write()
        with explain_full_disk():
            self._database.executescript(_INDEXES)

    def rows(self, sql: str, *values: Any) -> Iterator[sqlite3.Row]:
        """The rows of a query, one by one."""
        with explain_full_disk():
            yield from self._database.execute(sql, values)

    def close(self) -> None:
        """Delete the temporary file."""
        self._database.close()

    def _write(self) -> None:
        tables = {
            "rollouts": self._rollouts, "scores": self._scores, "blobs": self._blobs, "quotes": self._quotes,
        }  # fmt: skip
        with explain_full_disk():
            self._database.execute("begin")
            for table, rows in tables.items():
                if rows:
                    parameters = ", ".join("?" * len(rows[0]))
                    insert = f"insert or ignore into {table} values ({parameters})"  # noqa: S608 - our own names
                    self._database.executemany(insert, rows)
                    rows.clear()
            self._database.execute("commit")


def timestamp(time: datetime) -> str:
    """A time as text that sorts like times, in UTC."""
    return coerce_time(time).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def session_of_file(file: str) -> str:
    """The session that wrote a file, from its name without a suffix."""
    segment = SegmentName.parse(file.rpartition("/")[2])
    return "" if segment is None else segment.session


def group_address_of(row: sqlite3.Row) -> str:
    """The address of the row's group."""
    return GroupKey(*(row[name] for name in GroupKey.__struct_fields__)).address


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
    """A number as SQLite stores it; NaN and integers of more than 64 bits become text."""
    if type(value) is int:
        return value if -INT64_LIMIT <= value < INT64_LIMIT else str(value)
    return json_number(value) if value != value else value  # NaN would become null


def _blob_names(rollout: Rollout) -> set[str]:
    responses = [step.response for step in rollout.steps if isinstance(step.response, Message)]
    in_calls = [message for call in rollout.calls for message in (*call.prompt, call.reply) if message is not None]
    messages = (*rollout.messages, *responses, *in_calls)
    return {part.blob.name for message in messages for part in message.parts if part.blob is not None}
