"""Makes parts of tables from the lines of a run, in batches of bounded size."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from rolltrace.query.parts import KEY, Label, Part, Ranges
from rolltrace.query.rows import MAKE_ROWS, Facts
from rolltrace.query.tables import RAW, literal, quoted
from rolltrace.store.cursor import Place

if TYPE_CHECKING:
    import duckdb

BATCH_BYTES = 64 << 20
"""Rows wait as text until there are so many bytes of them."""

_PARQUET = "format parquet, compression zstd"
_IDENTITY = ("run", "split", "iteration", "env", "group", "index")
IDENTITY = ", ".join(map(quoted, _IDENTITY))
"""What is the same for all attempts and all sessions of a rollout."""


class Batches:
    """Rows of one table on their way into Parquet files of a private folder."""

    def __init__(self, table: str, folder: Path, connection: "duckdb.DuckDBPyConnection") -> None:
        self.facts = Facts()
        self._table = table
        self._folder = folder
        self._connection = connection
        self._make_rows = MAKE_ROWS[table]
        self._file: BinaryIO | None = None
        self._size = 0
        self._longest = 0
        self.paths: list[Path] = []

    def add(self, line: bytes, place: Place) -> None:
        """Add the rows of a line; a line that is no record of the kind raises `RecordError`, and adds none."""
        for row in list(self._make_rows(line, place, self.facts)):
            if self._file is None:
                self._file = self._text_path.open("wb")
            self._file.write(row)
            self._file.write(b"\n")
            self._size += len(row) + 1
            self._longest = max(self._longest, len(row) + 1)
        if self._size >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Turn what is waiting into a file."""
        if self._file is None:
            return
        self._file.close()
        path = self._folder / f"{self._table}-{len(self.paths)}.parquet"
        self._convert(path)
        self._text_path.unlink()
        self._file, self._size, self._longest = None, 0, 0
        self.paths.append(path)

    def _convert(self, path: Path) -> None:
        import duckdb

        try:
            copy(self._connection, f"select * from {self._text_source()}", path)
        except duckdb.InvalidInputException:
            # Free-form JSON is handed on unread. What the engine cannot read of it costs only its own row.
            copy(self._connection, f"select * from {self._text_source(', ignore_errors = true')}", path)

    @property
    def _text_path(self) -> Path:
        return self._folder / f"{self._table}.ndjson"

    def _text_source(self, more: str = "") -> str:
        columns = ", ".join(f"{quoted(name)}: {literal(kind)}" for name, kind in RAW[self._table].items())
        largest = max(16 << 20, 2 * self._longest)
        return (
            f"read_json({literal(self._text_path)}, format = 'newline_delimited', compression = 'none', "
            f"maximum_object_size = {largest}, columns = {{{columns}}}{more})"
        )


def copy(connection: "duckdb.DuckDBPyConnection", query: str, path: Path, label: Label | None = None) -> None:
    """Write what a query gives into a Parquet file that says what it is."""
    options = _PARQUET
    if label is not None:
        options += f", kv_metadata {{{KEY}: {literal(msgspec.json.encode(label).decode())}}}"
    connection.execute(f"copy ({query}) to {literal(path)} ({options})")


def finish(connection: "duckdb.DuckDBPyConnection", batches: Batches, table: str, path: Path, ranges: Ranges) -> Part:
    """One part of everything that was added."""
    batches.flush()
    source = read_files(batches.paths)
    query = f"select * from {source}"
    if table == "rollouts":
        query = finished_rollouts(connection, source, batches.facts)
    label = Label(table=table, ranges=ranges, facts=batches.facts)
    copy(connection, query, path, label)
    for used in batches.paths:
        used.unlink()
    return Part(path, label)


def finished_rollouts(
    connection: "duckdb.DuckDBPyConnection", source: str, facts: Facts, rewards: str | None = None
) -> str:
    """Rollouts with what only others tell: whether they were played anew, or repeated later, or scored later."""
    joined, superseded, retried = "", "false", "false"
    if facts.attempts or len(facts.sessions) > 1:
        connection.execute(f"create or replace temp table repeated as {repeated(source)}")
        counted = connection.execute("select count(*) filter (superseded) from repeated").fetchone()
        facts.superseded = counted[0] if counted else 0
        joined = "left join repeated on repeated.id = r.id"
        superseded, retried = "coalesce(repeated.superseded, false)", "coalesce(repeated.retried, false)"
    reward, reward_at = "r.line_reward", "null::timestamp"
    if rewards is not None:
        joined += f" left join {rewards} s on s.rollout = r.id"
        reward, reward_at = "case when s.rollout is null then r.line_reward else s.value end", "s.moment"
    return (
        f"select r.*, (epoch_us(r.ended_at) - epoch_us(r.started_at)) / 1e6 as seconds, {reward} as reward, "
        f"{reward_at} as reward_at, {superseded} as superseded, {retried} as retried from {source} r {joined}"
    )


def repeated(source: str) -> str:
    """The ids of rollouts that were played anew in their session, or repeated by a later one."""
    return f"""
        select id, bool_or(superseded) as superseded, bool_or(retried) as retried from (
            select id,
                session < max(session) over (partition by {IDENTITY}) as superseded,
                attempt < max(attempt) over (partition by {IDENTITY}, session) as retried
            from {source}
        ) where superseded or retried group by id
    """


def read_files(paths: Iterable[Path]) -> str:
    """The rows of Parquet files of one kind."""
    return f"read_parquet([{', '.join(map(literal, paths))}])"


def ranges_between(before: Mapping[str, int], after: Mapping[str, int]) -> Ranges:
    """What was read between two states of a cursor."""
    return {file: (before.get(file, 0), last) for file, last in after.items() if last > before.get(file, 0)}


def earliest(starts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Where to begin reading for tables that are covered up to different places."""
    files = set().union(*starts)
    return {file: min(start.get(file, 0) for start in starts) for file in files}
