"""What a statement gave: rows, or a frame of a library that is installed."""

import importlib
import importlib.util
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from rolltrace.errors import InputError, StorageError
from rolltrace.query.deadline import QueryDeadline
from rolltrace.query.sql_check import Statement
from rolltrace.query.sql_sandbox import SqlSandbox, closed_error
from rolltrace.terminal_text import escape_line

if TYPE_CHECKING:
    import duckdb

    from rolltrace.query.database import Database

Given = TypeVar("Given")
ResultRow = tuple[Any, ...]

_ZONED = "WITH TIME ZONE"
_ROWS_AT_ONCE = 1000
_ROWS_SHOWN = 20


class QueryResult:
    """The rows of one statement, which is run when the first of them is asked for.

    Rows are given once: whatever takes some goes on where the one before stopped. A frame has all of them.
    """

    def __init__(self, statement: Statement, database: "Database", timeout: float | None = None) -> None:
        self._statement = statement
        self._database = database
        self._clock = QueryDeadline(timeout)
        self._engine: SqlSandbox | None = None
        self._rows: duckdb.DuckDBPyConnection | None = None
        self._ahead: deque[ResultRow] = deque()
        self._has_given = False
        self._is_iteration_finished = False
        relation = self._do(self._bind)
        self.columns = tuple(map(str, relation.columns))
        """The names of the columns."""
        self.types = tuple(map(str, relation.types))
        """Their types, as SQL names them."""

    def fetchone(self) -> ResultRow | None:
        """The next row, or None where there is none any more."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, count: int) -> list[ResultRow]:
        """The next rows."""
        while len(self._ahead) < count and self._fetch_ahead(max(count - len(self._ahead), _ROWS_AT_ONCE)):
            pass
        self._has_given = True
        return [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]

    def fetchall(self) -> list[ResultRow]:
        """All rows from the next on."""
        return list(self)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Each row from the next on by the names of its columns."""
        names = unique_names(self.columns)
        return (dict(zip(names, row, strict=True)) for row in self)

    def arrow(self) -> Any:
        """All rows as an Arrow table; needs pyarrow."""
        _require("pyarrow")
        return self._do(lambda cursor: self._bind(cursor).to_arrow_table())

    def pandas(self) -> Any:
        """All rows as a pandas frame; needs pandas."""
        _require("pandas", "numpy")
        return self._do(lambda cursor: self._bind(cursor).df())

    def polars(self) -> Any:
        """All rows as a Polars frame; needs polars and pyarrow."""
        _require("polars", "pyarrow")
        return importlib.import_module("polars").from_arrow(self.arrow())

    def __iter__(self) -> Iterator[ResultRow]:
        while self._ahead or self._fetch_ahead(_ROWS_AT_ONCE):
            self._has_given = True
            yield self._ahead.popleft()

    def __repr__(self) -> str:
        if len(self._ahead) <= _ROWS_SHOWN:
            self._fetch_ahead(_ROWS_AT_ONCE)
        rows = list(islice(self._ahead, _ROWS_SHOWN))
        texts = [self.columns, *(tuple(map(_cell, row)) for row in rows)]
        widths = [max(len(text[place]) for text in texts) for place in range(len(self.columns))]
        lines = ["  ".join(map(str.ljust, text, widths)).rstrip() for text in texts]
        return "\n".join(lines + ["…"] * (len(self._ahead) > _ROWS_SHOWN))

    def _fetch_ahead(self, count: int) -> bool:
        """Take rows from the engine, to be given later; whether there were any."""
        if self._is_iteration_finished:
            return False
        rows = self._do(lambda cursor: self._begun(cursor).fetchmany(count), self._rows)
        self._ahead.extend(rows)
        if not rows:  # nothing more is needed of the engine
            self._is_iteration_finished, self._rows, self._engine = True, None, None
        return bool(rows)

    def _begun(self, cursor: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
        if self._rows is None:
            self._refuse_zones()
            self._rows = cursor.execute(self._statement.sql, self._statement.parameters)
        return self._rows

    def _refuse_zones(self) -> None:
        """The engine gives times with a zone only where another package is installed."""
        zoned = [name for name, kind in zip(self.columns, self.types, strict=True) if _ZONED in kind.upper()]
        if zoned and importlib.util.find_spec("pytz") is None:
            raise InputError(
                f"Expected times as the tables have them, in UTC, got a time with a zone in {', '.join(zoned)}: "
                "write `(…)::timestamp`, or take the rows as a frame."
            )

    def _bind(self, cursor: "duckdb.DuckDBPyConnection") -> Any:
        """The statement, checked by the engine and not run yet."""
        return cursor.sql(self._statement.sql, params=self._statement.parameters)

    def _do(
        self,
        work: "Callable[[duckdb.DuckDBPyConnection], Given]",
        begun: "duckdb.DuckDBPyConnection | None" = None,
    ) -> Given:
        """What `work` makes of a cursor; where a part of the tables vanished or is damaged, of another engine's."""
        import duckdb

        while True:
            engine = self._open_engine()
            try:
                cursor = begun or engine.cursor()
                with self._clock.limit(cursor.interrupt):
                    return work(cursor)
            except duckdb.Error as error:
                self._database.recover(error, engine)
                if self._has_given:  # rows cannot be taken back, and another run may order them differently
                    raise StorageError(
                        "A file of the tables was lost while rows were being read: ask again."
                    ) from error
                self._engine, self._rows, begun = None, None, None
                self._ahead.clear()

    def _open_engine(self) -> SqlSandbox:
        if self._database.process != os.getpid():
            raise InputError("Expected a result of this process, got one of the process that it was forked from.")
        if self._database.is_closed:
            raise closed_error()
        if self._engine is None:
            self._engine = self._database.engine(self._statement.tables, self._clock)
        return self._engine


def unique_names(columns: Sequence[str]) -> list[str]:
    """The names, with a number after one that was there before."""
    names: list[str] = []
    for column in columns:
        name, count = column, 1
        while name in names:
            count += 1
            name = f"{column}_{count}"
        names.append(name)
    return names


def _require(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(
                f"Expected {package} to be installed for this kind of frame: `pip install {package}`. "
                "`fetchall()` and iterating need nothing."
            ) from error


def _cell(value: Any) -> str:
    return escape_line(str(value))
