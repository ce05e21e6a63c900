"""Connections to the engine that makes tables and to those that answer, within limits, and after a fork."""

import contextlib
import ctypes
import os
import re
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltrace.errors import InputError

if TYPE_CHECKING:
    import duckdb

MEMORY = "2GB"
"""How much memory statements may take before they use the disk."""
THREADS = 2
"""How many threads work for statements: a program that asks has other things to do, too."""
MAX_SPILL = "20GB"
"""How much of the disk a statement may use."""

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS_TO_CLOSE = 10.0
_opened: "weakref.WeakSet[Any]" = weakref.WeakSet()


class EngineLimits:
    """What the engines of one database may take together."""

    def __init__(self, memory: str = MEMORY, threads: int = THREADS) -> None:
        matched = re.fullmatch(r"(\d{1,6})\s?(KB|MB|GB|TB|KiB|MiB|GiB|TiB)", memory)
        if matched is None:
            raise InputError(f"Expected an amount of memory such as 2GB, got {memory!r}.")
        if threads < 1:
            raise InputError(f"Expected at least one thread, got {threads}.")
        self.memory = int(matched[1]) * (_UNITS | _BINARY_UNITS)[matched[2]]
        """In bytes."""
        self.threads = threads


def connect(private: Path, limits: EngineLimits) -> "duckdb.DuckDBPyConnection":
    """A database of its own, in memory, that downloads nothing and sees no variable of the program."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            # One makes tables and one answers: each has half.
            "memory_limit": f"{max(limits.memory // 2048, 1)}KiB",
            "threads": str(limits.threads),
            "temp_directory": str(private / "spill"),  # the engine may read and write there, whatever it is told
            "max_temp_directory_size": MAX_SPILL,
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
            "python_scan_all_frames": "false",
        },
    )
    connection.execute("set global TimeZone = 'UTC'")  # as the tables' times are, wherever the reader lives
    _opened.add(connection)
    return connection


def new_cursor(connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyConnection":
    """Another connection to the same database, for another thread or statement."""
    cursor = connection.cursor()
    _opened.add(cursor)
    return cursor


def close_connections(connections: "Sequence[duckdb.DuckDBPyConnection]") -> None:
    """Close connections; what is being done with one is interrupted."""
    import duckdb

    until = time.monotonic() + _SECONDS_TO_CLOSE
    for connection in connections:
        while True:
            try:
                connection.close()
                break
            except duckdb.ResourceInUseException:
                if time.monotonic() > until:  # whoever holds it closes it
                    break
                with contextlib.suppress(duckdb.Error):
                    connection.interrupt()
                time.sleep(0.001)
            except duckdb.Error:
                break


def _keep_inherited() -> None:
    """In a forked process: never destroy what only its parent has threads for, which would end the process."""
    for connection in list(_opened):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _opened.clear()


os.register_at_fork(after_in_child=_keep_inherited)
