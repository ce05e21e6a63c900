"""The tables of one or several runs: reads new lines, and makes the snapshots that statements run on."""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rolltrace.errors import QueryTimeoutError, StorageError
from rolltrace.query.deduplication import NO_SESSIONS, DistinctParts, RepeatedSlots
from rolltrace.query.duckdb_engine import (
    CLOSE_TIMEOUT_SECONDS,
    INTERRUPT_INTERVAL_SECONDS,
    EngineLimits,
    QueryDeadline,
    SqlSandbox,
    TableSnapshot,
    close_connections,
    closed_error,
    connect,
    new_cursor,
    raising_interrupts,
    snapshot_inputs,
)
from rolltrace.query.lost_lines import RepeatedLines, count_lines, missing_lines, repeated_lines
from rolltrace.query.part_writer import parquet_source
from rolltrace.query.run_state import SessionState, session_state
from rolltrace.query.run_tables import OnCoverage, RunTables
from rolltrace.query.small_tables import small_part, small_rows
from rolltrace.query.sql_check import Parameters, Statement, check_expressions, check_statement, sql_error
from rolltrace.query.table_schema import (
    FINISHED,
    SMALL_TABLES,
    STORED_COLUMNS,
    TABLE_INPUTS,
    TABLES_OF_KIND,
    TEXTS,
    folders_of,
    sql_literal,
)
from rolltrace.query.views import RunParts
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES
from rolltrace.store.ledger import Ledger
from rolltrace.store.object_files import listed_at_once
from rolltrace.store.parts import Bounds, ParquetPart
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import FileEntry
from rolltrace.store.sessions import RolloutTime, Sessions
from rolltrace.temp_folders import explain_full_disk, make_folder, remove_folder

if TYPE_CHECKING:
    import duckdb

Made = TypeVar("Made")

_MAX_TRIES = 10
"""How often tables are made again because files of them were deleted or damaged meanwhile."""
_SMALL = "small"
_MAX_CHECKED = 200
_MAX_CHECKED_LENGTH = 20_000


