"""The tables of one check, which its audits share: copied into memory, or read a few iterations at a time."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from rolltrace.check.iteration_stats import IterationStats, IterationStatsCache
from rolltrace.query.copied_tables import CopiedTables
from rolltrace.query.run import Run
from rolltrace.query.table_schema import sql_literal

Row = dict[str, Any]

BATCH_ROLLOUTS = 8_000
"""A batch has iterations with about so many rollouts."""
_MAX_KEPT_ROWS = 100
"""The rows of a statement are kept for the next audit that asks the same, unless there are more."""

_TABLES = {
    "attempts": "select * from rollouts where {in_batch}",  # before `rollouts` is replaced
    "rollouts": "select * from rollouts where not retried and {in_batch} and {id_in_batch}",
    "groups": "select * from groups where {in_batch}",
    "steps": "select * from steps where {in_batch} and {of_rollouts}",
    "messages": "select * from messages where {of_rollouts}",
    "scores": "select * from scores where rollout in (select id from rollouts) or (rollout is null and {in_batch})",
    "calls": """
        select * from calls where rollout in (select id from rollouts) or (rollout is null and {in_batch})
        or score in (select id from scores)
    """,
}
"""By name, the rows that audits see."""
_ALSO = {"steps": ("rollouts",), "messages": ("rollouts",), "scores": ("rollouts",), "calls": ("rollouts", "scores")}
_NAMES = re.compile(rf"\b({'|'.join(_TABLES)})\b")
_PARTS = """
    select iteration, min(id) as low, max(id) as high, count(*) as n from (
        select iteration, id, (row_number() over (partition by iteration order by id) - 1) // {rollouts} as part
        from rollouts where not retried
    ) group by iteration, part order by iteration nulls last, part
"""


class _Batch(NamedTuple):
    """Iterations from the first to the last, or a part of one, with the range of their rollouts' ids."""

    first: int | None
    last: int | None
    low: str
    high: str
    rollouts: int

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions of `_TABLES`; the range of ids lets the engine skip most of a long run."""
        ids = f"between {sql_literal(self.low)} and {sql_literal(self.high)}"
        in_batch = "iteration is null" if self.first is None else f"iteration between {self.first} and {self.last}"
        of_rollouts = f"rollout {ids} and rollout in (select id from rollouts)"
        return {"in_batch": in_batch, "id_in_batch": f"id {ids}", "of_rollouts": of_rollouts}


class TableSource:
    """The tables of a whole run, or of one iteration, which are copied into memory unless they are too large."""

    def __init__(
        self, run: Run, iteration: int | None = None, stats: IterationStatsCache | None = None, *, copies: bool = True
    ) -> None:
        self.run = run
        self.iteration = iteration
        self._copies = copies
        self._stats_cache = stats or IterationStatsCache(run)
        self._stats: dict[str | None, list[IterationStats]] = {}
        self._kept: dict[str, list[Row]] = {}

    def rows(self, sql: str) -> Iterator[Row]:
        """The rows of a SELECT over the tables. A few rows are kept, for an audit that runs the same statement."""
        if sql in self._kept:
            yield from self._kept[sql]
            return
        kept: list[Row] = []
        for row in self._copied.rows(sql) if self._copies else self._select(sql, self._everything):
            if len(kept) <= _MAX_KEPT_ROWS:
                kept.append(row)
            yield row
        if len(kept) <= _MAX_KEPT_ROWS:
            self._kept[sql] = kept

    def rows_in_batches(self, sql: str, *, splits_iterations: bool = False) -> Iterator[Row]:
        """The rows of a SELECT, for some iterations after the other, so that memory does not grow with the run.

        With `splits_iterations`, also parts of a large iteration are batches of their own.
        """
        if self._copies:
            return self.rows(sql)
        batches = _join(self._parts, splits_iterations=splits_iterations)
        return (row for batch in batches for row in self._select(sql, batch.conditions))

    def iterations(self, measure: str | None) -> list[IterationStats]:
        """The numbers of all iterations, or up to the one that is checked; computed once."""
        if measure not in self._stats:
            rows = self.rows if self._copies else None
            self._stats[measure] = self._stats_cache.stats(measure, self.iteration, rows)
        return self._stats[measure]

    def close(self) -> None:
        """Free the memory of copied tables; the run stays open."""
        if "_copied" in self.__dict__:
            self._copied.close()

    @cached_property
    def _copied(self) -> CopiedTables:
        return CopiedTables(self.run, self.iteration)

    @cached_property
    def _parts(self) -> list[_Batch]:
        """Each iteration, in one or several parts."""
        rows = self.run.select(_PARTS.format(rollouts=BATCH_ROLLOUTS), frozenset({"rollouts"}))
        return [_Batch(number, number, low, high, count) for number, low, high, count in rows]

    @cached_property
    def _everything(self) -> dict[str, str]:
        """The conditions for the whole run."""
        [(has_retries,)] = self.run.select("select bool_or(retried) from rollouts", frozenset({"rollouts"}))
        of_rollouts = "rollout in (select id from rollouts)" if has_retries else "true"
        return {"in_batch": "true", "id_in_batch": "true", "of_rollouts": of_rollouts}

    def _select(self, sql: str, conditions: dict[str, str]) -> Iterator[Row]:
        names = set(_NAMES.findall(sql))
        for name in tuple(names):
            names.update(_ALSO.get(name, ()))
        # Otherwise tables that are used twice are held in memory, with their texts.
        own = [
            f"{name} as not materialized ({query.format(**conditions)})"
            for name, query in _TABLES.items()
            if name in names
        ]
        # A statement that begins with `with` goes on after ours.
        rest = re.sub(r"^\s*with\b", ",", sql, count=1, flags=re.IGNORECASE)
        tables = frozenset(names - {"attempts"} | {"rollouts"})
        return self.run.select(f"with {', '.join(own)} {rest}", tables).dicts()


def _join(parts: Iterable[_Batch], *, splits_iterations: bool) -> Iterator[_Batch]:
    """Batches of consecutive iterations with about `BATCH_ROLLOUTS` rollouts together."""
    waiting: list[_Batch] = []
    for number, some in groupby(parts, lambda part: part.first):
        own = [*some]
        is_split = splits_iterations and len(own) > 1
        rollouts = sum(part.rollouts for part in (*waiting, *own))
        if waiting and (is_split or number is None or rollouts > BATCH_ROLLOUTS):
            yield _joined(waiting)
            waiting = []
        if is_split:
            yield from own
        else:
            waiting += own
    if waiting:
        yield _joined(waiting)


def _joined(parts: Sequence[_Batch]) -> _Batch:
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    return _Batch(parts[0].first, parts[-1].last, low, high, sum(part.rollouts for part in parts))
