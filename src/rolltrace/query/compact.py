"""Compaction: seals the segments that no longer grow, and makes each table one Parquet file."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.errors import InputError, StorageError
from rolltrace.query.build import copy, ranges_between, read_files
from rolltrace.query.clock import Clock
from rolltrace.query.database import Database
from rolltrace.query.latest import select_latest_rewards
from rolltrace.query.parts import CACHE, Label, Part, Ranges, parquet_files, remove_others
from rolltrace.query.rows import Facts
from rolltrace.query.state import RunTables
from rolltrace.query.statement import explained_error
from rolltrace.query.tables import RAW
from rolltrace.query.views import groups_of, unshared_groups
from rolltrace.store.files import SegmentEntry, scan_segments
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.reader import RunReader
from rolltrace.store.run_file import refuse_link
from rolltrace.store.sealed import seal_file

if TYPE_CHECKING:
    import duckdb


_MOST_TRIES = 5


class Compaction(msgspec.Struct, frozen=True):
    """What compacting did."""

    sealed: int
    """Segments that were sealed."""
    rows: dict[str, int]
    """By table, the rows of its file."""
    bytes: int
    """The size of the Parquet files."""


def compact(path: str | Path) -> Compaction:
    """Seal what no longer grows and make one Parquet file of each table, so that questions are answered at once."""
    reader = RunReader(path)
    for folder in (ROLLOUTS, SCORES, CACHE):
        refuse_link(reader.path / folder)
    sealed = sum(map(_seal, closed_segments(reader)))
    existing = parquet_files(reader.path)
    database = Database([reader])
    try:
        parts = _Compactor(database.runs[0], database.connection).compact_what_is_there()
    finally:
        database.close()
    _check_kept(parts, reader.path)
    remove_others([part.path for part in parts], existing)
    rows = {part.label.table: part.label.facts.rows for part in parts}
    return Compaction(sealed, rows, sum(map(_size, parts)))


def closed_segments(reader: RunReader) -> list[Path]:
    """Plain segments that no longer grow: of sessions that were closed, or that have begun a later one.

    A file of a session that has no ledger is not the run's, and is left as it is.
    """
    ledgers = reader.ledgers()
    found = []
    for folder in (ROLLOUTS, SCORES):
        entries = [entry for entry in _segments(reader.path / folder) if entry.name is not None]
        last = {entry.name.session: entry.name.sequence for entry in entries if entry.name}  # they are in order
        found += [
            entry.path
            for entry in entries
            if entry.name and entry.is_regular and not entry.is_sealed and entry.name.session in ledgers
            if ledgers[entry.name.session].closed or entry.name.sequence < last[entry.name.session]
        ]
    return found


def _segments(folder: Path) -> list[SegmentEntry]:
    try:
        return scan_segments(folder)
    except OSError:
        return []


def _size(part: Part) -> int:
    try:
        return part.path.stat().st_size
    except FileNotFoundError:  # another compaction made a newer one
        return 0


def _seal(path: Path) -> bool:
    try:
        seal_file(path)
    except (OSError, InputError):  # it stays as it is, and is read as it is
        return False
    return True


def _check_kept(parts: list[Part], run: Path) -> None:
    if any(part.path.parent != run / CACHE for part in parts):
        raise StorageError(f"Expected to write into {run / CACHE}, and cannot: is it read-only, or the disk full?")


class _Compactor:
    def __init__(self, run: RunTables, connection: "duckdb.DuckDBPyConnection") -> None:
        self._run = run
        self._connection = connection

    def compact_what_is_there(self) -> list[Part]:
        """As `compact`; again, where another compaction has meanwhile removed what this one was reading."""
        import duckdb

        # Who wants an order asks for one, and to keep one while copying takes as much memory as there are rows.
        self._connection.execute("set preserve_insertion_order = false")
        for _ in range(_MOST_TRIES):
            try:
                return self.compact()
            except duckdb.Error as error:
                if not self._run.drop_unsound():
                    raise explained_error(error) from error
        raise StorageError(f"Expected to compact {self._run.run}, and files of its cache vanished again and again.")

    def compact(self) -> list[Part]:
        """One part of each table, in the run's cache; one that stands for lines without rows of it is empty."""
        self._run.refresh(RAW, Clock())
        if self._run.drop_unsound():
            self._run.refresh(RAW, Clock())
        tables = [table for table in RAW if self._run.covered[table]]
        parts = [self._compacted(table) for table in tables]
        return [*parts, *(self._grouped(part) for part in parts if part.label.table == "rollouts")]

    def _grouped(self, rollouts: Part) -> Part:
        """The groups of the compacted rollouts."""
        for part in self._run.group_parts():
            if part.label.ranges == rollouts.label.ranges and part.label.scores == rollouts.label.scores:
                return part
        query = groups_of(unshared_groups(rollouts))
        counted = self._connection.execute(f"select count(*) from ({query})").fetchone()
        label = Label(
            table="groups",
            ranges=rollouts.label.ranges,
            facts=Facts(rows=counted[0] if counted else 0),
            scores=rollouts.label.scores,
        )
        path = self._run.private_path("groups")
        copy(self._connection, query, path, label)
        return self._run.keep(Part(path, label))

    def _compacted(self, table: str) -> Part:
        parts = self._run.parts[table]
        if len(parts) == 1 and parts[0].path.parent == self._run.run / CACHE and self._is_fresh(parts[0]):
            return parts[0]
        if table == "rollouts":
            return self._run.keep(self._merged_rollouts(parts))
        return self._run.keep(self._run.merge(table, parts, self._ranges(table)))

    def _ranges(self, table: str) -> Ranges:
        return ranges_between({}, self._run.covered[table])

    def _is_fresh(self, part: Part) -> bool:
        """Whether nothing was written since that it does not stand for."""
        covers_all = part.label.ranges == self._ranges(part.label.table)
        scores = self._run.covered["scores"]
        return covers_all and (part.label.table != "rollouts" or part.label.scores == scores)

    def _merged_rollouts(self, parts: list[Part]) -> Part:
        """Rollouts with the rewards that scores gave them, as far as scores were read."""
        scores = [part for part in self._run.parts["scores"] if part.label.facts.rewards]
        covered = self._run.covered
        if not scores:
            return self._run.merge("rollouts", parts, self._ranges("rollouts"), covered["scores"])
        latest = select_latest_rewards(read_files(part.path for part in scores))
        self._connection.execute(f"create or replace temp table latest as {latest}")
        return self._run.merge("rollouts", parts, self._ranges("rollouts"), covered["scores"], "latest")
