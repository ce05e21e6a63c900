"""The second wall around SQL: an engine that can open no file but the tables' own, and no network."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rolltrace.errors import InputError
from rolltrace.query.tables import literal
from rolltrace.query.views import Parts, create_views

if TYPE_CHECKING:
    import duckdb

MEMORY = "2GB"
"""How much memory a statement may take before it uses the disk."""

Given = TypeVar("Given")


def connect(private: Path, memory: str = MEMORY) -> "duckdb.DuckDBPyConnection":
    """A database of its own, in memory, that downloads nothing and sees no variable of the program."""
    import duckdb

    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": memory,
            "temp_directory": str(private / "spill"),  # the engine may read and write there, whatever it is told
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
        },
    )


class Engine:
    """Tables of fixed parts, locked: it reads the parts, and nothing else can be opened or set."""

    def __init__(self, runs: Sequence[Parts], private: Path, memory: str = MEMORY) -> None:
        self._connection = connect(private, memory)
        paths = sorted({str(part.path) for parts in runs for table in parts.values() for part in table})
        self._connection.execute(f"set allowed_paths = [{', '.join(map(literal, paths))}]")
        self._connection.execute("set enable_external_access = false")
        self._connection.execute("set lock_configuration = true")
        create_views(self._connection, runs)

    def cursor(self) -> "duckdb.DuckDBPyConnection":
        """A cursor of its own for one statement."""
        return self._connection.cursor()

    def close(self) -> None:
        """Give back the memory; cursors that are still open go on."""
        self._connection.close()


def within(timeout: float | None, cursor: "duckdb.DuckDBPyConnection", work: Callable[[], Given]) -> Given:
    """Do something with a cursor; what takes longer than `timeout` seconds is given up with an error."""
    import duckdb

    if timeout is None:
        return work()
    timer = threading.Timer(timeout, cursor.interrupt)
    timer.start()
    try:
        return work()
    except duckdb.InterruptException as error:
        raise InputError(f"The statement took longer than {timeout:g} seconds: ask for less of it.") from error
    finally:
        timer.cancel()
