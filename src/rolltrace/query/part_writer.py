"""Writes parts: each table of a folder to one Parquet file, of bounded size each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rolltrace.query.arrow_columns import ArrowTable
from rolltrace.query.score_order import REWARD_ORDER_TYPE
from rolltrace.query.table_columns import DecodeScore, line_decoder, make_tables
from rolltrace.query.table_schema import (
    KINDS_OF_FOLDER,
    LAYOUT_VERSION,
    STORED_COLUMNS,
    TABLES_OF_KIND,
    sql_identifier,
    sql_literal,
)
from rolltrace.store.cursor import Cursor, LineLocation, record_read_error
from rolltrace.store.id_blocks import write_id_blocks
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.parts import Part, PartInfo, RowStats, merged_info
from rolltrace.store.read_errors import ReadError

if TYPE_CHECKING:
    import duckdb

Item = TypeVar("Item")
_Line = tuple[LineLocation, Any]
"""The location of a line, and what was decoded of it."""

BATCH_BYTES = 64 << 20
"""Lines wait as columns in memory until they have so many bytes; then they become a part."""
_CHUNK_LINES = 128
_CHUNK_BYTES = 1 << 20
"""Decoded lines become columns when there are so many of them, which fit into the processor's cache."""

_PARQUET = "format parquet, compression zstd, compression_level 2"
_WITH_TEXT = ("steps", "other_messages", "calls", "score_calls")
_TEXT_ROWS = 20_480
"""Rows of tables with text that are put together at once, and are in memory while they are."""
_ID_COLUMNS = {ROLLOUTS: "id", SCORES: "rollout"}
"""By kind, the column with the id of a rollout in the table of the same name, which has a row for each line."""
_ID_ROWS = 4096
_SECONDS = "greatest(epoch_us(ended_at) - epoch_us(started_at), 0) / 1e6"
"""How long a rollout took: 0 if the clock was set back meanwhile."""
_NEW_COLUMNS = f"{_SECONDS} as seconds, line_reward as reward, null::{REWARD_ORDER_TYPE} as reward_order"
"""The columns that rollouts have besides those of their lines. The reward does not include late scores yet."""


