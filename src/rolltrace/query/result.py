"""The result of a statement: rows, or a frame of a library that is installed."""

import importlib
import importlib.util
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from rolltrace.errors import InputError, StorageError
from rolltrace.query.duckdb_engine import QueryDeadline, TableSnapshot, closed_error, raising_interrupts
from rolltrace.query.sql_check import Statement
from rolltrace.terminal_text import escape_line

if TYPE_CHECKING:
    import duckdb

    from rolltrace.query.database import Database

Output = TypeVar("Output")
ResultRow = tuple[Any, ...]

_ZONED = "WITH TIME ZONE"
_FETCH_ROWS = 1000
_REPR_ROWS = 20


class QueryResult:
    """The rows of one statement, which runs when the first row is requested.

    Each row is returned once: every method continues where the last one stopped. A frame has all rows.
    """

    def __init__(self, statement: Statement, database: "Database", timeout: float | None = None) -> None:
        self._statement = statement
        self._database = database
        self._deadline = QueryDeadline(timeout)
        self._snapshot: TableSnapshot | None = None
        self._rows: duckdb.DuckDBPyConnection | None = None
        self._ahead: deque[ResultRow] = deque()
        self._has_returned = False
        self._is_iteration_finished = False
        relation = self._do(self._bind)
        self.columns = tuple(map(str, relation.columns))
        """The names of the columns."""
        self.types = tuple(map(str, relation.types))
        """Their types, as SQL names them."""

    def fetchone(self) -> ResultRow | None:
        """The next row, or None at the end."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, count: int) -> list[ResultRow]:
        """The next rows."""
        while len(self._ahead) < count and self._fetch_ahead(max(count - len(self._ahead), _FETCH_ROWS)):
            pass
        self._has_returned = True
        return [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]

    def fetchall(self) -> list[ResultRow]:
        """All remaining rows."""
        return list(self)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """All remaining rows, as dicts by column name."""
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
        while self._ahead or self._fetch_ahead(_FETCH_ROWS):
            self._has_returned = True
            yield self._ahead.popleft()

    def __repr__(self) -> str:
        if len(self._ahead) <= _REPR_ROWS:
            self._fetch_ahead(_FETCH_ROWS)
        rows = list(islice(self._ahead, _REPR_ROWS))
        texts = [self.columns, *(tuple(map(_cell, row)) for row in rows)]
        widths = [max(len(text[column]) for text in texts) for column in range(len(self.columns))]
        lines = ["  ".join(map(str.ljust, text, widths)).rstrip() for text in texts]
        return "\n".join(lines + ["…"] * (len(self._ahead) > _REPR_ROWS))

    def _fetch_ahead(self, count: int) -> bool:
        """Fetch rows from the engine; returns whether there were any."""
        if self._is_iteration_finished:
            return False
        rows = self._do(lambda cursor: self._started(cursor).fetchmany(count), self._rows)
        self._ahead.extend(rows)
        if not rows:  # the snapshot is no longer needed
            self._is_iteration_finished, self._rows, self._snapshot = True, None, None
        return bool(rows)

    def _started(self, cursor: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
        if self._rows is None:
            self._refuse_zones()
            self._rows = cursor.execute(self._statement.sql, self._statement.parameters)
        return self._rows

    def _refuse_zones(self) -> None:
        """DuckDB returns times with a zone only if pytz is installed."""
        zoned = [name for name, kind in zip(self.columns, self.types, strict=True) if _ZONED in kind.upper()]
        if zoned and importlib.util.find_spec("pytz") is None:
            raise InputError(
                f"Expected times without a zone, as in the tables (UTC), got a time with a zone in {', '.join(zoned)}: "
                "write `(…)::timestamp`, or fetch the rows as a frame."
            )

    def _bind(self, cursor: "duckdb.DuckDBPyConnection") -> Any:
        """Bind the statement without running it."""
        return cursor.sql(self._statement.sql, params=self._statement.parameters)

    def _do(
        self,
        work: "Callable[[duckdb.DuckDBPyConnection], Output]",
        open_cursor: "duckdb.DuckDBPyConnection | None" = None,
    ) -> Output:
        """Call `work` with a cursor; with one of a new snapshot, if a file of the tables was deleted or damaged."""
        import duckdb

        while True:
            snapshot = self._open_snapshot()
            try:
                cursor = open_cursor or snapshot.cursor()
                with raising_interrupts(), self._deadline.limit(cursor.interrupt):
                    return work(cursor)
            except duckdb.Error as error:
                self._database.recover(error, snapshot)
                if self._has_returned:  # a second execution may order the rows differently
                    raise StorageError(
                        "A file of the tables was deleted or damaged while rows were read: run the statement again."
                    ) from error
                self._snapshot, self._rows, open_cursor = None, None, None
                self._ahead.clear()

    def _open_snapshot(self) -> TableSnapshot:
        if self._database.process != os.getpid():
            raise InputError(
                "Expected a result of this process, got one of the process that it was forked from: run it again."
            )
        if self._database.is_closed:
            raise closed_error()
        if self._snapshot is None:
            self._snapshot = self._database.snapshot(self._statement.tables, self._deadline, self._statement.iterations)
        return self._snapshot


def unique_names(columns: Sequence[str]) -> list[str]:
    """The names, with a number added to each that is repeated."""
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
                "`fetchall()` and iterating need no package."
            ) from error


def _cell(value: Any) -> str:
    return escape_line(str(value))
