"""Makes parts of tables from the lines of a run, of bounded size each."""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from rolltrace.errors import RecordError
from rolltrace.query.parquet_parts import METADATA_KEY, ParquetPart, PartMetadata, Ranges
from rolltrace.query.score_order import REWARD_ORDER_TYPE
from rolltrace.query.table_rows import MAKE_ROWS, DecodeScore, RowStats, score_call_rows
from rolltrace.query.table_schema import GROUP_COLUMNS, STORED_COLUMNS, sql_identifier, sql_literal
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import PLAIN_SUFFIX
from rolltrace.store.read_errors import ReadError, ReadErrorKind

if TYPE_CHECKING:
    import duckdb

BATCH_BYTES = 64 << 20
"""Rows wait as text until there are so many bytes of them; then they become a part."""

_PARQUET = "format parquet, compression zstd"
_WITH_TEXT = ("steps", "messages", "calls", "score_calls")
_TEXT_ROWS = 20_480
"""Rows of tables with text that are put together at once, and are in memory while they are."""
_SECONDS = "greatest(epoch_us(r.ended_at) - epoch_us(r.started_at), 0) / 1e6"
"""How long a rollout took: 0 if the clock was set back meanwhile."""
SLOT_COLUMNS = f'"run", {GROUP_COLUMNS}, "index"'
"""The columns that are the same for all attempts at one index of a group, in all sessions."""


class ParquetBatch:
    """Rows of one table on their way into a Parquet file of a private folder."""

    def __init__(
        self,
        table: str,
        folder: Path,
        connection: "duckdb.DuckDBPyConnection",
        report: Callable[[ReadError], None],
        decode_score: DecodeScore,
    ) -> None:
        self._table = table
        self._connection = connection
        self._report = report
        self._make_rows = MAKE_ROWS[table]
        if table == "score_calls":
            self._make_rows = partial(score_call_rows, decode=decode_score)
        self._path = folder / f"{table}.ndjson"
        self._file: BinaryIO | None = None
        self._size = 0
        self._longest = 0
        self._places: list[LineLocation] = []
        self._starts: list[int] = []  # for each place, how many rows there were before
        self._facts = RowStats()

    @property
    def is_full(self) -> bool:
        """Whether it is time to make it a part."""
        return self._size >= BATCH_BYTES

    def add(self, line: bytes, place: LineLocation) -> None:
        """Add the rows of a line; a line that is no record of the kind is reported, and adds none."""
        facts = RowStats()
        try:
            rows = list(self._make_rows(line, place, facts))
        except RecordError as error:
            self._report(ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, str(error), kind=ReadErrorKind.INVALID))
            return
        if not rows:
            return
        if self._file is None:
            self._file = self._path.open("wb")
        for row in rows:
            self._file.write(row)
            self._file.write(b"\n")
            self._size += len(row) + 1
            self._longest = max(self._longest, len(row) + 1)
        self._places.append(place)
        self._starts.append(self._facts.rows)
        self._facts.merge(facts)

    def finish(self, path: Path, ranges: Ranges) -> ParquetPart | None:
        """A part of everything that was added; None where that was nothing."""
        if self._file is None:
            return None
        self._file.close()
        try:
            return self._convert(path, ranges)
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _convert(self, path: Path, ranges: Ranges) -> ParquetPart:
        import duckdb

        try:
            return self._write(self._source(self._path), path, ranges)
        except duckdb.InvalidInputException:
            # Free-form JSON is handed on unread. What the engine cannot read of it costs only its own row.
            with self._readable_rows() as source:
                return self._write(source, path, ranges)

    def _write(self, source: str, path: Path, ranges: Ranges) -> ParquetPart:
        label = PartMetadata(table=self._table, ranges=ranges, facts=self._facts)
        query = f"select {', '.join(map(sql_identifier, STORED_COLUMNS[self._table]))} from {source}"
        if self._table == "rollouts":
            query = rollouts_query(self._connection, f"({query})", self._facts)
        copy_to_parquet(self._connection, query, path, label)
        return ParquetPart(path, label)

    @contextlib.contextmanager
    def _readable_rows(self) -> Iterator[str]:
        """The rows that the engine can read; each line with another is reported."""
        numbered, readable = self._path.with_suffix(".numbered"), self._path.with_suffix(".readable")
        try:
            with self._path.open("rb") as rows, numbered.open("wb") as file:
                for number, row in enumerate(rows):
                    file.write(b'%s,"_row":%d}\n' % (row.rstrip(b"\n")[:-1], number))
            copy_to_parquet(
                self._connection, f"from {self._source(numbered, {'_row': 'BIGINT'}, 'ignore_errors = true')}", readable
            )
            found = self._connection.execute(f"select _row from {parquet_source([readable])} where _row is not null")
            self._tell_lost({number for (number,) in found.fetchall()})
            yield f"(from {parquet_source([readable])} where _row is not null)"
        finally:
            for path in (numbered, readable):
                path.unlink(missing_ok=True)

    def _tell_lost(self, found: set[int]) -> None:
        lost = [number for number in range(self._facts.rows) if number not in found]
        counts: dict[LineLocation, int] = {}
        for number in lost:
            place = self._places[bisect_right(self._starts, number) - 1]
            counts[place] = counts.get(place, 0) + 1
        for place, count in counts.items():
            message = f"Expected JSON that tables can hold: {count} of its rows of {self._table} cannot be read."
            self._report(ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, message, kind=ReadErrorKind.INVALID))
        self._facts.rows -= len(lost)

    def _source(self, path: Path, more: Mapping[str, str] | None = None, option: str = "ignore_errors = false") -> str:
        columns = ", ".join(
            f"{sql_identifier(name)}: {sql_literal(kind)}"
            for name, kind in {**STORED_COLUMNS[self._table], **(more or {})}.items()
        )
        largest = max(16 << 20, 2 * self._longest)
        return (
            f"read_json({sql_literal(path)}, format = 'newline_delimited', compression = 'none', "
            f"maximum_object_size = {largest}, columns = {{{columns}}}, {option})"
        )


