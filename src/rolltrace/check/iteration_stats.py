"""Numbers of each iteration, for audits of trends. Those about texts are computed once, and kept in the run's cache."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from rolltrace.check.response_stats import ResponseCounter, ResponseStats, prompts_query, texts_query
from rolltrace.query.run import Run
from rolltrace.query.sql_check import LOCATION_VIEWS
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.cache_key import cache_folders, read_cached, store_cached

Row = dict[str, Any]
Rows = Callable[[str], Iterator[Row]]
StatsKey = tuple[str, str, int]
"""A split, an env and the number of an iteration."""

_VERSION = 2
"""Files of another version are made again."""
_ITERATIONS_IN_FILE = 100
"""So that a new iteration replaces one small file, and a long run has few."""
_MAX_FILE_BYTES = 64 << 20
_BATCH_ROLLOUTS = 4_000
"""About so many rollouts are read by one statement."""

_NUMBERS = """
    with measured as ({measured}),
    members as (
        select split, env, iteration, "group", count(*) as size, count(reward) as n, avg(reward) as mean,
            sum(reward) as total, sum(reward * reward) as squares, min(reward) as low, max(reward) as high,
            count(*) filter (status <> 'ok') as failed, min(id) as first_id, max(id) as last_id,
            sum(hash(id, _length)::hugeint) as ids, count(measure) as measured, sum(measure) as measure_total,
            sum(measure * measure) as measure_squares
        from (
            select * replace (
                if(abs(reward) < 1e100, reward, null) as reward, if(abs(measure) < 1e100, measure, null) as measure
            )
            from {rollouts} left join measured on measured.rollout = id
            where not retried and iteration is not null
        ) group by all
    )
    select split, env, iteration, sum(size)::bigint as rollouts, sum(n)::bigint as n, sum(total) as total,
        sum(squares) as squares, sum(failed)::bigint as failed, min(first_id) as first_id, max(last_id) as last_id,
        sum(ids)::varchar as ids, count(*) filter (n > 1) as groups,
        count(*) filter (n > 1 and low = high) as groups_without_signal,
        sum(if(n > 1 and low < high, n, 0))::bigint as effective, stddev_pop(mean) as group_std,
        count(mean) as group_means, sum(measured)::bigint as measured, sum(measure_total) as measure_total,
        sum(measure_squares) as measure_squares
    from members {condition} group by all order by split, env, iteration
"""
_MEASURED = """
    select rollout, coalesce(max(late), max(own), avg(of_step)) as measure from (
        select id as rollout, metrics[{name}] as own, null as of_step, null as late from rollouts
        union all select rollout, null, metrics[{name}], null from steps
        union all select rollout, null, null, arg_max(value, created_at) from scores
        where name = {name} group by rollout
    ) group by rollout
"""
_NOT_MEASURED = "select null::varchar as rollout, null::double as measure limit 0"


class Numbers(msgspec.Struct, frozen=True):
    """How many numbers there are, their mean and their standard deviation; very large ones are left out."""

    n: int = 0
    mean: float = 0.0
    std: float = 0.0


class IterationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one env in one iteration, over the rollouts that count."""

    split: str
    env: str
    iteration: int
    rollouts: int
    failed: int
    """With another status than ok."""
    reward: Numbers
    groups: int
    """With at least two rewards."""
    groups_without_signal: int
    """Of those, the groups whose rewards are all the same."""
    effective: int
    """Rollouts that have a reward and are in a group with a signal."""
    group_means: Numbers
    """Of the mean rewards of groups: members of a group are alike, so that this says how far chance goes."""
    measure: Numbers
    """The independent measure, if the settings name a metric or a score."""
    responses: ResponseStats


