"""Finds duplicate rollouts: superseded and retried ones, which do not count, and those that collide.

A slot is one index of one group. A rollout without an index is in no slot, and always counts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolltrace.query.part_writer import SLOT_COLUMNS, parquet_source
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.parts import ParquetPart
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

REPEATED = "_repeated"
"""The table of the lines whose id an earlier line has, see `RepeatedLines`."""
_COLUMNS = f"id, {SLOT_COLUMNS}, session, attempt"
NO_SESSIONS = Sessions(())
"""For a run of one session, which supersedes nothing."""


class DuplicateCounts(NamedTuple):
    """How many rows a table of duplicates has."""

    rows: int
    superseded: int


def create_duplicates_table(
    connection: "duckdb.DuckDBPyConnection",
    name: str,
    parts: Sequence[ParquetPart],
    sessions: Sessions,
    *,
    is_repeated: bool = False,
) -> DuplicateCounts:
    """Create the table `name` of the rollouts in these parts that are superseded, retried or colliding.

    The metadata of each part says whether it has retries, and how many slots in it several sessions share. With
    `is_repeated`, the lines in the table `REPEATED` do not count.
    """
    shared, rows, slots, verdicts = (f"{name}_{table}" for table in ("shared", "rows", "slots", "verdicts"))
    candidates = _select_candidates(connection, shared, parts, is_repeated)
    if candidates is None:
        return DuplicateCounts(0, 0)
    connection.execute(f"create table {rows} as {candidates}")
    connection.execute(f"""
        create table {slots} as select {SLOT_COLUMNS}, list_sort(list(distinct session)) as sessions from {rows}
        group by {SLOT_COLUMNS} having min(session) <> max(session)
    """)
    session_sets = connection.execute(f"select distinct sessions from {slots}").fetchall()
    connection.execute(f"create table {verdicts} as {_select_verdicts([names for (names,) in session_sets], sessions)}")
    connection.execute(f"create table {name} as {_select_duplicates(rows, slots, verdicts)}")
    for table in (shared, rows, slots, verdicts):
        connection.execute(f"drop table if exists {table}")
    counts = connection.execute(f"select count(*), count(*) filter (superseded) from {name}").fetchone()
    return DuplicateCounts(*(counts or (0, 0)))


def without_repeated(source: str, is_repeated: bool) -> str:
    """The rows of a table of lines, without lines that repeat others."""
    return f"(from {source} anti join {REPEATED} using (_file, _offset))" if is_repeated else source


def _select_candidates(
    connection: "duckdb.DuckDBPyConnection", shared: str, parts: Sequence[ParquetPart], is_repeated: bool
) -> str | None:
    """SQL for the rows that may be duplicates, some of them perhaps twice; None if no row can be.

    It may use the table `shared`, which this creates: hashes of slots with several rows.
    """
    selects = [
        f"select {_COLUMNS} from {without_repeated(parquet_source([part.path]), is_repeated)} where shared"
        for part in parts
        if part.info.stats.shared_slots
    ]
    sessions = set().union(*(part.info.stats.sessions for part in parts))
    if len(parts) > 1 and (len(sessions) > 1 or any(part.info.stats.has_retries for part in parts)):
        source = without_repeated(parquet_source(part.path for part in parts), is_repeated)
        connection.execute(f"""
            create table {shared} as select hash({SLOT_COLUMNS}) as h from {source} where "index" is not null
            group by h having count(*) > 1
        """)
        if connection.execute(f"select 1 from {shared} limit 1").fetchone() is not None:
            rows = f'(select {_COLUMNS}, hash({SLOT_COLUMNS}) as h from {source} where "index" is not null)'
            selects.append(f"select {_COLUMNS} from {rows} semi join {shared} using (h)")
    return " union all ".join(selects) or None


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
