"""Writes parts: each table of a folder to one Parquet file, of bounded size each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import RecordError
from rolltrace.query.arrow_columns import ArrowTable
from rolltrace.query.score_order import REWARD_ORDER_TYPE
from rolltrace.query.table_columns import DecodeScore, read_tables, with_valid_text
from rolltrace.query.table_schema import (
    GROUP_COLUMNS,
    KINDS_OF_FOLDER,
    LAYOUT_VERSION,
    STORED_COLUMNS,
    TABLES_OF_KIND,
    TEXTS,
    sql_identifier,
    sql_literal,
)
from rolltrace.store.cursor import LineLocation, record_read_error
from rolltrace.store.id_blocks import make_entry, write_id_blocks
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.parts import Part, PartInfo, Ranges, RowStats, common_scores, finished_segments, joined_ranges
from rolltrace.store.read_errors import ReadError

if TYPE_CHECKING:
    import duckdb

BATCH_BYTES = 64 << 20
"""Lines wait as columns in memory until they have so many bytes; then they become a part."""
_CHUNK_LINES = 512
_CHUNK_BYTES = 4 << 20
"""Decoded lines become columns when there are so many of them."""

_PARQUET = "format parquet, compression zstd, compression_level 1"
_WITH_TEXT = ("steps", "other_messages", "calls", "score_calls")
_TEXT_ROWS = 20_480
"""Rows of tables with text that are put together at once, and are in memory while they are."""
_NEW_ROWS = "_new_rows"
_ID_COLUMNS = {ROLLOUTS: "id", SCORES: "rollout"}
"""By kind, the column with the id of a rollout in the table of the same name, which has a row for each line."""
_ID_ROWS = 4096
_SECONDS = "greatest(epoch_us(r.ended_at) - epoch_us(r.started_at), 0) / 1e6"
"""How long a rollout took: 0 if the clock was set back meanwhile."""
_STORED_REWARDS = """(
    select id as rollout, any_value(reward) as value, any_value(reward_order) as reward_order from {}
    where reward_order is not null group by id
)"""
SLOT_COLUMNS = f'"run", {GROUP_COLUMNS}, "index"'
"""The columns that are the same for all attempts at one index of a group, in all sessions."""


class PartBuilder:
    """Collects lines of one folder, and writes their tables of some kinds."""

    def __init__(
        self,
        kinds: Sequence[str],
        connection: "duckdb.DuckDBPyConnection",
        report: Callable[[ReadError], None],
        decode_score: DecodeScore,
    ) -> None:
        self._kinds = tuple(kinds)
        self._connection = connection
        self._report = report
        self._stats = RowStats()
        self._ids: set[str] = set()
        self._files: Counter[str] = Counter()
        """How many lines of each file have rows."""
        self._decode_score = decode_score
        self._lines: list[tuple[bytes, LineLocation]] = []
        """Lines that are not columns yet."""
        self._tables = {table: ArrowTable(STORED_COLUMNS[table]) for kind in kinds for table in TABLES_OF_KIND[kind]}
        self._bytes = 0
        self._chunk_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to write the part."""
        return self._bytes >= BATCH_BYTES

    def add(self, line: bytes, location: LineLocation) -> None:
        """Add a line; one that is not a record of the folder is reported, and adds no rows."""
        self._bytes += len(line)
        self._chunk_bytes += len(line)
        self._lines.append((line, location))
        if len(self._lines) >= _CHUNK_LINES or self._chunk_bytes >= _CHUNK_BYTES:
            self._append_columns()

    def write(self, path: Path, ranges: Ranges) -> list[Part]:
        """Write the lines that were added to a new folder for each kind; to none if they have no rows."""
        self._append_columns()
        has_rows = any(columns.rows for columns in self._tables.values())
        return [
            self._write_kind(kind, path.with_name(f"{path.name}-{kind}"), ranges) for kind in self._kinds if has_rows
        ]

    def _write_kind(self, kind: str, path: Path, ranges: Ranges) -> Part:
        of_texts = RowStats(responses=self._stats.responses)
        stats = of_texts if kind == TEXTS else msgspec.structs.replace(self._stats, responses=0)
        if kind != TEXTS:
            stats.lines, stats.ids = dict(self._files), (min(self._ids), max(self._ids))
            stats.repeats = self._files.total() - len(self._ids)
        stats.rows = {table: self._tables[table].rows for table in TABLES_OF_KIND[kind] if self._tables[table].rows}
        path.mkdir()
        for table in stats.rows:
            columns, file = self._tables.pop(table), path / f"{table}.parquet"
            make_query = (
                partial(rollouts_query, self._connection, stats=stats) if table == ROLLOUTS else "from {}".format
            )
            write_arrow_table(self._connection, columns, file, make_query)
        return Part(path, PartInfo(layout=LAYOUT_VERSION, kind=kind, ranges=ranges, stats=stats))

    def _append_columns(self) -> None:
        lines, self._lines, self._chunk_bytes = self._lines, [], 0
        self._append(lines)

    def _append(self, lines: Sequence[tuple[bytes, LineLocation]]) -> None:
        """Add lines to the columns; one with text that is not valid is searched for by halving them."""
        try:
            self._append_all(lines)
        except ValueError:
            if len(lines) > 1:
                self._append(lines[: len(lines) // 2])
                self._append(lines[len(lines) // 2 :])
                return
            [(line, location)] = lines
            try:
                self._append_all([(with_valid_text(line), location)])
            except RecordError as error:
                self._report(record_read_error(location, error))

    def _append_all(self, lines: Sequence[tuple[bytes, LineLocation]]) -> None:
        """Add lines to the columns, all or, if `ValueError` is raised, none of them."""
        tables, stats, errors = read_tables(self._kinds, lines, self._decode_score)
        made = {table: columns for table, columns in tables.items() if columns and table in self._tables}
        chunks = {table: self._tables[table].chunk(columns) for table, columns in made.items()}
        for table, chunk in chunks.items():
            self._tables[table].append_chunk(chunk)
            if table in KINDS_OF_FOLDER:
                self._ids.update(made[table]["id"])
                self._files.update(made[table]["_file"])
        self._stats.merge(stats)
        for error in errors:
            self._report(error)


def write_arrow_table(
    connection: "duckdb.DuckDBPyConnection",
    table: ArrowTable,
    path: Path,
    make_query: Callable[[str], str] = "from {}".format,
) -> None:
    """Write a table, or what a query makes of it, to a Parquet file."""
    connection.register(_NEW_ROWS, table)
    try:
        copy_to_parquet(connection, make_query(_NEW_ROWS), path)
    finally:
        connection.unregister(_NEW_ROWS)


def merge_parts(
    connection: "duckdb.DuckDBPyConnection", path: Path, kind: str, parts: Sequence[Part], ranges: Ranges | None = None
) -> Part:
    """Write one part with the rows of several of one kind.

    `ranges` are the ranges of lines that it covers, if that includes lines without rows.
    """
    stats = RowStats(rows={})
    for part in parts:
        stats.merge(part.info.stats)
    stats.rows = {table: rows for table, rows in stats.rows.items() if table in TABLES_OF_KIND[kind]}
    path.mkdir()
    for table in stats.rows:
        columns = ", ".join(map(sql_identifier, STORED_COLUMNS[table]))
        sources = parquet_source(part.table(table).path for part in parts if part.info.stats.rows.get(table))
        query = f"select {columns} from {sources}"
        if table == "rollouts":
            has_rewards = any(part.info.scores_covered for part in parts)
            rewards = _STORED_REWARDS.format(sources) if has_rewards else None
            query = rollouts_query(connection, f"({query})", stats, rewards)
        copy_to_parquet(connection, query, path / f"{table}.parquet")
    _add_line_stats(connection, path, stats)
    ranges = joined_ranges(parts) if ranges is None else ranges
    info = PartInfo(layout=LAYOUT_VERSION, kind=kind, ranges=ranges, stats=stats, scores_covered=common_scores(parts))
    info.errors = [error for part in parts for error in part.info.errors]
    info.finished = finished_segments(parts)
    return Part(path, info)


def index_ids(connection: "duckdb.DuckDBPyConnection", part: Part) -> None:
    """Index the lines of a part by the id of their rollout; `IdIndex` uses that."""
    if part.info.kind not in _ID_COLUMNS:
        return
    numbers = {file: number for number, file in enumerate(sorted(part.info.ranges))}
    table, column = part.table(part.info.kind).path, _ID_COLUMNS[part.info.kind]
    source = f"from {parquet_source([table])} where {column} is not null" if part.tables else "where false"
    rows = connection.execute(f"select unhex(md5({column})), _file, _offset, _length {source} order by all")
    batches = iter(partial(rows.fetchmany, _ID_ROWS), [])
    entries = (make_entry(key, numbers[file], *place) for batch in batches for key, file, *place in batch)
    write_id_blocks(part, entries)


def copy_to_parquet(connection: "duckdb.DuckDBPyConnection", query: str, path: Path) -> None:
    """Write the rows of a query to a Parquet file."""
    options = f"{_PARQUET}, row_group_size {_TEXT_ROWS}" if path.stem in _WITH_TEXT else _PARQUET
    connection.execute(f"copy ({query}) to {sql_literal(path)} ({options})")


def _add_line_stats(connection: "duckdb.DuckDBPyConnection", path: Path, stats: RowStats) -> None:
    """Count the lines of a part by its table that has one row for each of them; without one, they are not counted."""
    tables = [folder for folder in KINDS_OF_FOLDER if stats.rows.get(folder)]
    if not tables:
        return
    rows = parquet_source([path / f"{tables[0]}.parquet"])
    stats.lines = dict(connection.execute(f"select _file, count(*) from {rows} group by _file").fetchall())
    [(first, last, stats.repeats)] = connection.execute(
        f"select min(id), max(id), count(*) - count(distinct id) from {rows}"
    ).fetchall()
    stats.ids = (first, last)


def rollouts_query(
    connection: "duckdb.DuckDBPyConnection", source: str, stats: RowStats, rewards: str | None = None
) -> str:
    """Rollouts with what other lines say about them: whether they were retried, are of a shared place, or scored later.

    Which of several sessions counts is not stored: that depends on their ledgers, which go on (see `deduplication`).
    """
    joined, shared, retried = "", "false", "false"
    if stats.has_retries or len(stats.sessions) > 1:
        connection.execute(f"create or replace temp table repeated as {_repeated(source)}")
        counted = connection.execute("select count(*) filter (shared) from repeated").fetchone()
        stats.shared_slots = counted[0] if counted else 0
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