class PartBuilder:
    """Collects lines of one folder, and writes their tables of some kinds."""

    def __init__(
        self,
        kinds: Sequence[str],
        connection: "duckdb.DuckDBPyConnection",
        errors: list[ReadError],
        decode_score: DecodeScore,
    ) -> None:
        self._kinds = tuple(kinds)
        self._connection = connection
        self._errors = errors
        """Those in the lines, also of the cursor that reads them."""
        self._decode = line_decoder(self._kinds, decode_score)
        self._stats = RowStats()
        self._ids: set[str] = set()
        self._lines: list[_Line] = []
        """Lines that are not columns yet."""
        self._tables = {table: ArrowTable(STORED_COLUMNS[table]) for kind in kinds for table in TABLES_OF_KIND[kind]}
        self._bytes = 0
        self._chunk_bytes = 0

    def add(self, line: bytes, location: LineLocation) -> bool:
        """Add a line; one that is not a record is reported, and adds no rows. Returns whether it is time to write."""
        self._bytes += len(line)
        self._chunk_bytes += len(line)
        try:
            self._lines.append((location, self._decode(line)))
        except (ValueError, RecursionError) as error:
            self._errors.append(record_read_error(location, error))
        if len(self._lines) >= _CHUNK_LINES or self._chunk_bytes >= _CHUNK_BYTES:
            self._append_columns()
        return self._bytes >= BATCH_BYTES

    def write(self, path: Path, before: Mapping[str, int], cursor: Cursor) -> list[Part]:
        """Write what the cursor has read since it had covered `before` to a new folder for each kind."""
        self._append_columns()
        self._stats.repeats = sum(self._stats.lines.values()) - len(self._ids)
        ranges = {file: (before.get(file, 0), end) for file, end in cursor.covered.items() if end > before.get(file, 0)}
        info = PartInfo(
            layout=LAYOUT_VERSION,
            ranges=ranges,
            stats=self._stats,
            finished={file: size for file, size in cursor.finished.items() if file in ranges},
            errors=[error for error in self._errors if error.offset is not None and not error.is_transient],
        )
        return [self._write_kind(kind, path.with_name(f"{path.name}-{kind}"), info) for kind in self._kinds if ranges]

    def _write_kind(self, kind: str, path: Path, info: PartInfo) -> Part:
        rows = {table: info.stats.rows[table] for table in TABLES_OF_KIND[kind] if info.stats.rows.get(table)}
        stats = msgspec.structs.replace(info.stats, rows=rows)
        path.mkdir()
        for table in rows:
            with self._tables.pop(table).registered(self._connection) as source:
                query = f"select *, {_NEW_COLUMNS} from {source}" if table == ROLLOUTS else f"from {source}"
                copy_to_parquet(self._connection, query, path / f"{table}.parquet")
        return Part(path, msgspec.structs.replace(info, kind=kind, stats=stats))

    def _append_columns(self) -> None:
        """Make columns of the lines that wait."""
        lines, self._lines, self._chunk_bytes = self._lines, [], 0
        if lines:
            self._append(lines)

    def _append(self, lines: Sequence[_Line]) -> None:
        """Make columns of lines. If one of them cannot be a row, look for it in each half; it is reported."""
        locations, records = zip(*lines, strict=True)
        try:
            tables, stats = make_tables(self._kinds, records, locations)
        except (ValueError, RecursionError) as error:
            if len(lines) == 1:
                self._errors.append(record_read_error(locations[0], error))
            else:
                self._append(lines[: len(lines) // 2])
                self._append(lines[len(lines) // 2 :])
            return
        for table, rows in stats.rows.items():
            if rows and table in self._tables:
                self._tables[table].append(tables[table])
        for table in tables.keys() & KINDS_OF_FOLDER:
            self._ids.update(tables[table]["id"])
        self._stats.merge(stats)


def merge_parts(connection: "duckdb.DuckDBPyConnection", path: Path, parts: Sequence[Part]) -> Part:
    """Write one part with the rows of several of one kind."""
    merged = Part(path, merged_info([part.info for part in parts]))
    path.mkdir()
    for table in merged.tables:
        rows = parquet_source(part.table(table).path for part in parts if table in part.tables)
        copy_to_parquet(connection, f"from {rows}", path / f"{table}.parquet")
        if table in KINDS_OF_FOLDER:
            repeats = connection.execute(f"select count(*) - count(distinct id) from {rows}")
            [(merged.info.stats.repeats,)] = repeats.fetchall()
    return merged


def index_ids(connection: "duckdb.DuckDBPyConnection", part: Part) -> None:
    """Index the lines of a part by the id of their rollout; `IdIndex` uses that."""
    if part.info.kind in _ID_COLUMNS:
        write_id_blocks(part, _id_rows(connection, part) if part.tables else iter(()))


def _id_rows(connection: "duckdb.DuckDBPyConnection", part: Part) -> Iterator[tuple[bytes, int, int, int]]:
    """Of each line about a rollout, in order: the hash of the id, the number of the file, the offset, the length."""
    column = _ID_COLUMNS[part.info.kind]
    rows = connection.execute(
        f"""select unhex(md5({column})), file_number, _offset, _length
        from {parquet_source([part.table(part.info.kind).path])}
        join (select unnest($files) as _file, unnest(range(len($files))) as file_number) using (_file)
        where {column} is not null order by all""",
        {"files": sorted(part.info.ranges)},
    )
    return chain.from_iterable(iter(partial(rows.fetchmany, _ID_ROWS), []))


def copy_to_parquet(connection: "duckdb.DuckDBPyConnection", query: str, path: Path) -> int:
    """Write the rows of a query to a Parquet file; returns their number."""
    options = f"{_PARQUET}, row_group_size {_TEXT_ROWS}" if path.stem in _WITH_TEXT else _PARQUET
    [(rows,)] = connection.execute(f"copy ({query}) to {sql_literal(path)} ({options})").fetchall()
    return int(rows)


def in_batches(items: Sequence[Item], size: Callable[[Item], float], most: float) -> list[list[Item]]:
    """These items, in order, in batches of at most this size; one that is larger is a batch of its own."""
    batches: list[list[Item]] = []
    total = 0.0
    for item in items:
        total += size(item)
        if not batches or total > most:
            batches.append([])
            total = size(item)
        batches[-1].append(item)
    return batches


def parquet_source(paths: Iterable[Path]) -> str:
    """The rows of Parquet files of one kind."""
    return f"read_parquet([{', '.join(map(sql_literal, paths))}])"


def empty_query(kinds: Mapping[str, str]) -> str:
    """A table of these columns without rows."""
    return f"select {', '.join(f'null::{kind} as {sql_identifier(name)}' for name, kind in kinds.items())} where false"
