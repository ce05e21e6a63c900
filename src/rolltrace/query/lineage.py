"""Which sessions of a run supersede which, read again when its ledgers change."""

import os
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from rolltrace.query.parquet_parts import ParquetPart
from rolltrace.query.parquet_writer import parquet_source
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.layout import LEDGER
from rolltrace.store.ledger import Ledger
from rolltrace.store.reader import RunReader
from rolltrace.store.sessions import Sessions, Span

if TYPE_CHECKING:
    import duckdb

_NONE = Sessions(())


class SessionHistory:
    """The sessions of one run, for its tables."""

    def __init__(self, reader: RunReader, connection: "duckdb.DuckDBPyConnection") -> None:
        self._reader = reader
        self._connection = connection
        self._stamp: tuple[tuple[str, int, int], ...] | None = None
        self._ledgers: tuple[Ledger, ...] = ()

    def sessions(self, parts: Sequence[ParquetPart]) -> Sessions:
        """Those of the run, where the rollouts of these parts are of more than one."""
        names = set().union(*(part.label.facts.sessions for part in parts))
        if len(names) < 2:
            return _NONE
        sessions = Sessions(self._read())
        without = sessions.unknown(names)
        return Sessions(self._ledgers, self._spans(parts, without)) if without else sessions

    def _read(self) -> Iterable[Ledger]:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp, self._ledgers = stamp, tuple(self._reader.ledgers().values())
        return self._ledgers

    def _look(self) -> tuple[tuple[str, int, int], ...]:
        """What changes when a ledger does."""
        found = []
        try:
            with os.scandir(self._reader.path / LEDGER) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
        except OSError:
            return ()
        return tuple(sorted(found))

    def _spans(self, parts: Sequence[ParquetPart], sessions: set[str]) -> dict[str, Span]:
        """When the sessions without a ledger played, as their rollouts tell."""
        named = ", ".join(map(sql_literal, sessions))
        rows = self._connection.execute(f"""
            select session, min(started_at), max(ended_at) from {parquet_source(part.path for part in parts)}
            where session in ({named}) group by session
        """).fetchall()
        return {session: (first.replace(tzinfo=UTC), last.replace(tzinfo=UTC)) for session, first, last in rows}