class Database:
    """The tables of some runs, in one process. Any thread may call it."""

    def __init__(
        self,
        readers: Sequence[RunReader],
        limits: EngineLimits | None = None,
        *,
        partial: bool = False,
        on_progress: OnCoverage | None = None,
        revision: Callable[[], object] = object,
    ) -> None:
        self.process = os.getpid()
        self.is_closed = False
        self._private = make_folder()
        self._remove = weakref.finalize(self, _remove, self._private, self.process)
        self._limits = limits or EngineLimits()
        self._lock = threading.Lock()
        self._deadline = QueryDeadline()
        """That of the statement whose tables are being made."""
        self._maker: int | None = None
        """The thread that makes them."""
        self._checking = threading.Lock()
        self.connection = connect(self._private, self._limits)
        """Makes the tables. It never runs SQL of users."""
        self._checked: dict[str, Statement] = {}
        self._checker = new_cursor(self.connection)
        self._readers = readers
        self.version = 0
        """Increases whenever something was added that processes have read."""
        self._held: list[list[ReadError]] | None = None
        """If statements answer from the tables as they are, and read nothing new: the losses in these."""
        self.runs = [
            RunTables(reader, self._private / str(number), self.connection, partial, on_progress, revision)
            for number, reader in enumerate(readers)
        ]
        self._known: list[dict[str, list[ParquetPart]]] = [{} for _ in readers]
        self._session_caches = [_SessionCache(reader, self.connection) for reader in readers]
        self._sessions = [NO_SESSIONS for _ in readers]
        self._sandbox: SqlSandbox | None = None
        self._snapshots: dict[str, TableSnapshot] = {}
        self._whole: set[str] = set()
        """Tables of which all files were read once."""
        self._alive: weakref.WeakSet[TableSnapshot] = weakref.WeakSet()
        distinct = [DistinctParts(run.cache_folders, one.info.id) for run, one in zip(self.runs, readers, strict=True)]
        found = list(zip(self.runs, distinct, strict=True))
        self._repeated = [RepeatedLines(self.connection, run.private_path, one) for run, one in found]
        self._slots = [RepeatedSlots(self.connection, run.private_path, one) for run, one in found]
        self._small: dict[tuple[int, str], tuple[list[dict[str, Any]], ParquetPart]] = {}

    @property
    def coverage(self) -> float:
        """Which part of the runs the tables cover, from 0 to 1."""
        return sum(run.coverage for run in self.runs) / len(self.runs)

    @property
    def is_unfinished(self) -> bool:
        """Whether processes still read lines, or late rewards are left to be stored."""
        return any(run.pending_tables or run.lacks_rewards for run in self.runs)

    @property
    def pending_tables(self) -> set[str]:
        """Tables of which processes still read lines, those of texts only if they read these alone."""
        return set().union(*(run.pending_tables for run in self.runs))

    def continue_reading(self) -> None:
        """Use what processes have made by now, and store some late rewards."""
        deadline = QueryDeadline()

        def read() -> None:
            for run in self.runs:
                run.expect_changes()
                run.refresh({ROLLOUTS, SCORES} | run.pending_tables, deadline)

        self.retry_damaged(read, deadline)

    @property
    def is_incomplete(self) -> bool:
        """Whether something of the tables could not be read the last time."""
        return any(run.incomplete for run in self.runs)

    def hold(self) -> None:
        """Read the tables, and let all statements from now on answer from them."""
        ledgers, deadline = self._ended_ledgers(), QueryDeadline()
        self.snapshot(frozenset({SCORES}), deadline)
        self._held = []  # from now on only folders are read that were not: rollouts, after all scores about them
        self.snapshot(frozenset({ROLLOUTS}), deadline)
        self._held = self._losses(ledgers)

    def find_losses(self) -> list[list[ReadError]]:
        """For each run, lines of the tables read so far that repeat others, or were recorded and cannot be read."""
        if self._held is not None:
            return self._held
        ledgers = [] if self.is_closed else self._ended_ledgers()
        losses = self._losses(ledgers)
        if any(error.kind is ReadErrorKind.MISSING for own in losses for error in own):
            # Or written, by a session that was closed since the tables were read.
            for run in self.runs:
                run.expect_changes()
            self.snapshot(frozenset({ROLLOUTS}), QueryDeadline())
            losses = self._losses(ledgers)
        return losses

    def _ended_ledgers(self) -> list[list[Ledger]]:
        """For each run, the last ledgers of the sessions that are not running."""
        return [
            [ledger for ledger in cache.ledgers() if session_state(ledger) is not SessionState.RUNNING]
            for cache in self._session_caches
        ]

    def _losses(self, ledgers: Sequence[Sequence[Ledger]]) -> list[list[ReadError]]:
        """For each run, lines that repeat others, and, if all was read, those that the ledgers count besides."""
        losses = [repeated_lines(repeated.files) for repeated in self._repeated]
        if self.is_closed or self.coverage < 1.0:
            return losses
        for number, (run, reader) in enumerate(zip(self.runs, self._readers, strict=True)):
            files = run.line_counts()
            files.subtract(self._repeated[number].copies)
            losses[number] += missing_lines(ledgers[number], count_lines(files), reader.read_errors, run.parts)
        return losses

    def check(self, sql: str, parameters: Parameters = None) -> Statement:
        """Check that a statement is allowed. Those that a page repeats are checked once."""
        with self._checking:
            if parameters is not None or len(sql) > _MAX_CHECKED_LENGTH:
                return check_statement(sql, self._checker, parameters)
            if len(self._checked) >= _MAX_CHECKED:
                self._checked.clear()
            if sql not in self._checked:
                self._checked[sql] = check_statement(sql, self._checker)
            return self._checked[sql]

    def check_expressions(self, table: str, where: str | None, order_by: str | None) -> Statement:
        """A statement for the locations of a table's lines."""
        with self._checking:
            return check_expressions(table, where, order_by, self._checker)

    def snapshot(
        self, tables: frozenset[str], deadline: QueryDeadline, iterations: Bounds | None = None
    ) -> TableSnapshot:
        """These tables, up to date; rows of other iterations than these may be missing."""
        inputs = {name for table in tables for name in TABLE_INPUTS[table]}
        return self.retry_damaged(lambda: self._current_snapshot(inputs, deadline, iterations), deadline)

    def retry_damaged(self, make: Callable[[], Made], deadline: QueryDeadline) -> Made:
        """Make tables under the lock; again, if a file of them was deleted or damaged meanwhile."""
        import duckdb

        with raising_interrupts(), explain_full_disk(), self._making(deadline):
            for _ in range(_MAX_TRIES):
                try:
                    return make()
                except duckdb.InterruptException:
                    deadline.check()
                    raise
                except duckdb.Error as error:
                    if not self._drop_damaged():
                        raise sql_error(error) from error
        raise StorageError("Cannot make the tables: files of the cache are being deleted or damaged repeatedly. Retry.")

    def recover(self, error: "duckdb.Error", snapshot: TableSnapshot) -> None:
        """Return if retrying may help, because a file of the tables was deleted or damaged. Raise otherwise."""
        if snapshot.is_closed or self.is_closed:
            raise closed_error() from error
        with self._lock:
            if _is_fatal(error) and snapshot.sandbox is self._sandbox:
                self._drop_sandbox()
            if _may_be_file_error(error, snapshot) and not all(part.is_intact for part in snapshot.parts):
                self._drop_damaged()
                return
        raise sql_error(error) from error

    def close(self) -> None:
        """Close all connections and remove temporary files. In a forked process, do nothing."""
        if self.process != os.getpid():
            return
        self.is_closed = True
        is_locked = False
        try:
            is_locked = self._stop_making()
        finally:  # also after another Ctrl-C
            for snapshot in list(self._alive):
                snapshot.close()
                snapshot.sandbox.close()
            self._drop_sandbox()
            for run in self.runs:
                run.close()
            close_connections([self._checker, self.connection])
            self._remove()
            if is_locked:
                self._lock.release()

    def _stop_making(self) -> bool:
        """Stop the thread that makes tables, and lock others out; False if it does not stop soon, or is this one."""
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        while not self._lock.acquire(timeout=INTERRUPT_INTERVAL_SECONDS):
            if self._maker == threading.get_ident() or time.monotonic() > give_up_at:
                return False
            self._deadline.cancel(closed_error())
            self.connection.interrupt()
        return True

    @contextlib.contextmanager
    def _making(self, deadline: QueryDeadline) -> Iterator[None]:
        """Hold the lock that only one thread may make tables under, until the deadline at most."""
        with deadline.limit(lambda: None):  # until then, the connection works for another statement
            remaining = deadline.remaining
            if not self._lock.acquire(timeout=-1 if remaining is None else remaining):
                deadline.check()
                raise QueryTimeoutError("Other statements took too long to make tables: retry.")
        try:
            if self.is_closed:
                raise closed_error()
            self._deadline, self._maker, pending = deadline, threading.get_ident(), self._pending_files()
            try:
                with deadline.limit(self.connection.interrupt):
                    yield
            except Exception as error:
                if self.is_closed:  # by this thread itself, or by one that stopped waiting for it
                    raise closed_error() from error
                raise
            finally:
                self._maker = None
                if pending - self._pending_files():
                    self.version += 1
        finally:
            self._lock.release()

    def _pending_files(self) -> set[tuple[int, str, str]]:
        """The files of each run that processes still read for some kind of table."""
        return {(number, *file) for number, run in enumerate(self.runs) for file in run.pending_files}

    def _drop_damaged(self) -> bool:
        if not sum(run.drop_damaged() for run in self.runs):  # not `any`: call it for every run
            return False
        self._drop_sandbox()  # a new snapshot must not reuse tables whose files may be deleted, too
        return True

    def _drop_sandbox(self) -> None:
        """Use a new sandbox from now on; snapshots in the old one end with the results that are read from them."""
        self._sandbox, self._snapshots = None, {}

    def _current_snapshot(
        self, needed: set[str], deadline: QueryDeadline, iterations: Bounds | None = None
    ) -> TableSnapshot:
        if needed <= self._whole:  # all of their files are verified, and the engine skips what is not needed
            iterations = None
        kind = _snapshot_kind(needed) if needed else next(iter(self._snapshots), _SMALL)
        snapshot = self._snapshots.get(kind) if iterations is None else None
        # The tables of earlier statements stay, and are refreshed, because a part of them may have been replaced.
        is_small = kind == _SMALL
        used = set() if snapshot is None else {name for name in snapshot.inputs if is_small == (name in SMALL_TABLES)}
        count_finished = cache(partial(self._count_finished, deadline))  # once for all runs
        with listed_at_once((reader.files for reader in self._readers), folders_of(needed | used)):
            for number in range(len(self.runs)):
                self._refresh(number, needed | used, deadline, count_finished, iterations)
        if iterations is not None:
            return self._make_snapshot(needed)
        self._whole |= needed
        current = snapshot_inputs([{table: known[table] for table in needed} for known in self._known], self._sessions)
        if snapshot is None or any(snapshot.inputs.get(table) != files for table, files in current.items()):
            self._snapshots.pop(kind, None)
            snapshot = None  # so that files that only it used are removed
            snapshot = self._snapshots[kind] = self._make_snapshot(needed | used)
        return snapshot

    def _make_snapshot(self, tables: set[str]) -> TableSnapshot:
        tables = tables | {"repeated", "slots"}
        runs: list[RunParts] = [{table: known.get(table, []) for table in tables} for known in self._known]
        if self._sandbox is None:
            caches = {folder for run in self.runs for folder in run.cache_folders}
            self._sandbox = SqlSandbox(self._private, caches, self._limits)
        snapshot = TableSnapshot(runs, self._sessions, self._sandbox)
        self._alive.add(snapshot)
        used = {part.path for one in self._alive for part in one.parts}
        used |= {part.path for _, part in self._small.values()}
        used |= {part.path for known in self._known for table in ("repeated", "slots") for part in known.get(table, ())}
        used |= {path.parent for path in used}
        for run in self.runs:
            run.remove_unused(used)
        return snapshot

    def _refresh(
        self,
        number: int,
        needed: set[str],
        deadline: QueryDeadline,
        count_finished: Callable[[], list[int]],
        iterations: Bounds | None,
    ) -> None:
        run, known = self.runs[number], self._known[number]
        run.refresh(sorted(needed & set(STORED_COLUMNS)), deadline, reads=self._held is None, iterations=iterations)
        for folder, parts in run.parts.items():
            self._repeated[number].update(folder, parts)
        known["repeated"] = self._repeated[number].parts
        for table in needed & set(STORED_COLUMNS):
            known[table] = run.table_parts(table, iterations)
        if "rollouts" in needed:
            self._sessions[number] = self._session_caches[number].sessions(known["rollouts"])
            self._slots[number].update(known["rollouts"])
            known["slots"] = self._slots[number].parts
        for table in needed & set(SMALL_TABLES):
            known[table] = [self._small_part(number, table, count_finished)]

    def _small_part(self, number: int, table: str, count_finished: Callable[[], list[int]]) -> ParquetPart:
        """The rows of a small table; the same file as before if they did not change."""
        rows = small_rows(self._readers[number], table, lambda: count_finished()[number])
        cached = self._small.get((number, table))
        if cached is None or cached[0] != rows:
            path = self.runs[number].private_path(table).with_suffix(".parquet")
            cached = self._small[number, table] = rows, small_part(rows, table, path, self.connection)
        return cached[1]

    def _count_finished(self, deadline: QueryDeadline) -> list[int]:
        """How many episodes of each run are finished, by its tables."""
        cursor = self._current_snapshot({"rollouts", "scores"}, deadline).cursor()
        rows = cursor.execute(f"select run, count(*) from _everything where {FINISHED} group by run").fetchall()
        if len(self.runs) == 1:
            return [sum(count for _, count in rows)]
        return [dict(rows).get(reader.info.id, 0) for reader in self._readers]


