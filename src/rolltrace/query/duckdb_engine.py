"""DuckDB engines: bounded in memory, threads and time, and locked if they run SQL of users."""

import contextlib
import ctypes
import gc
import itertools
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltrace.errors import InputError, QueryTimeoutError
from rolltrace.query.table_schema import sql_literal
from rolltrace.query.views import RunParts, create_views
from rolltrace.store.parts import ParquetPart
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

MEMORY = "2GB"
"""How much memory statements may use before they spill to disk."""
THREADS = 2
"""How many threads run statements; the rest of the machine is left to the program."""
MAX_SPILL = "20GB"
"""How much disk space a statement may use."""

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
CLOSE_TIMEOUT_SECONDS = 10.0
INTERRUPT_INTERVAL_SECONDS = 0.02
"""How often a statement that timed out is interrupted: an interrupt before it has started has no effect."""
_connections: "weakref.WeakSet[Any]" = weakref.WeakSet()


class EngineLimits:
    """What the engines of one database may use together."""

    def __init__(self, memory: str = MEMORY, threads: int = THREADS) -> None:
        amount = re.fullmatch(r"(\d{1,6})\s?(KB|MB|GB|TB|KiB|MiB|GiB|TiB)", memory)
        if amount is None:
            raise InputError(f"Expected an amount of memory such as 2GB, got {memory!r}.")
        if threads < 1:
            raise InputError(f"Expected at least one thread, got {threads}.")
        self.memory = int(amount[1]) * (_UNITS | _BINARY_UNITS)[amount[2]]
        """In bytes."""
        self.threads = threads


class QueryDeadline:
    """A time-out for one statement: making its tables, running it and fetching its rows count together.

    The time that the caller takes to process the rows does not count.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._since: float | None = None
        self._error: Exception | None = None

    @property
    def remaining(self) -> float | None:
        """The seconds that are left; None without a time-out."""
        if self._seconds is None:
            return None
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return max(self._seconds - self._spent - running, 0.0)

    def cancel(self, error: Exception) -> None:
        """Let `check` raise this error from now on; any thread may call it."""
        self._error = error

    def check(self) -> None:
        """Raise if no time is left, or the statement was cancelled."""
        if self._error is not None:
            raise self._error
        if self.remaining == 0.0:
            raise QueryTimeoutError(
                f"The statement took longer than {self._seconds:g} seconds: select less, or give it more time. Making "
                "its tables takes the longest: `rolltrace compact` makes them in advance."
            )

    @contextlib.contextmanager
    def limit(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Count the time of this block. After the time-out, call `interrupt` and raise `QueryTimeoutError`."""
        self.check()
        if self._seconds is None:
            yield
            return
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(self.remaining, done, interrupt), daemon=True)
        self._since = time.monotonic()
        watcher.start()
        try:
            yield
        except Exception as error:
            if _is_interrupt(error):
                self.check()
            raise
        finally:
            done.set()
            watcher.join()
            self._spent += time.monotonic() - self._since
            self._since = None


def _watch(seconds: float, done: threading.Event, interrupt: Callable[[], None]) -> None:
    if not done.wait(seconds):
        interrupt()
        while not done.wait(INTERRUPT_INTERVAL_SECONDS):
            interrupt()


def _is_interrupt(error: Exception) -> bool:
    import duckdb

    return isinstance(error, duckdb.InterruptException)


