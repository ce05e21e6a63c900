"""SQL views over the parts of runs: rollouts with late rewards and without duplicates, groups, and the other tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.query.deduplication import DUPLICATES, REPEATED, create_duplicates, without_repeated
from rolltrace.query.late_rewards import by_newer_scores, in_turns, select_late_rewards
from rolltrace.query.part_writer import empty_query, parquet_source
from rolltrace.query.sql_check import LOCATION_VIEWS
from rolltrace.query.table_schema import (
    GROUP_COLUMNS,
    LOCATION_COLUMNS,
    MESSAGE_COLUMNS,
    ROLLOUT_COLUMNS,
    SMALL_TABLES,
    STORED_COLUMNS,
    sql_identifier,
    table_columns,
)
from rolltrace.store.parts import ParquetPart
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

GROUP_KEY = f"run, {GROUP_COLUMNS}"
_FLAGS = dict.fromkeys(("superseded", "retried", "collides"), "BOOLEAN")
_NO_ROLLOUTS = empty_query({**STORED_COLUMNS["rollouts"], "seconds": "DOUBLE", "reward": "DOUBLE", **_FLAGS})

RunParts = Mapping[str, Sequence[ParquetPart]]
"""By table, the parts of one run; `repeated` and `slots` are the tables of `RepeatedLines` and `RepeatedSlots`."""


def create_views(
    connection: "duckdb.DuckDBPyConnection", runs: Sequence[RunParts], sessions: Sequence[Sessions]
) -> None:
    """Create the views over these parts; `sessions` are those of each run."""
    tables = set().union(*runs)
    if repeated := _paths("repeated", runs):
        connection.execute(f"create table {REPEATED} as from {parquet_source(repeated)}")
    superseded = _create_rollouts(connection, runs, sessions) if "rollouts" in tables else 0
    for table, stored in (("steps", "steps"), ("messages", "other_messages"), ("calls", "calls")):
        if stored in tables:
            rows = _rows(stored, runs) if table != "messages" else _messages(runs)
            shown = ", ".join(f"t.{sql_identifier(name)}" for name in table_columns(table))
            without_superseded = "anti join _superseded on _superseded.id = t.rollout" if superseded else ""
            late = f"union all ({_score_calls(runs, superseded)})" if table == "calls" else ""
            connection.execute(f"create view {table} as select {shown} from ({rows}) t {without_superseded} {late}")
    if "scores" in tables:
        shown = ", ".join(map(sql_identifier, table_columns("scores")))
        connection.execute(f"create view {LOCATION_VIEWS['scores']} as {_rows('scores', runs)}")
        connection.execute(f"create view scores as select {shown} from {LOCATION_VIEWS['scores']}")
    for table in SMALL_TABLES.keys() & tables:
        connection.execute(f"create view {table} as {_rows(table, runs)}")


def _messages(runs: Sequence[RunParts]) -> str:
    """The messages: those that are responses are stored with their steps."""
    of_steps = {"rollout": "rollout", "run": "run", "step": "step", "content": "response"}
    columns = ", ".join(f"{of_steps.get(name, f'_{name}')} as {sql_identifier(name)}" for name in MESSAGE_COLUMNS)
    responses = f"select {columns} from ({_rows('steps', runs)}) where _position is not null"
    return f"{_rows('other_messages', runs)} union all {responses}"


def _score_calls(runs: Sequence[RunParts], superseded: int) -> str:
    """The calls of group graders, without those of sessions whose rollouts of the group were all superseded."""
    calls = _rows("score_calls", runs)
    if not superseded or not any("scores" in parts for parts in runs):
        return calls
    return f"""
        select c.* from ({calls}) c anti join (
            select scores.id from ({_rows("scores", runs)}) scores join (
                select {GROUP_KEY}, session from _everything group by all having bool_and(superseded)
            ) using ({GROUP_KEY}, session)
        ) superseded on superseded.id = c.score
    """


def _create_rollouts(
    connection: "duckdb.DuckDBPyConnection", runs: Sequence[RunParts], sessions: Sequence[Sessions]
) -> int:
    """Create the views of rollouts and of groups; returns how many rollouts were superseded."""
    is_repeated, slots = bool(_paths("repeated", runs)), _paths("slots", runs)
    superseded = 0
    if slots:
        paths = _paths("rollouts", [parts for parts in runs if parts.get("slots")])
        rollouts = without_repeated(parquet_source(paths), is_repeated)
        superseded = create_duplicates(connection, rollouts, slots, sessions)
    by_late = _parts_by_late(connection, runs)
    selects = [_select_rollouts(late, own, bool(slots), is_repeated) for late, own in by_late.items()]
    shown = ", ".join(map(sql_identifier, ROLLOUT_COLUMNS))
    condition = "where not superseded" if superseded else ""
    views = {
        "_everything": " union all ".join(selects) or _NO_ROLLOUTS,
        "every_rollout": f"select {shown}, superseded from _everything",
        "rollouts": f"select {shown} from _everything {condition}",
        LOCATION_VIEWS["rollouts"]: f"select {shown}, {', '.join(LOCATION_COLUMNS)} from _everything {condition}",
        "groups": groups_query(f"(from _everything {condition})"),
    }
    for name, query in views.items():
        connection.execute(f"create view {name} as {query}")
    if superseded:
        connection.execute("create table _superseded as select id from _everything where superseded")
    return superseded


def _parts_by_late(connection: "duckdb.DuckDBPyConnection", runs: Sequence[RunParts]) -> dict[str, list[ParquetPart]]:
    """The parts that are read together, of all runs: to plan each of hundreds of runs would take seconds.

    They are by the table of the rewards from scores that are newer than the part; "" if no such score exists.
    """
    by_late: dict[str, list[ParquetPart]] = {}
    for parts in runs:
        for scores, own in by_newer_scores(parts["rollouts"], parts.get("scores", ())).items():
            late = f"_late_{len(by_late)}" if scores else ""
            if scores:
                connection.execute(f"create table {late} (rollout varchar, value double)")
                for some in in_turns(own):  # of which several may have a line of the same rollout
                    new = f"({select_late_rewards(scores, some)}) anti join {late} using (rollout)"
                    connection.execute(f"insert into {late} select rollout, value from {new}")
            by_late.setdefault(late, []).extend(own)
    return by_late


def _select_rollouts(late: str, parts: Sequence[ParquetPart], has_duplicates: bool, is_repeated: bool) -> str:
    reward, joined, flags = "r.reward", "", dict.fromkeys(_FLAGS, "false")
    if late:
        joined += f" left join {late} late on late.rollout = r.id"
        reward = "case when late.rollout is null then r.reward else late.value end"
    if has_duplicates:
        joined += f" left join {DUPLICATES} d on d.run = r.run and d.id = r.id"
        flags = {name: f"coalesce(d.{name}, false)" for name in _FLAGS}
    columns = [f"r.{sql_identifier(name)}" for name in (*STORED_COLUMNS["rollouts"], "seconds")]
    columns += [f"{reward} as reward", *(f"{sql} as {name}" for name, sql in flags.items())]
    # The newest first: the first rows in a descending order are then found without reading most of the others.
    source = without_repeated(parquet_source(part.path for part in reversed(parts)), is_repeated)
    return f"select {', '.join(columns)} from {source} r{joined}"


def _rows(table: str, runs: Sequence[RunParts]) -> str:
    paths = _paths(table, runs)
    kinds = STORED_COLUMNS.get(table) or SMALL_TABLES[table]
    if not paths:
        return empty_query(kinds)
    columns, source = ", ".join(map(sql_identifier, kinds)), parquet_source(paths)
    is_repeated = bool(_paths("repeated", runs)) and table in STORED_COLUMNS
    if not is_repeated or "_file" in kinds:
        return f"select {columns} from {without_repeated(source, is_repeated)}"
    owner = "score" if table == "score_calls" else "rollout"
    return f"""
        select {columns} from {source} anti join {REPEATED} on {REPEATED}.id = {owner}
        union all select distinct {columns} from {source} semi join {REPEATED} on {REPEATED}.id = {owner}
    """


def _paths(table: str, runs: Sequence[RunParts]) -> list[Path]:
    return [part.path for parts in runs for part in parts.get(table, ())]


def groups_query(rollouts: str) -> str:
    """SQL for the groups of some rollouts. Superseded rollouts must be left out before."""
    return f"""
        with grouped as (
            select {GROUP_KEY}, count(*) as size, count(reward) as n, bool_and(isfinite(reward)) as is_finite,
                avg(reward) filter (isfinite(reward)) as finite_mean,
                stddev_pop(reward) filter (isfinite(reward)) as finite_std,
                min(reward) as min, max(reward) as max, bool_or(collides) as collides,
                arg_min(task, {{'index': "index", 'id': id}}) as task,
                list({{'id': id, 'index': "index", 'reward': reward}} order by "index", id) as rollouts
            from {rollouts} where not retried group by {GROUP_KEY}
        ), measured as (
            select *, case when n = 0 then null when is_finite then finite_mean else 'NaN'::double end as mean,
                case when n = 0 then null when is_finite then finite_std else 'NaN'::double end as std
            from grouped
        )
        select {GROUP_KEY}, task, size, n, mean, std, min, max, n >= 2 and max > min as has_signal, collides,
            list_transform(rollouts, lambda one: {{
                'id': one.id, 'index': one.index, 'reward': one.reward, 'advantage': one.reward - mean
            }}) as members
        from measured
    """
