"""What a statement gave: rows, or a frame of a library that is installed."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rolltrace.errors import InputError
from rolltrace.query.engine import within

if TYPE_CHECKING:
    import duckdb

Given = TypeVar("Given")
Row = tuple[Any, ...]

_ROWS_AT_ONCE = 1000
_ROWS_SHOWN = 20


class Result:
    """The rows of one statement. Each way to take them runs anew from the first row."""

    def __init__(
        self,
        sql: str,
        open_cursor: "Callable[[], duckdb.DuckDBPyConnection]",
        recover: "Callable[[duckdb.Error, int], None]",
        timeout: float | None = None,
    ) -> None:
        self._sql = sql
        self._open_cursor = open_cursor
        self._recover = recover
        self._timeout = timeout
        self._begun: duckdb.DuckDBPyConnection | None = self._do(lambda cursor: cursor.execute(sql))
        described = self._begun.description or []
        self.columns = tuple(str(column[0]) for column in described)
        """The names of the columns."""
        self.types = tuple(str(column[1]) for column in described)
        """Their types, as SQL names them."""

    def fetchall(self) -> list[Row]:
        """Every row."""
        return self._do(lambda cursor: self._begin(cursor).fetchall())

    def fetchone(self) -> Row | None:
        """The first row, or None where there is none."""
        return self._do(lambda cursor: self._begin(cursor).fetchone())

    def fetchmany(self, count: int) -> list[Row]:
        """The first rows."""
        return self._do(lambda cursor: self._begin(cursor).fetchmany(count))

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Each row by the names of its columns."""
        names = unique_names(self.columns)
        return (dict(zip(names, row, strict=True)) for row in self)

    def arrow(self) -> Any:
        """The rows as an Arrow table; needs pyarrow."""
        _require("pyarrow")
        return self._do(lambda cursor: cursor.sql(self._sql).to_arrow_table())

    def pandas(self) -> Any:
        """The rows as a pandas frame; needs pandas."""
        _require("pandas", "numpy")
        return self._do(lambda cursor: cursor.sql(self._sql).df())

    def polars(self) -> Any:
        """The rows as a Polars frame; needs polars and pyarrow."""
        _require("polars", "pyarrow")
        return importlib.import_module("polars").from_arrow(self.arrow())

    def __iter__(self) -> Iterator[Row]:
        given = 0
        for attempt in itertools.count(1):
            try:
                cursor = self._begin(self._open_cursor())
                while rows := within(self._timeout, cursor, partial(cursor.fetchmany, _ROWS_AT_ONCE)):
                    yield from rows
                    given += len(rows)
                return
            except _duckdb().Error as error:
                # Rows that were given cannot be taken back, and another run may order them differently.
                self._recover(error, attempt if not given else sys.maxsize)

    def __repr__(self) -> str:
        rows = self.fetchmany(_ROWS_SHOWN + 1)
        texts = [self.columns, *(tuple(map(_shown, row)) for row in rows[:_ROWS_SHOWN])]
        widths = [max(len(text[place]) for text in texts) for place in range(len(self.columns))]
        lines = ["  ".join(map(str.ljust, text, widths)).rstrip() for text in texts]
        return "\n".join(lines + ["…"] * (len(rows) > _ROWS_SHOWN))

    def _begin(self, cursor: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
        """A cursor at the first row: that of the beginning, or else the one that is given."""
        begun, self._begun = self._begun, None
        return begun or cursor.execute(self._sql)

    def _do(self, work: "Callable[[duckdb.DuckDBPyConnection], Given]") -> Given:
        """What `work` makes of a fresh cursor; where a part of the tables vanished or is damaged, of another."""
        for attempt in itertools.count(1):
            try:
                cursor = self._open_cursor()
                return within(self._timeout, cursor, partial(work, cursor))
            except _duckdb().Error as error:
                self._recover(error, attempt)
        raise AssertionError


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


def _duckdb() -> Any:
    import duckdb

    return duckdb


def _require(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise InputError(
                f"Expected {package} to be installed for this kind of frame: `pip install {package}`. "
                "`fetchall()` and iterating need nothing."
            ) from error


def _shown(value: Any) -> str:
    text = str(value)
    return ascii(text)[1:-1] if not text.isprintable() else text