@contextlib.contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after Ctrl-C in a statement: DuckDB raises an ordinary `RuntimeError` in its place."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def connect(private: Path, limits: EngineLimits) -> "duckdb.DuckDBPyConnection":
    """Open a new in-memory database that downloads nothing and cannot see variables of the program."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            # One engine makes tables and one answers: each gets half.
            "memory_limit": f"{max(limits.memory // 2048, 1)}KiB",
            "threads": str(limits.threads),
            "async_threads": "1",  # not 8 of each engine: a viewer has many
            "temp_directory": str(private / "spill"),  # DuckDB may read and write there even if it is locked
            "max_temp_directory_size": MAX_SPILL,
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
        },
    )
    connection.execute("set enable_progress_bar = false")
    connection.execute("set global TimeZone = 'UTC'")  # the time zone of the tables
    _connections.add(connection)
    return connection


def new_cursor(connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
    """Open another connection to the same database, for another thread or statement."""
    cursor = connection.cursor()
    _connections.add(cursor)
    return cursor


def close_connections(connections: "Sequence[duckdb.DuckDBPyConnection]") -> None:
    """Close connections; statements that run on them are interrupted."""
    import duckdb

    deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
    for connection in connections:
        while True:
            try:
                connection.close()
                break
            except duckdb.ResourceInUseException:
                if time.monotonic() > deadline:  # the thread that uses it will close it
                    break
                with contextlib.suppress(duckdb.Error):
                    connection.interrupt()
                time.sleep(0.001)
            except duckdb.Error:
                break


def _pause_collector() -> None:
    _collector_states.append(gc.isenabled())
    gc.disable()


def _resume_collector() -> None:
    if _collector_states.pop():
        gc.enable()


def _keep_inherited_connections() -> None:
    """In a forked process: never destroy connections of the parent. Their threads do not exist, so it would crash.

    What holds one indirectly (a relation, a stream of Arrow data) is often garbage that waits to be collected: the
    child leaves all garbage of the parent alone, from its first moment on.
    """
    gc.freeze()
    for connection in list(_connections):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _connections.clear()
    while _collector_states:
        _resume_collector()


_collector_states: list[bool] = []
"""For each fork that is going on, whether the garbage collector was enabled before."""
os.register_at_fork(
    before=_pause_collector, after_in_parent=_resume_collector, after_in_child=_keep_inherited_connections
)


class SqlSandbox:
    """An engine for SQL of users: it can read files in a private folder and in caches, and no other file or network.

    This is the second of two barriers; `sql_check` is the first.
    """

    def __init__(self, private: Path, caches: Iterable[Path], limits: EngineLimits) -> None:
        self._connection = connect(private, limits)
        self._numbers = itertools.count()
        self.unused_schemas: list[str] = []
        """Those of snapshots that no longer exist."""
        folders = [private, *(path.parent.resolve() / path.name for path in caches if _is_usable(path))]
        self._connection.execute(f"set allowed_directories = [{', '.join(map(sql_literal, folders))}]")
        self._connection.execute("set enable_external_access = false")
        self._connection.execute("set lock_configuration = true")

    def new_schema(self) -> str:
        """Create a schema; those that are not used any more are dropped."""
        while self.unused_schemas:
            self._connection.execute(f"drop schema {self.unused_schemas.pop()} cascade")
        schema = f"_snapshot_{next(self._numbers)}"
        self._connection.execute(f"create schema {schema}")
        return schema

    def cursor(self, schema: str) -> "duckdb.DuckDBPyConnection":
        """Open a connection whose statements see the tables of a schema."""
        cursor = new_cursor(self._connection)
        cursor.execute(f"use {schema}")
        return cursor

    def close(self) -> None:
        """Free the memory."""
        close_connections([self._connection])


def _is_usable(cache: Path) -> bool:
    """Whether DuckDB can name a cache, and would read that folder, and not one that a link in its place leads to."""
    return str(cache).encode(errors="ignore") == os.fsencode(cache) and not cache.is_symlink()


class TableSnapshot:
    """The tables of some runs at one moment, for statements of users: a schema of views over parts, in a sandbox."""

    def __init__(self, runs: Sequence[RunParts], sessions: Sequence[Sessions], sandbox: SqlSandbox) -> None:
        self.inputs = snapshot_inputs(runs, sessions)
        """By table, what it is made from; if that changes, a new snapshot is needed."""
        self.parts: tuple[ParquetPart, ...] = tuple(
            part for parts in runs for table in parts.values() for part in table
        )
        self.sandbox = sandbox
        self.is_closed = False
        self._lock = threading.RLock()
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._schema = sandbox.new_schema()
        weakref.finalize(self, sandbox.unused_schemas.append, self._schema)
        create_views(self.cursor(), runs, sessions)

    def cursor(self) -> "duckdb.DuckDBPyConnection":
        """Open a connection for one statement."""
        with self._lock:
            if self.is_closed:
                raise closed_error()
            cursor = self.sandbox.cursor(self._schema)
            self._cursors.add(cursor)
            return cursor

    def close(self) -> None:
        """Close its connections; statements that are running are interrupted."""
        with self._lock:
            self.is_closed = True
            close_connections([*self._cursors])


def snapshot_inputs(runs: Sequence[RunParts], sessions: Sequence[Sessions]) -> dict[str, tuple[object, ...]]:
    """By table, the files of all runs and, for rollouts, which session supersedes which."""
    tables = set().union(*runs)
    inputs: dict[str, tuple[object, ...]] = {
        table: tuple(part.path for parts in runs for part in parts.get(table, ())) for table in tables
    }
    if "rollouts" in inputs:
        inputs["rollouts"] += tuple(one.fingerprint for one in sessions)
    return inputs


def closed_error() -> InputError:
    """The error for using a run that was closed."""
    return InputError("Expected an open run, got one that was closed: fetch all rows of a result before closing it.")