class IterationStatsCache:
    """The numbers about texts that were computed or read by now, in one process; one for each open run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[StatsKey, _Stored] = {}
        self._read: set[int] = set()

    def stats(self, measure: str | None, last: int | None, rows: Rows | None = None) -> list[IterationStats]:
        """The numbers of all iterations, or up to `last`, by split, env and iteration.

        `rows` runs a statement over tables in memory: those of the iteration `last`, or of all iterations without it.
        """
        numbers = [*self._numbers(measure, last)]
        self._add_responses(numbers, last, rows)
        return [_stats(row, self._known[_key(row)].responses) for row in numbers]

    def _numbers(self, measure: str | None, last: int | None) -> Iterator[Row]:
        measured, tables = _NOT_MEASURED, {"rollouts"}
        if measure is not None:
            measured, tables = _MEASURED.format(name=sql_literal(measure)), {"rollouts", "steps", "scores"}
        condition = "" if last is None else f"where iteration <= {last:d}"
        sql = _NUMBERS.format(rollouts=LOCATION_VIEWS["rollouts"], measured=measured, condition=condition)
        return self._run.select(sql, frozenset(tables)).dicts()

    def _add_responses(self, numbers: Sequence[Row], last: int | None, rows: Rows | None) -> None:
        """Compute the numbers about texts that are not known, and store them."""
        for number in {row["iteration"] // _ITERATIONS_IN_FILE for row in numbers} - self._read:
            self._read.add(number)
            self._known.update(self._load(number))
        missing = [row for row in numbers if not self._is_known(row)]
        for batch in _batches(missing):
            in_memory = last is None or {row["iteration"] for row in batch} == {last}
            self._compute(batch, rows if rows is not None and in_memory else self._select)
        changed = {row["iteration"] // _ITERATIONS_IN_FILE for row in missing}
        for number in changed:
            self._store(number)

    def _is_known(self, row: Row) -> bool:
        stored = self._known.get(_key(row))
        return stored is not None and stored.rollouts == row["rollouts"] and stored.ids == row["ids"]

    def _compute(self, batch: Sequence[Row], rows: Rows) -> None:
        first, last = batch[0]["iteration"], batch[-1]["iteration"]
        condition = f"iteration between {first:d} and {last:d}"
        low, high = min(row["first_id"] for row in batch), max(row["last_id"] for row in batch)
        about = f"rollout between {sql_literal(low)} and {sql_literal(high)}"
        prompts = {_group(row): row["prompt"] for row in rows(prompts_query(condition, about))}
        counters = {_key(row): ResponseCounter() for row in batch}
        for row in rows(texts_query(condition)):
            counter = counters.get(_key(row))
            if counter is not None:
                counter.add(row, prompts.get(_group(row)) or "")
        for row in batch:
            self._known[_key(row)] = _Stored(row["rollouts"], row["ids"], counters[_key(row)].result())

    def _select(self, sql: str) -> Iterator[Row]:
        return self._run.select(sql, frozenset({"rollouts", "steps", "messages"})).dicts()

    def _load(self, number: int) -> Mapping[StatsKey, "_Stored"]:
        run_id = self._run.info.id
        folders = cache_folders(self._run.path, run_id)
        files = read_cached(folders, _file_name(number), run_id, _File, _MAX_FILE_BYTES)
        return next((dict(file.stats) for file in files if file.version == _VERSION), {})

    def _store(self, number: int) -> None:
        own = [(key, stored) for key, stored in self._known.items() if key[2] // _ITERATIONS_IN_FILE == number]
        folders = cache_folders(self._run.path, self._run.info.id)
        store_cached(folders, _file_name(number), self._run.info.id, _File(_VERSION, own))


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """Numbers about texts, and which rollouts they are of."""

    rollouts: int
    ids: str
    """The sum of the hashes of their ids and the lengths of their lines."""
    responses: ResponseStats


class _File(msgspec.Struct, frozen=True, array_like=True):
    version: int
    stats: list[tuple[StatsKey, _Stored]]


def by_env(stats: Iterable[IterationStats]) -> dict[tuple[str, str], list[IterationStats]]:
    """By split and env, the numbers of its iterations in order."""
    return {key: [*some] for key, some in groupby(stats, lambda one: (one.split, one.env))}


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows of iterations with about `_BATCH_ROLLOUTS` rollouts together."""
    batch: list[Row] = []
    for _, some in groupby(sorted(rows, key=lambda row: row["iteration"]), lambda row: row["iteration"]):
        batch += some
        if sum(row["rollouts"] for row in batch) >= _BATCH_ROLLOUTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _stats(row: Row, responses: ResponseStats) -> IterationStats:
    return IterationStats(
        split=row["split"], env=row["env"], iteration=row["iteration"], rollouts=row["rollouts"], failed=row["failed"],
        reward=_numbers_of(row["n"], row["total"], row["squares"]), groups=row["groups"],
        groups_without_signal=row["groups_without_signal"], effective=row["effective"],
        group_means=Numbers(row["group_means"], row["total"] / row["n"] if row["n"] else 0.0, row["group_std"] or 0.0),
        measure=_numbers_of(row["measured"], row["measure_total"], row["measure_squares"]), responses=responses,
    )  # fmt: skip


def _numbers_of(n: int, total: float | None, squares: float | None) -> Numbers:
    if not n or total is None or squares is None:
        return Numbers()
    return Numbers(n, total / n, max(0.0, squares / n - (total / n) ** 2) ** 0.5)


def _key(row: Row) -> StatsKey:
    return row["split"], row["env"], row["iteration"]


def _group(row: Row) -> tuple[Any, ...]:
    return *_key(row), row["group"]


def _file_name(number: int) -> str:
    return f"iterations-{number}.msgpack"
