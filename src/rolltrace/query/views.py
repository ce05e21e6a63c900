"""SQL views over the parts of runs: rollouts with late rewards and without duplicates, groups, and the other tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rolltrace.query.deduplication import REPEATED, create_duplicates_table, without_repeated
from rolltrace.query.part_writer import empty_query, parquet_source
from rolltrace.query.score_order import select_latest_rewards
from rolltrace.query.sql_check import LOCATION_VIEWS
from rolltrace.query.table_schema import (
    GROUP_COLUMNS,
    LOCATION_COLUMNS,
    MESSAGE_COLUMNS,
    ROLLOUT_COLUMNS,
    SMALL_TABLES,
    STORED_COLUMNS,
    WRITTEN,
    sql_identifier,
    table_columns,
)
from rolltrace.store.parts import ParquetPart, newer_scores
from rolltrace.store.sessions import Sessions

if TYPE_CHECKING:
    import duckdb

GROUP_KEY = f"run, {GROUP_COLUMNS}"
_FLAGS = dict.fromkeys(("superseded", "retried", "collides"), "BOOLEAN")
_NO_ROLLOUTS = empty_query({**STORED_COLUMNS["rollouts"], "seconds": "DOUBLE", "reward": "DOUBLE", **_FLAGS})

RunParts = Mapping[str, Sequence[ParquetPart]]
"""By table, the parts of one run; `repeated` and `shared` are the tables of `RepeatedLines` and `SharedSlots`."""


def create_views(
    connection: "duckdb.DuckDBPyConnection", runs: Sequence[RunParts], sessions: Sequence[Sessions]
) -> None:
    """Create the views over these parts; `sessions` are those of each run."""
    tables = set().union(*runs)
    if repeated := _paths("repeated", runs):
        connection.execute(f"create table {REPEATED} as from {parquet_source(repeated)}")
    superseded = 0
    if "rollouts" in tables:
        rollouts, superseded = _join_rollouts(connection, runs, sessions)
        _create_rollouts(connection, rollouts, superseded)
        if "groups" in tables:
            connection.execute(f"create view groups as {_groups(connection, rollouts)}")
    for table, stored in (("steps", "steps"), ("messages", "other_messages"), ("calls", "calls")):
        if stored in tables:
            rows = _rows(stored, runs) if table != "messages" else _messages(runs)
            shown = ", ".join(f"t.{sql_identifier(name)}" for name in table_columns(table))
            without_superseded = "anti join _superseded on _superseded.id = t.rollout" if superseded else ""
            late = f"union all ({_score_calls(runs, superseded)})" if table == "calls" else ""
            connection.execute(f"create view {table} as select {shown} from ({rows}) t {without_superseded} {late}")
    if "scores" in tables:
        shown = ", ".join(
            sql_identifier(name) for name in STORED_COLUMNS["scores"] if name not in {**LOCATION_COLUMNS, **WRITTEN}
        )
        connection.execute(f"create view {LOCATION_VIEWS['scores']} as {_rows('scores', runs)}")
        connection.execute(f"create view scores as select {shown} from {LOCATION_VIEWS['scores']}")
    for table in SMALL_TABLES:
        if table in tables:
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


class _RunRollouts(NamedTuple):
    """The rollouts of one run, and the tables that they are joined with."""

    number: int
    parts: RunParts
    duplicates: str | None
    lates: Sequence[str | None]
    """The table of late rewards for each part."""

    @property
    def is_plain(self) -> bool:
        """Whether each line is a row as it is."""
        return self.duplicates is None and not any(self.lates) and not self.parts.get("repeated")

    @property
    def select(self) -> str:
        """SQL for its rows."""
        selects = [
            _select_rollouts(some, self.duplicates, late, is_repeated=bool(self.parts.get("repeated")))
            for late, some in _by_late(self.parts["rollouts"], self.lates)
        ]
        return " union all ".join(selects) or _NO_ROLLOUTS


def _join_rollouts(
    connection: "duckdb.DuckDBPyConnection", runs: Sequence[RunParts], sessions: Sequence[Sessions]
) -> tuple[list[_RunRollouts], int]:
    """Create the tables that the rollouts of each run are joined with; also returns how many were superseded."""
    joined, superseded = [], 0
    for number, (parts, own) in enumerate(zip(runs, sessions, strict=True)):
        name, shared, is_repeated = f"_duplicates_{number}", parts.get("shared", ()), bool(parts.get("repeated"))
        counts = create_duplicates_table(connection, name, parts["rollouts"], shared, own, is_repeated=is_repeated)
        lates = _create_lates(connection, f"_late_{number}", parts["rollouts"], parts.get("scores", ()))
        joined.append(_RunRollouts(number, parts, name if counts.rows else None, lates))
        superseded += counts.superseded
    return joined, superseded


def _create_rollouts(connection: "duckdb.DuckDBPyConnection", runs: Sequence[_RunRollouts], superseded: int) -> None:
    """Create the views of rollouts."""
    shown = ", ".join(map(sql_identifier, ROLLOUT_COLUMNS))
    others = [run.select for run in runs if not run.is_plain]
    everything = " union all ".join([_select_plain(runs), *others])
    connection.execute(f"create view _everything as {everything}")
    condition = "where not superseded" if superseded else ""
    connection.execute(f"create view every_rollout as select {shown}, superseded from _everything")
    connection.execute(f"create view rollouts as select {shown} from _everything {condition}")
    connection.execute(
        f"create view {LOCATION_VIEWS['rollouts']} as "
        f"select {shown}, {', '.join(LOCATION_COLUMNS)} from _everything {condition}"
    )
    if superseded:
        connection.execute("create table _superseded as select id from _everything where superseded")


def _select_plain(runs: Sequence[_RunRollouts]) -> str:
    """The rollouts of plain runs as one table: a table for each of hundreds of runs would take seconds to plan."""
    parts = [part for run in runs if run.is_plain for part in run.parts["rollouts"]]
    return _select_rollouts(parts, None, None, is_repeated=False) if parts else _NO_ROLLOUTS


def _by_late(parts: Sequence[ParquetPart], lates: Sequence[str | None]) -> list[tuple[str | None, list[ParquetPart]]]:
    """The parts, grouped by the table of late rewards that they are joined with."""
    by_late: dict[str | None, list[ParquetPart]] = {}
    for part, late in zip(parts, lates, strict=True):
        by_late.setdefault(late, []).append(part)
    return list(by_late.items())


def _groups(connection: "duckdb.DuckDBPyConnection", runs: Sequence[_RunRollouts]) -> str:
    """The groups: of plain runs together, stored or computed now, and of each other run."""
    computed: list[_RunRollouts] = []
    stored: list[Path] = []
    selects: list[str] = []
    for run in runs:
        if run.is_plain and not run.parts["groups"]:
            computed.append(run)
        elif run.is_plain and (path := _unchanged_groups(run)) is not None:
            stored.append(path)
        else:
            selects.append(_groups_of_run(connection, run))
    selects.append(groups_query(f"({_select_plain(computed)})"))
    if stored:
        selects.append(f"from {parquet_source(stored)}")
    return " union all ".join(f"from ({select})" for select in selects)


def _unchanged_groups(run: _RunRollouts) -> Path | None:
    """The file of a run's stored groups, if no later line changed them."""
    rollouts = run.parts["rollouts"]
    if len(rollouts) != 1 or rollouts[0].info.stats.shared_slots:
        return None
    stored = _stored_groups(run, rollouts[0])
    return None if stored is None else stored.path


