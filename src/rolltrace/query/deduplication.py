"""Finds duplicate rollouts: superseded and retried ones, which do not count, and those that collide.

A slot is one index of one group. A rollout without an index is in no slot, and always counts.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rolltrace.query.part_writer import copy_to_parquet, parquet_source
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_literal
from rolltrace.store.cache_key import publish_signed, read_signed
from rolltrace.store.parts import ParquetPart, PartInfo, RowStats
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

REPEATED = "_repeated"
"""The table of the lines whose id an earlier line has, see `RepeatedLines`."""
DISTINCT_FILE = "distinct.json"
"""The name of the file in a run's `cache/` that says which parts have nothing in common."""
_MAX_FILE_BYTES = 1 << 20
SLOT_COLUMNS = f'"run", {GROUP_COLUMNS}, "index"'
"""The columns that are the same for all attempts at one index of a group, in all sessions."""
_COLUMNS = f"id, {SLOT_COLUMNS}, session, attempt"
NO_SESSIONS = Sessions(())
"""For a run of one session, which supersedes nothing."""


class DistinctParts:
    """Which parts of a run have no id, or no slot, in common. It is stored, because to compare all rows takes long."""

    def __init__(self, folders: Sequence[Path], run: str) -> None:
        self._folders = folders
        self._run = run
        self._digests: dict[str, set[str]] = {}
        """By what they do not share, the checksums of the files."""
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):  # it is missing, damaged, or signed with another key
                data = read_signed(folder / DISTINCT_FILE, run, _MAX_FILE_BYTES)
                self._digests = msgspec.json.decode(data, type=dict[str, set[str]])
                break

    def includes(self, parts: Sequence[ParquetPart], what: str) -> bool:
        """Whether these parts are known to have no `what` in common."""
        return _digests(parts) <= self._digests.get(what, set())

    def add(self, parts: Sequence[ParquetPart], what: str) -> None:
        """Store that these parts have no `what` in common, unless one is private to this process."""
        digests = _digests(parts)
        if None in digests:
            return
        self._digests[what] = {digest for digest in digests if digest}
        for folder in self._folders:
            with contextlib.suppress(OSError):  # the run may be read-only
                publish_signed(folder, DISTINCT_FILE, msgspec.json.encode(self._digests), self._run)
                break


def _digests(parts: Sequence[ParquetPart]) -> set[str | None]:
    return {part.info.digests.get(part.path.stem) for part in parts}


class SharedSlots:
    """Finds the slots of one run that have several rollouts."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", new_path: Callable[[str], Path], distinct: DistinctParts
    ) -> None:
        self._connection = connection
        self._new_path = new_path
        self._distinct = distinct
        self._searched: list[Path] = []
        self.parts: list[ParquetPart] = []
        """A table of the hashes of such slots, and perhaps others; an empty list if no slot is shared."""

    def update(self, parts: Sequence[ParquetPart]) -> None:
        """Search these parts, which have all rollouts, unless they are those of the last time."""
        files = [part.path for part in parts]
        if files != self._searched:
            self.parts = self._find(parts)
            self._searched = files

    def _find(self, parts: Sequence[ParquetPart]) -> list[ParquetPart]:
        sessions = set().union(*(part.info.stats.sessions for part in parts))
        may_share = len(sessions) > 1 or any(part.info.stats.has_retries for part in parts)
        if not may_share or self._distinct.includes(parts, "slots"):
            return []
        path, source = self._new_path("shared").with_suffix(".parquet"), parquet_source(part.path for part in parts)
        hashes = f'select hash({SLOT_COLUMNS}) as h from {source} where "index" is not null'
        count = copy_to_parquet(self._connection, f"{hashes} group by h having count(*) > 1", path)
        if count:
            return [ParquetPart(path, PartInfo(ranges={}, stats=RowStats(rows={"shared": count})))]
        self._distinct.add(parts, "slots")
        return []


class DuplicateCounts(NamedTuple):
    """How many rows a table of duplicates has."""

    rows: int
    superseded: int


def create_duplicates_table(
    connection: "duckdb.DuckDBPyConnection",
    name: str,
    parts: Sequence[ParquetPart],
    shared: Sequence[ParquetPart],
    sessions: Sessions,
    *,
    is_repeated: bool = False,
) -> DuplicateCounts:
    """Create the table `name` of the rollouts in these parts that are superseded, retried or colliding.

    `shared` has the hashes of the slots with several rollouts (see `SharedSlots`). With `is_repeated`, the lines in the
    table `REPEATED` do not count.
    """
    if not shared:
        return DuplicateCounts(0, 0)
    rows, slots, verdicts = (f"{name}_{table}" for table in ("rows", "slots", "verdicts"))
    source = without_repeated(parquet_source(part.path for part in parts), is_repeated)
    hashed = f'(select {_COLUMNS}, hash({SLOT_COLUMNS}) as h from {source} where "index" is not null)'
    hashes = parquet_source(part.path for part in shared)
    connection.execute(f"create table {rows} as select {_COLUMNS} from {hashed} semi join {hashes} using (h)")
    connection.execute(f"""
        create table {slots} as select {SLOT_COLUMNS}, list_sort(list(distinct session)) as sessions from {rows}
        group by {SLOT_COLUMNS} having min(session) <> max(session)
    """)
    session_sets = connection.execute(f"select distinct sessions from {slots}").fetchall()
    connection.execute(f"create table {verdicts} as {_select_verdicts([names for (names,) in session_sets], sessions)}")
    connection.execute(f"create table {name} as {_select_duplicates(rows, slots, verdicts)}")
    for table in (rows, slots, verdicts):
        connection.execute(f"drop table {table}")
    counts = connection.execute(f"select count(*), count(*) filter (superseded) from {name}").fetchone()
    return DuplicateCounts(*(counts or (0, 0)))


def without_repeated(source: str, is_repeated: bool) -> str:
    """The rows of a table of lines, without lines that repeat others."""
    return f"(from {source} anti join {REPEATED} using (_file, _offset))" if is_repeated else source


def _select_verdicts(session_sets: Sequence[Sequence[str]], sessions: Sessions) -> str:
    """SQL that gives, for each set of sessions that share a slot, the job of each and whether it is superseded."""
    rows = []
    for names in session_sets:
        superseded = sessions.superseded(names)
        literal = f"[{', '.join(map(sql_literal, names))}]"
        rows += [
            f"({literal}, {sql_literal(name)}, {sql_literal(sessions.job_of(name))}, {name in superseded})"
            for name in names
        ]
    return f"from (values {', '.join(rows) or '([null], null, null, false)'}) as _(sessions, session, job, superseded)"


def _select_duplicates(rows: str, slots: str, verdicts: str) -> str:
    """A later attempt of the same job replaces an earlier one; of what is left, different sessions collide."""
    same = " and ".join(f"s.{column} is not distinct from r.{column}" for column in SLOT_COLUMNS.split(", "))
    return f"""
        with judged as (
            select r.*, coalesce(v.job, r.session) as job, coalesce(v.superseded, false) as superseded
            from {rows} r left join {slots} s on {same}
            left join {verdicts} v on v.sessions = s.sessions and v.session = r.session
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
        select id, bool_or(superseded) as superseded, bool_or(retried) as retried, bool_or(collides) as collides
        from compared where superseded or retried or collides group by id
    """