class _SessionCache:
    """The sessions of one run, for its tables; read again when a ledger changes."""

    def __init__(self, reader: RunReader, connection: "duckdb.DuckDBPyConnection") -> None:
        self._reader = reader
        self._connection = connection
        self._stamp: list[FileEntry] | None = None
        """The names, sizes and times of the ledger files, which change when a ledger is written."""
        self._ledgers: tuple[Ledger, ...] = ()

    def sessions(self, parts: Sequence[ParquetPart]) -> Sessions:
        """The sessions of the run; empty if the rollouts of these parts are all of one session."""
        names = set().union(*(part.info.stats.sessions for part in parts))
        if len(names) < 2:
            return NO_SESSIONS
        sessions = Sessions(self.ledgers())
        without_ledger = sessions.unknown(names)
        return Sessions(self._ledgers, self._rollout_times(parts, without_ledger)) if without_ledger else sessions

    def ledgers(self) -> Sequence[Ledger]:
        """The last ledger of each session."""
        stamp = self._reader.files.existing(LEDGER)
        if stamp != self._stamp:
            failures = self._reader.errors.failures
            self._ledgers = tuple(self._reader.ledgers().values())
            self._stamp = stamp if self._reader.errors.failures == failures else None
        return self._ledgers

    def _rollout_times(self, parts: Sequence[ParquetPart], sessions: set[str]) -> list[RolloutTime]:
        """When the first rollout of each of these sessions started, and its last one ended."""
        names = ", ".join(map(sql_literal, sessions))
        rows = self._connection.execute(f"""
            select session, min(started_at), max(ended_at) from {parquet_source(part.path for part in parts)}
            where session in ({names}) group by session
        """).fetchall()
        return [(session, first.replace(tzinfo=UTC), last.replace(tzinfo=UTC)) for session, first, last in rows]


def _snapshot_kind(tables: set[str]) -> str:
    """Which snapshot a statement over these tables runs on, so that no others are made.

    Small tables have one because ledgers change all the time, and texts because they take long.
    """
    if tables <= set(SMALL_TABLES):
        return _SMALL
    return TEXTS if tables & {*TABLES_OF_KIND[TEXTS]} else ROLLOUTS


def _is_fatal(error: "duckdb.Error") -> bool:
    import duckdb

    return isinstance(error, duckdb.FatalException | duckdb.InternalException)


def _may_be_file_error(error: "duckdb.Error", snapshot: TableSnapshot) -> bool:
    """Whether an error may come from a file of the tables: by its type, or because it names one."""
    import duckdb

    kinds = (duckdb.IOException, duckdb.SerializationException, duckdb.FatalException, duckdb.InternalException)
    if isinstance(error, kinds) or type(error) is duckdb.Error:
        return True
    message = str(error)
    return any(str(part.path) in message for part in snapshot.parts)


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # not when a forked process ends
        remove_folder(folder)