def _stored_groups(run: _RunRollouts, part: ParquetPart) -> ParquetPart | None:
    """The groups that compaction has stored for the lines of a part."""
    for stored in run.parts["groups"]:
        if stored.info.ranges == part.info.ranges and stored.info.scores_covered == part.info.scores_covered:
            return stored
    return None


def _groups_of_run(connection: "duckdb.DuckDBPyConnection", run: _RunRollouts) -> str:
    """The groups of a run: stored ones that no later line changed, and the others computed now."""
    rollouts = f"(from ({run.select}) where not superseded)"
    if run.parts.get("repeated"):  # stored groups count each of the lines
        return groups_query(rollouts)
    for part, late in zip(run.parts["rollouts"], run.lates, strict=True):
        if (stored := _stored_groups(run, part)) is not None:
            changed = _changed_groups(part, run.parts["rollouts"], run.duplicates, late)
            if changed is None:
                return f"from {parquet_source([stored.path])}"
            connection.execute(f"create table _changed_{run.number} as {changed}")
            unchanged = f"from {parquet_source([stored.path])} anti join _changed_{run.number} using ({GROUP_KEY})"
            computed = groups_query(f"({rollouts} semi join _changed_{run.number} using ({GROUP_KEY}))")
            return f"{unchanged} union all from ({computed})"
    return groups_query(rollouts)


