"""Statements over one run or many: reads what is new, makes the tables that a statement names, and runs it."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.errors import QueryTimeoutError
from rolltrace.query.clock import Clock
from rolltrace.query.connection import Limits, close, connect, more
from rolltrace.query.engine import Engine, closed_error, made_from
from rolltrace.query.lineage import Lineage
from rolltrace.query.parameters import Parameters
from rolltrace.query.parts import Part, is_sound
from rolltrace.query.small import small_part, small_rows
from rolltrace.query.state import RunTables
from rolltrace.query.statement import Statement, check_expressions, check_statement, explained_error
from rolltrace.query.tables import FINISHED, NEEDS, RAW, SMALL
from rolltrace.query.views import Parts
from rolltrace.store.problems import Problems
from rolltrace.store.reader import RunReader
from rolltrace.store.sessions import Sessions
from rolltrace.temporary import make_folder, remove_folder, told_if_full

if TYPE_CHECKING:
    import duckdb


class Database:
    """The tables of some runs, for one process. Any thread may ask it."""

    def __init__(
        self, readers: Sequence[RunReader], limits: Limits | None = None, problems: Problems | None = None
    ) -> None:
        self.process = os.getpid()
        self.is_closed = False
        self._private = make_folder()
        self._remove = weakref.finalize(self, _remove, self._private, self.process)
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self.connection = connect(self._private, self._limits)
        """Makes the parts; no statement of a user's is run on it."""
        self._checker = more(self.connection)
        self._readers = readers
        self._problems = problems or Problems()
        self.runs = [self._run_tables(number, reader) for number, reader in enumerate(readers)]
        self._known: list[dict[str, list[Part]]] = [{} for _ in readers]
        self._lineages = [Lineage(reader, self.connection) for reader in readers]
        self._sessions = [Sessions(()) for _ in readers]
        self._engines: dict[bool, Engine] = {}
        self._alive: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._small: dict[tuple[int, str], tuple[bytes, Part]] = {}

    def check(self, sql: str, parameters: Parameters = None) -> Statement:
        """The statement, if it may be run."""
        with self._checking:
            return check_statement(sql, self._checker, parameters)

    def check_expressions(self, table: str, where: str | None, order_by: str | None) -> Statement:
        """A statement for the places of a table's lines."""
        with self._checking:
            return check_expressions(table, where, order_by, self._checker)

    def engine(self, tables: frozenset[str], clock: Clock) -> Engine:
        """The locked engine with these tables as they are now."""
        import duckdb

        needed = {needed for table in tables for needed in NEEDS[table]}
        with told_if_full(), self._making(clock):
            while True:
                try:
                    return self._current_engine(needed, clock)
                except duckdb.InterruptException:
                    raise
                except duckdb.Error as error:
                    if not self._drop_unsound():
                        raise explained_error(error) from error

    def recover(self, error: "duckdb.Error", engine: Engine) -> None:
        """Return where asking again may help: a part of the tables vanished or is damaged. Raise otherwise."""
        if engine.is_closed or self.is_closed:
            raise closed_error() from error
        with self._lock:
            if _breaks_the_engine(error):
                self._engines = {kind: kept for kind, kept in self._engines.items() if kept is not engine}
            if _may_blame_a_file(error, engine) and not all(is_sound(part.path) for part in engine.parts):
                self._drop_unsound()
                return
        raise explained_error(error) from error

    def close(self) -> None:
        """Give everything back; in another process than the one that opened it, nothing is there to give back."""
        if self.process != os.getpid():
            return
        self.is_closed = True
        for engine in list(self._alive):
            engine.close()
        close([self._checker, self.connection])
        self._remove()

    @contextlib.contextmanager
    def _making(self, clock: Clock) -> Iterator[None]:
        """While nobody else makes tables, and no longer than the clock allows."""
        turn = _Turn(self.connection.interrupt)
        with clock.running(turn.interrupt):
            left = clock.left
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
        if not sum(run.drop_unsound() for run in self.runs):  # of all of them
            return False
        self._engines = {}  # a new engine is not to have tables of before, whose files may be gone, too
        return True

    def _current_engine(self, needed: set[str], clock: Clock) -> Engine:
        for number in range(len(self.runs)):
            self._refresh(number, needed, clock)
        # Sessions say something all the time: what they say does not make other tables anew.
        is_small = needed <= set(SMALL) and (bool(needed) or False not in self._engines)
        engine = self._engines.get(is_small)
        current = made_from([{table: known[table] for table in needed} for known in self._known], self._sessions)
        if engine is None or any(engine.made_from.get(table) != files for table, files in current.items()):
            before = set() if engine is None else {table for table in engine.made_from if is_small == (table in SMALL)}
            engine = self._engines[is_small] = self._make_engine(needed | before)
        return engine

    def _make_engine(self, tables: set[str]) -> Engine:
        runs: list[Parts] = [{table: known[table] for table in tables} for known in self._known]
        engine = Engine(runs, self._sessions, self._private, self._limits)
        self._alive.add(engine)
        used = {part.path for one in self._alive for part in one.parts}
        used |= {part.path for _, part in self._small.values()}
        for run in self.runs:
            run.remove_unused(used)
        return engine

    def _refresh(self, number: int, needed: set[str], clock: Clock) -> None:
        run, known = self.runs[number], self._known[number]
        run.refresh(sorted(needed & set(RAW)), clock)
        known.update({table: list(run.parts[table]) for table in needed & set(RAW)})
        if "rollouts" in needed:
            self._sessions[number] = self._lineages[number].sessions(known["rollouts"])
        if "groups" in needed:
            known["groups"] = run.group_parts()
        for table in needed & set(SMALL):
            known[table] = [self._small_part(number, table, clock)]

    def _small_part(self, number: int, table: str, clock: Clock) -> Part:
        """The rows of a small table; the same file as before where they did not change."""
        rows = small_rows(self._readers[number], table, lambda: self._finished(number, clock))
        before = self._small.get((number, table))
        if before is None or before[0] != rows:
            path = self.runs[number].private_path(table)
            before = self._small[number, table] = rows, small_part(rows, table, path, self.connection)
        return before[1]

    def _finished(self, number: int, clock: Clock) -> int:
        """How many episodes of a run are finished, as its tables say."""
        engine = self._current_engine({"rollouts", "scores"}, clock)
        found = engine.cursor().execute(f"select count(*) from _run_{number} where {FINISHED}").fetchone()
        return int(found[0]) if found else 0

    def _run_tables(self, number: int, reader: RunReader) -> RunTables:
        return RunTables(
            reader.path, self._private / str(number), self.connection, reader.cursor, self._problems.report,
            reader.decode_score,
        )  # fmt: skip


class _Turn:
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


def _may_blame_a_file(error: "duckdb.Error", engine: Engine) -> bool:
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
