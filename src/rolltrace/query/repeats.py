"""Which rollouts of a run others of the same place in a group repeat: superseded, retried, or colliding."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolltrace.query.parquet_parts import ParquetPart
from rolltrace.query.parquet_writer import SLOT_COLUMNS, parquet_source
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

_COLUMNS = f"id, {SLOT_COLUMNS}, session, attempt"


class DuplicateCounts(NamedTuple):
    """What a table of repeats holds."""

    rows: int
    superseded: int


def create_duplicates_table(
    connection: "duckdb.DuckDBPyConnection", name: str, parts: Sequence[ParquetPart], sessions: Sessions
) -> DuplicateCounts:
    """Make the table `name` of the rollouts of these parts that are superseded, retried or colliding.

    Each part knows which of its rollouts were retried in their session, and which places several sessions share.
    """
    related = _related(parts)
    if related is None:
        return DuplicateCounts(0, 0)
    rows, places, verdicts = f"{name}_rows", f"{name}_places", f"{name}_verdicts"
    connection.execute(f"create table {rows} as {related}")
    connection.execute(f"""
        create table {places} as select {SLOT_COLUMNS}, list_sort(list(distinct session)) as sessions from {rows}
        group by {SLOT_COLUMNS} having min(session) <> max(session)
    """)
    together = connection.execute(f"select distinct sessions from {places}").fetchall()
    connection.execute(f"create table {verdicts} as {_verdicts([some for (some,) in together], sessions)}")
    connection.execute(f"create table {name} as {_repeats(rows, places, verdicts)}")
    for table in (rows, places, verdicts):
        connection.execute(f"drop table {table}")
    counted = connection.execute(f"select count(*), count(*) filter (superseded) from {name}").fetchone()
    return DuplicateCounts(*(counted or (0, 0)))


def _related(parts: Sequence[ParquetPart]) -> str | None:
    """The rows that can be concerned, some of them perhaps twice; None if no row can be."""
    selects = [
        f"select {_COLUMNS} from {parquet_source([part.path])} where shared"
        for part in parts
        if part.label.facts.shared_slots
    ]
    sessions = set().union(*(part.label.facts.sessions for part in parts))
    if len(parts) > 1 and (len(sessions) > 1 or any(part.label.facts.has_retries for part in parts)):
        largest, *others = sorted(parts, key=lambda part: part.label.facts.rows, reverse=True)
        rest = f"(select {_COLUMNS} from {parquet_source(part.path for part in others)})"
        # Of the largest part, only what shares its identity with a row of the others.
        selects += [
            f"from {rest}",
            f"select {_COLUMNS} from {parquet_source([largest.path])} semi join {rest} using ({SLOT_COLUMNS})",
        ]
    return " union all ".join(selects) or None


def _verdicts(together: Sequence[Sequence[str]], sessions: Sessions) -> str:
    """For each set of sessions that recorded the same rollout: which are superseded, and the job of each."""
    rows = []
    for some in together:
        superseded = sessions.superseded(some)
        named = f"[{', '.join(map(sql_literal, some))}]"
        rows += [
            f"({named}, {sql_literal(one)}, {sql_literal(sessions.job_of(one))}, {one in superseded})" for one in some
        ]
    return f"from (values {', '.join(rows) or '([null], null, null, false)'}) as _(sessions, session, job, superseded)"


def _repeats(rows: str, places: str, verdicts: str) -> str:
    """An attempt is retried by a later one of its job. Those that count, of several sessions, collide."""
    same = " and ".join(f"p.{column} is not distinct from r.{column}" for column in SLOT_COLUMNS.split(", "))
    return f"""
        with told as (
            select r.*, coalesce(v.job, r.session) as job, coalesce(v.superseded, false) as superseded
            from {rows} r left join {places} p on {same}
            left join {verdicts} v on v.sessions = p.sessions and v.session = r.session
        ), tried as (
            select *,
                coalesce(attempt < max(attempt) over (partition by {SLOT_COLUMNS}, job, superseded), false) as retried
            from told
        ), counted as (
            select *, case when not superseded and not retried then session end as counts from tried
        ), compared as (
            select *, counts is not null and min(counts) over places <> max(counts) over places as collides
            from counted window places as (partition by {SLOT_COLUMNS})
        )
        select id, bool_or(superseded) as superseded, bool_or(retried) as retried, bool_or(collides) as collides
        from compared where superseded or retried or collides group by id
    """
