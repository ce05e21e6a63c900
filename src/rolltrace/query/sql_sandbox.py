"""The second wall around SQL: an engine that can open no file but the tables' own, and no network."""

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltrace.errors import InputError
from rolltrace.query.duckdb_connection import EngineLimits, close_connections, connect, new_cursor
from rolltrace.query.parquet_parts import ParquetPart
from rolltrace.query.table_schema import sql_literal
from rolltrace.query.views import RunParts, create_views
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb


class SqlSandbox:
    """Tables of fixed parts, locked: it reads the parts, and nothing else can be opened or set.

    It lives as long as someone holds it.
    """

    def __init__(
        self, runs: Sequence[RunParts], sessions: Sequence[Sessions], private: Path, limits: EngineLimits
    ) -> None:
        self.inputs = engine_inputs(runs, sessions)
        """By table, what it is made from; when that changes, the tables are made again."""
        self.parts: tuple[ParquetPart, ...] = tuple(
            part for parts in runs for table in parts.values() for part in table
        )
        self.is_closed = False
        self._lock = threading.RLock()
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._connection = connect(private, limits)
        paths = sorted({str(part.path) for part in self.parts})
        self._connection.execute(f"set allowed_paths = [{', '.join(map(sql_literal, paths))}]")
        self._connection.execute("set enable_external_access = false")
        self._connection.execute("set lock_configuration = true")
        create_views(self._connection, runs, sessions)

    def cursor(self) -> "duckdb.DuckDBPyConnection":
        """A cursor of its own for one statement."""
        with self._lock:
            if self.is_closed:
                raise closed_error()
            cursor = new_cursor(self._connection)
            self._cursors.add(cursor)
            return cursor

    def close(self) -> None:
        """Give back the memory; statements that are running are interrupted."""
        with self._lock:
            self.is_closed = True
            close_connections([*self._cursors, self._connection])


def engine_inputs(runs: Sequence[RunParts], sessions: Sequence[Sessions]) -> dict[str, tuple[object, ...]]:
    """By table, the files of all runs and, for rollouts, which session supersedes which."""
    tables = set().union(*runs)
    found: dict[str, tuple[object, ...]] = {
        table: tuple(part.path for parts in runs for part in parts.get(table, ())) for table in tables
    }
    if "rollouts" in found:
        found["rollouts"] += tuple(one.fingerprint for one in sessions)
    return found


def closed_error() -> InputError:
    """For what was asked of a run that has been closed."""
    return InputError("Expected a run that is open, got one that was closed: take all rows of a result before that.")
