"""Statements over one run or many: reads what is new, makes the tables that a statement names, and runs it."""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import InputError
from rolltrace.query.engine import MEMORY, Engine, connect
from rolltrace.query.parts import Part
from rolltrace.query.small import small_part, small_rows
from rolltrace.query.state import RunTables
from rolltrace.query.statement import Statement, check_expressions, check_statement, explained_error
from rolltrace.query.tables import NEEDS, RAW, SMALL
from rolltrace.query.views import Parts
from rolltrace.store.problems import Problem
from rolltrace.store.reader import RunReader

if TYPE_CHECKING:
    import duckdb


class Database:
    """The tables of some runs. Any thread may ask it."""

    def __init__(self, readers: Sequence[RunReader], memory: str = MEMORY) -> None:
        self._private = Path(tempfile.mkdtemp(prefix="rolltrace-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._private, ignore_errors=True)
        self._memory = memory
        self._lock = threading.Lock()
        self.connection = connect(self._private, memory)
        """Makes the parts; no statement of a user's is run on it."""
        self._readers = readers
        self.problems: dict[Problem, None] = {}
        """What was found to be no record while tables were made, each once."""
        self.runs = [self._run_tables(number, reader) for number, reader in enumerate(readers)]
        self._needed: set[str] = set()
        self._made_from: tuple[str, ...] | None = None
        self._engine: Engine | None = None
        self._small: dict[tuple[int, str], tuple[bytes, Part]] = {}

    def check(self, sql: str) -> Statement:
        """The statement, if it may be run."""
        with self._lock:
            return check_statement(sql, self.connection)

    def check_expressions(self, table: str, where: str | None, order_by: str | None) -> Statement:
        """A statement for the places of a table's lines."""
        with self._lock:
            return check_expressions(table, where, order_by, self.connection)

    def recover(self, error: "duckdb.Error", attempt: int) -> None:
        """Return where asking again may help: a part of the cache vanished or is damaged. Raise otherwise."""
        if not _blames_a_file(error) or attempt > 2:
            raise explained_error(error) from error
        with self._lock:
            for run in self.runs:
                run.forget(uses_cache=attempt == 1)
            self._made_from = None

    def engine(self, tables: frozenset[str]) -> Engine:
        """The locked engine with these tables as they are now."""
        with self._lock:
            self._needed |= {needed for table in tables for needed in NEEDS[table]}
            runs = [self._refresh(number) for number in range(len(self.runs))]
            paths = [part.path for parts in runs for table in sorted(parts) for part in parts[table]]
            made_from = (*sorted(self._needed), *map(str, paths))
            if self._engine is None or made_from != self._made_from:
                self._engine = Engine(runs, self._private, self._memory)
                self._made_from = made_from
            return self._engine

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
            self.connection.close()
            self._remove()

    def _refresh(self, number: int) -> Parts:
        run = self.runs[number]
        run.refresh(sorted(self._needed & set(RAW)))
        parts: dict[str, list[Part]] = {table: list(run.parts[table]) for table in self._needed & set(RAW)}
        if "groups" in self._needed:
            parts["groups"] = run.group_parts()
        for table in self._needed & set(SMALL):
            parts[table] = [self._small_part(number, table)]
        return parts

    def _small_part(self, number: int, table: str) -> Part:
        """The rows of a small table; the same file as before where they did not change."""
        rows = small_rows(self._readers[number], table)
        before = self._small.get((number, table))
        if before is None or before[0] != rows:
            path = self.runs[number].private_path(table)
            before = self._small[number, table] = rows, small_part(rows, table, path, self.connection)
        return before[1]

    def _run_tables(self, number: int, reader: RunReader) -> RunTables:
        return RunTables(
            reader.path,
            self._private / str(number),
            self.connection,
            lambda folder, covered: reader.cursor(folder, covered),
            lambda problem: self.problems.setdefault(problem),
        )


def _blames_a_file(error: "duckdb.Error") -> bool:
    import duckdb

    kinds = (duckdb.IOException, duckdb.SerializationException, duckdb.InternalException, duckdb.FatalException)
    words = (".parquet", "parquet", "zstd", "corrupt", "page header", "thrift")
    return isinstance(error, kinds) or any(word in str(error).lower() for word in words)


def check_memory(memory: str) -> str:
    """An amount of memory as the engine takes it."""
    import re

    if not re.fullmatch(r"\d{1,6}\s?(KB|MB|GB|TB|KiB|MiB|GiB|TiB)", memory):
        raise InputError(f"Expected an amount of memory such as 2GB, got {memory!r}.")
    return memory
