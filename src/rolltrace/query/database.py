"""Statements over one run or many: reads what is new, makes the tables that a statement names, and runs it."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import QueryTimeoutError
from rolltrace.query.deadline import QueryDeadline
from rolltrace.query.deduplication import SessionHistory
from rolltrace.query.duckdb_connection import EngineLimits, close_connections, connect, new_cursor
from rolltrace.query.parquet_parts import ParquetPart, is_intact
from rolltrace.query.small_tables import small_part, small_rows
from rolltrace.query.sql_check import Parameters, Statement, check_expressions, check_statement, sql_error
from rolltrace.query.sql_sandbox import SqlSandbox, closed_error, engine_inputs
from rolltrace.query.table_cache import RunTables
from rolltrace.query.table_schema import FINISHED, SMALL_TABLES, STORED_COLUMNS, TABLE_INPUTS
from rolltrace.query.views import RunParts
from rolltrace.store.read_errors import ReadErrors
from rolltrace.store.reader import RunReader
from rolltrace.store.sessions import Sessions
from rolltrace.temp_folders import explain_full_disk, make_folder, remove_folder

if TYPE_CHECKING:
    import duckdb


class Database:
    """The tables of some runs, for one process. Any thread may ask it."""

    def __init__(
        self, readers: Sequence[RunReader], limits: EngineLimits | None = None, problems: ReadErrors | None = None
    ) -> None:
        self.process = os.getpid()
        self.is_closed = False
        self._private = make_folder()
        self._remove = weakref.finalize(self, _remove, self._private, self.process)
        self._limits = limits or EngineLimits()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self.connection = connect(self._private, self._limits)
        """Makes the parts; no statement of a user's is run on it."""
        self._checker = new_cursor(self.connection)
        self._readers = readers
        self._problems = problems or ReadErrors()
        self.runs = [self._run_tables(number, reader) for number, reader in enumerate(readers)]
        self._known: list[dict[str, list[ParquetPart]]] = [{} for _ in readers]
        self._lineages = [SessionHistory(reader, self.connection) for reader in readers]
        self._sessions = [Sessions(()) for _ in readers]
        self._engines: dict[bool, SqlSandbox] = {}
        self._alive: weakref.WeakSet[SqlSandbox] = weakref.WeakSet()
        self._small: dict[tuple[int, str], tuple[bytes, ParquetPart]] = {}

    def check(self, sql: str, parameters: Parameters = None) -> Statement:
        """The statement, if it may be run."""
        with self._checking:
            return check_statement(sql, self._checker, parameters)

    def check_expressions(self, table: str, where: str | None, order_by: str | None) -> Statement:
        """A statement for the places of a table's lines."""
        with self._checking:
            return check_expressions(table, where, order_by, self._checker)

    def engine(self, tables: frozenset[str], clock: QueryDeadline) -> SqlSandbox:
        """The locked engine with these tables as they are now."""
        import duckdb

        needed = {needed for table in tables for needed in TABLE_INPUTS[table]}
        with explain_full_disk(), self._making(clock):
            while True:
                try:
                    return self._current_engine(needed, clock)
                except duckdb.InterruptException:
                    raise
                except duckdb.Error as error:
                    if not self._drop_unsound():
                        raise sql_error(error) from error

    def recover(self, error: "duckdb.Error", engine: SqlSandbox) -> None:
        """Return where asking again may help: a part of the tables vanished or is damaged. Raise otherwise."""
        if engine.is_closed or self.is_closed:
            raise closed_error() from error
        with self._lock:
            if _breaks_the_engine(error):
                self._engines = {kind: kept for kind, kept in self._engines.items() if kept is not engine}
            if _may_blame_a_file(error, engine) and not all(is_intact(part.path) for part in engine.parts):
                self._drop_unsound()
                return
        raise sql_error(error) from error

    def close(self) -> None:
        """Give everything back; in another process than the one that opened it, nothing is there to give back."""
        if self.process != os.getpid():
            return
        self.is_closed = True
        for engine in list(self._alive):
            engine.close()
        close_connections([self._checker, self.connection])
        self._remove()

    @contextlib.contextmanager
    def _making(self, clock: QueryDeadline) -> Iterator[None]:
        """While nobody else makes tables, and no longer than the clock allows."""
        turn = _InterruptScope(self.connection.interrupt)
        with clock.limit(turn.interrupt):
            left = clock.remaining
            if not self._lock.acquire(timeout=-1 if left is None else left):
                clock.check()
                raise QueryTimeoutError("Other statements made tables for too long: ask again.")
            try:
                if self.is_closed:
                    raise closed_error()
                with turn:
                    yield
            finally:
                self._lock.release()

    def _drop_unsound(self) -> bool:
        if not sum(run.drop_damaged() for run in self.runs):  # of all of them
            return False
        self._engines = {}  # a new engine is not to have tables of before, whose files may be gone, too
        return True

    def _current_engine(self, needed: set[str], clock: QueryDeadline) -> SqlSandbox:
        for number in range(len(self.runs)):
            self._refresh(number, needed, clock)
        # Sessions say something all the time: what they say does not make other tables anew.
        is_small = needed <= set(SMALL_TABLES) and (bool(needed) or False not in self._engines)
        engine = self._engines.get(is_small)
        current = engine_inputs([{table: known[table] for table in needed} for known in self._known], self._sessions)
        if engine is None or any(engine.inputs.get(table) != files for table, files in current.items()):
            before = (
                set() if engine is None else {table for table in engine.inputs if is_small == (table in SMALL_TABLES)}
            )
            engine = self._engines[is_small] = self._make_engine(needed | before)
        return engine

    def _make_engine(self, tables: set[str]) -> SqlSandbox:
        runs: list[RunParts] = [{table: known[table] for table in tables} for known in self._known]
        engine = SqlSandbox(runs, self._sessions, self._private, self._limits)
        self._alive.add(engine)
        used = {part.path for one in self._alive for part in one.parts}
        used |= {part.path for _, part in self._small.values()}
        for run in self.runs:
            run.remove_unused(used)
        return engine

    def _refresh(self, number: int, needed: set[str], clock: QueryDeadline) -> None:
        run, known = self.runs[number], self._known[number]
        run.refresh(sorted(needed & set(STORED_COLUMNS)), clock)
        known.update({table: list(run.parts[table]) for table in needed & set(STORED_COLUMNS)})
        if "rollouts" in needed:
            self._sessions[number] = self._lineages[number].sessions(known["rollouts"])
        if "groups" in needed:
            known["groups"] = run.group_parts()
        for table in needed & set(SMALL_TABLES):
            known[table] = [self._small_part(number, table, clock)]

    def _small_part(self, number: int, table: str, clock: QueryDeadline) -> ParquetPart:
        """The rows of a small table; the same file as before where they did not change."""
        rows = small_rows(self._readers[number], table, lambda: self._finished(number, clock))
        before = self._small.get((number, table))
        if before is None or before[0] != rows:
            path = self.runs[number].private_path(table)
            before = self._small[number, table] = rows, small_part(rows, table, path, self.connection)
        return before[1]

    def _finished(self, number: int, clock: QueryDeadline) -> int:
        """How many episodes of a run are finished, as its tables say."""
        engine = self._current_engine({"rollouts", "scores"}, clock)
        found = engine.cursor().execute(f"select count(*) from _run_{number} where {FINISHED}").fetchone()
        return int(found[0]) if found else 0

    def _run_tables(self, number: int, reader: RunReader) -> RunTables:
        return RunTables(
            reader.path, self._private / str(number), self.connection, reader.cursor, self._problems.report,
            reader.decode_score,
        )  # fmt: skip


class _InterruptScope:
    """While it lasts, what is being done may be interrupted: before and after, it is somebody else's."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._lasts = False

    def interrupt(self) -> None:
        with self._lock:
            if self._lasts:
                self._interrupt()

    def __enter__(self) -> None:
        with self._lock:
            self._lasts = True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._lasts = False


def _breaks_the_engine(error: "duckdb.Error") -> bool:
    import duckdb

    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def _may_blame_a_file(error: "duckdb.Error", engine: SqlSandbox) -> bool:
    """Whether an error can come from a file: by its kind, or because it names one. Its words may be a user's own."""
    import duckdb

    kinds = (duckdb.IOException, duckdb.SerializationException, duckdb.FatalException, duckdb.InternalException)
    if isinstance(error, kinds) or type(error) is duckdb.Error:
        return True
    message = str(error)
    return any(str(part.path) in message for part in engine.parts)


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # a forked process ends, too
        remove_folder(folder)