def _changed_groups(
    part: ParquetPart, parts: Sequence[ParquetPart], duplicates: str | None, late: str | None
) -> str | None:
    """SQL for the groups of a part that other lines changed; None if no line did."""
    selects = [f"select {GROUP_KEY} from {parquet_source([other.path])}" for other in parts if other is not part]
    own = f"select {GROUP_KEY} from {parquet_source([part.path])} r"
    if part.info.stats.shared_slots:  # which sessions count may have changed since
        selects.append(f"{own} where shared")
    if duplicates is not None:
        selects.append(f"{own} semi join {duplicates} on {duplicates}.id = r.id")
    if late is not None:
        selects.append(f"{own} semi join {late} on {late}.rollout = r.id")
    return f"select distinct * from ({' union all '.join(selects)})" if selects else None


def _create_lates(
    connection: "duckdb.DuckDBPyConnection", name: str, parts: Sequence[ParquetPart], scores: Sequence[ParquetPart]
) -> list[str | None]:
    """For each part, a table of the rewards from scores that are newer than the part; None if no such score exists."""
    lates = [tuple(score.path for score in newer_scores(part.info, scores)) for part in parts]
    names = {paths: f"{name}_{number}" for number, paths in enumerate(dict.fromkeys(filter(None, lates)))}
    for paths, table in names.items():
        stored = [
            part.path for part, late in zip(parts, lates, strict=True) if late == paths and part.info.scores_covered
        ]
        latest = select_latest_rewards(parquet_source(paths), parquet_source(stored) if stored else None)
        connection.execute(f"create table {table} as {latest}")
    return [names.get(paths) for paths in lates]


def _select_rollouts(
    parts: Sequence[ParquetPart], duplicates: str | None, late: str | None, *, is_repeated: bool
) -> str:
    reward, joins = "r.reward", ""
    superseded, retried, collides = "false", "r.retried", "false"
    if late is not None:
        joins += f" left join {late} on {late}.rollout = r.id"
        reward = f"case when {late}.rollout is null then r.reward else {late}.value end"
    if duplicates is not None:
        joins += f" left join {duplicates} on {duplicates}.id = r.id"
        superseded, collides = (f"coalesce({duplicates}.{name}, false)" for name in ("superseded", "collides"))
        retried = f"r.retried or coalesce({duplicates}.retried, false)"
    columns = ", ".join(f"r.{sql_identifier(name)}" for name in (*STORED_COLUMNS["rollouts"], "seconds"))
    # The newest first: the first rows in a descending order are then found without reading most of the others.
    source = parquet_source(part.path for part in reversed(parts))
    return (
        f"select {columns}, {reward} as reward, {superseded} as superseded, {retried} as retried, "
        f"{collides} as collides "
        f"from {without_repeated(source, is_repeated)} r{joins}"
    )


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


def unshared_rollouts_query(part: ParquetPart) -> str:
    """The rollouts of a part whose groups no two sessions share, with the columns that `groups_query` needs."""
    rows = parquet_source([part.path])
    if not part.info.stats.shared_slots:
        return f"(select *, false as collides from {rows})"
    return f"(select *, false as collides from {rows} anti join (from {rows} where shared) using ({GROUP_KEY}))"


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