def copy_to_parquet(
    connection: "duckdb.DuckDBPyConnection", query: str, path: Path, label: PartMetadata | None = None
) -> None:
    """Write what a query gives into a Parquet file that says what it is."""
    options = _PARQUET
    if label is not None and label.table in _WITH_TEXT:
        options += f", row_group_size {_TEXT_ROWS}"
    if label is not None:
        options += f", kv_metadata {{{METADATA_KEY}: {sql_literal(msgspec.json.encode(label).decode())}}}"
    connection.execute(f"copy ({query}) to {sql_literal(path)} ({options})")


def rollouts_query(
    connection: "duckdb.DuckDBPyConnection", source: str, facts: RowStats, rewards: str | None = None
) -> str:
    """Rollouts with what other lines say about them: whether they were retried, are of a shared place, or scored later.

    Which of several sessions counts is not stored: that depends on their ledgers, which go on (see `repeats`).
    """
    joined, shared, retried = "", "false", "false"
    if facts.has_retries or len(facts.sessions) > 1:
        connection.execute(f"create or replace temp table repeated as {_repeated(source)}")
        counted = connection.execute("select count(*) filter (shared) from repeated").fetchone()
        facts.shared_slots = counted[0] if counted else 0
        joined = "left join repeated on repeated.id = r.id"
        shared, retried = "coalesce(repeated.shared, false)", "coalesce(repeated.retried, false)"
    reward, reward_order = "r.line_reward", f"null::{REWARD_ORDER_TYPE}"
    if rewards is not None:
        joined += f" left join {rewards} s on s.rollout = r.id"
        reward, reward_order = "case when s.rollout is null then r.line_reward else s.value end", "s.reward_order"
    return (
        f"select r.*, {_SECONDS} as seconds, {reward} as reward, "
        f"{reward_order} as reward_order, {shared} as shared, {retried} as retried from {source} r {joined}"
    )


def _repeated(source: str) -> str:
    """The ids of rollouts that were retried in their session, or of whose place another session has a rollout."""
    return f"""
        select id, bool_or(shared) as shared, bool_or(retried) as retried from (
            select id,
                min(session) over (partition by {SLOT_COLUMNS})
                    <> max(session) over (partition by {SLOT_COLUMNS}) as shared,
                attempt < max(attempt) over (partition by {SLOT_COLUMNS}, session) as retried
            from {source} where "index" is not null
        ) where shared or retried group by id
    """


def parquet_source(paths: Iterable[Path]) -> str:
    """The rows of Parquet files of one kind."""
    return f"read_parquet([{', '.join(map(sql_literal, paths))}])"


def empty_query(kinds: Mapping[str, str]) -> str:
    """A table of these columns without rows."""
    return f"select {', '.join(f'null::{kind} as {sql_identifier(name)}' for name, kind in kinds.items())} where false"


def ranges_between(before: Mapping[str, int], after: Mapping[str, int]) -> Ranges:
    """What was read between two states of a cursor."""
    return {file: (before.get(file, 0), last) for file, last in after.items() if last > before.get(file, 0)}
