"""Finds duplicate rollouts: superseded and retried ones, which do not count, and those that collide.

A slot is one index of one group. A rollout without an index is in no slot, and always counts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.query.part_writer import copy_to_parquet, parquet_source
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_literal
from rolltrace.store.cache_key import read_cached, store_cached
from rolltrace.store.parts import ParquetPart, PartInfo, RowStats
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

REPEATED = "_repeated"
"""The table of the lines whose id an earlier line has, see `RepeatedLines`."""
DUPLICATES = "_duplicates"
DISTINCT_FILE = "distinct.msgpack"
"""The name of the file in a run's `cache/` that says which parts have nothing in common."""
SLOT_COLUMNS = f'"run", {GROUP_COLUMNS}, "index"'
"""The columns that are the same for all attempts at one index of a group, in all sessions."""
_COLUMNS = f"id, {SLOT_COLUMNS}, session, attempt"
NO_SESSIONS = Sessions(())
"""For a run of one session, which supersedes nothing."""


class DistinctParts:
    """In which parts of a run no id, or no slot, occurs twice. It is stored, because to compare all rows takes long."""

    def __init__(self, folders: Sequence[Path], run: str) -> None:
        self._folders = folders
        self._run = run
        self._digests = next(read_cached(folders, DISTINCT_FILE, run, dict[str, set[str]]), {})
        """By what occurs once in them, the checksums of the files."""

    def includes(self, parts: Sequence[ParquetPart], what: str) -> bool:
        """Whether each `what` is known to occur once in these parts."""
        return _digests(parts) <= self._digests.get(what, set())

    def add(self, parts: Sequence[ParquetPart], what: str) -> None:
        """Store that each `what` occurs once in these parts, unless one is private to this process."""
        digests = _digests(parts)
        if None not in digests:
            self._digests[what] = {digest for digest in digests if digest}
            store_cached(self._folders, DISTINCT_FILE, self._run, self._digests)


def _digests(parts: Sequence[ParquetPart]) -> set[str | None]:
    return {part.info.digests.get(part.path.stem) for part in parts}


class RepeatedSlots:
    """Finds the slots of one run that have several rollouts."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", new_path: Callable[[str], Path], distinct: DistinctParts
    ) -> None:
        self._connection = connection
        self._new_path = new_path
        self._distinct = distinct
        self._searched: list[Path] = []
        self.parts: list[ParquetPart] = []
        """A list of one table with the hashes of these slots, or empty. Another slot may have the same hash."""

    def update(self, parts: Sequence[ParquetPart]) -> None:
        """Search these parts, unless they are those of the last time."""
        files = [part.path for part in parts]
        if files != self._searched:
            self.parts = self._find(parts)
            self._searched = files

    def _find(self, parts: Sequence[ParquetPart]) -> list[ParquetPart]:
        sessions = set().union(*(part.info.stats.sessions for part in parts))
        may_repeat = len(sessions) > 1 or any(part.info.stats.has_retries for part in parts)
        if not may_repeat or self._distinct.includes(parts, "slots"):
            return []
        path, source = self._new_path("slots").with_suffix(".parquet"), parquet_source(part.path for part in parts)
        repeated = f"select h from {_hashed(source)} group by h having count(*) > 1"
        if count := copy_to_parquet(self._connection, repeated, path):
            return [ParquetPart(path, PartInfo(ranges={}, stats=RowStats(rows={"slots": count})))]
        self._distinct.add(parts, "slots")
        return []


def create_duplicates(
    connection: "duckdb.DuckDBPyConnection", rollouts: str, slots: Sequence[Path], sessions: Sequence[Sessions]
) -> int:
    """Create the table `DUPLICATES` of the rollouts that are superseded, retried or colliding.

    `rollouts` is SQL for those to look at, without lines that repeat others. `slots` have the hashes of the slots with
    several rollouts (see `RepeatedSlots`). `sessions` are those of each run. Returns how many rollouts are superseded.
    """
    repeated = f"{_hashed(rollouts)} semi join {parquet_source(slots)} using (h)"
    connection.execute(f"create table _rows as select {_COLUMNS} from {repeated}")
    connection.execute(f"""
        create table _slots as select {SLOT_COLUMNS}, list_sort(list(distinct session)) as sessions from _rows
        group by {SLOT_COLUMNS} having min(session) <> max(session)
    """)
    session_sets = connection.execute("select distinct sessions from _slots").fetchall()
    connection.execute(f"create table _verdicts as {_select_verdicts([names for (names,) in session_sets], sessions)}")
    connection.execute(f"create table {DUPLICATES} as {_SELECT_DUPLICATES}")
    for table in ("_rows", "_slots", "_verdicts"):
        connection.execute(f"drop table {table}")
    [(superseded,)] = connection.execute(f"select count(*) filter (superseded) from {DUPLICATES}").fetchall()
    return int(superseded)


def _hashed(source: str) -> str:
    """Rollouts that are in a slot, with the hash `h` of the slot."""
    return f'(select {_COLUMNS}, hash({SLOT_COLUMNS}) as h from {source} where "index" is not null)'


def without_repeated(source: str, is_repeated: bool) -> str:
    """The rows of a table of lines, without lines that repeat others."""
    return f"(from {source} anti join {REPEATED} using (run, _file, _offset))" if is_repeated else source


def _select_verdicts(session_sets: Sequence[Sequence[str]], sessions: Sequence[Sessions]) -> str:
    """SQL that gives, for each set of sessions that share a slot, the job of each and whether it is superseded."""
    rows = []
    for names in session_sets:
        own = next((one for one in sessions if not one.unknown(names)), NO_SESSIONS)
        superseded = own.superseded(names)
        literal = f"[{', '.join(map(sql_literal, names))}]"
        rows += [
            f"({literal}, {sql_literal(name)}, {sql_literal(own.job_of(name))}, {name in superseded})" for name in names
        ]
    return f"from (values {', '.join(rows) or '([null], null, null, false)'}) as _(sessions, session, job, superseded)"


_SAME_SLOT = " and ".join(f"s.{column} is not distinct from r.{column}" for column in SLOT_COLUMNS.split(", "))
_SELECT_DUPLICATES = f"""
    with judged as (
        select r.*, coalesce(v.job, r.session) as job, coalesce(v.superseded, false) as superseded
        from _rows r left join _slots s on {_SAME_SLOT}
        left join _verdicts v on v.sessions = s.sessions and v.session = r.session
    ), tried as (
        select *,
            coalesce(attempt < max(attempt) over (partition by {SLOT_COLUMNS}, job, superseded), false) as retried
        from judged
    ), counted as (
        select *, case when not superseded and not retried then session end as counts from tried
    ), compared as (
        select *, counts is not null and min(counts) over slots <> max(counts) over slots as collides
        from counted window slots as (partition by {SLOT_COLUMNS})
    )
    select run, id, bool_or(superseded) as superseded, bool_or(retried) as retried, bool_or(collides) as collides
    from compared where superseded or retried or collides group by run, id
"""
"""A later attempt of the same job replaces an earlier one; of what is left, different sessions collide."""
