"""The table of rollouts: rows of any order and selection, what values columns have, and who stands beside whom."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.table_schema import NUMBER_MAP, STORED_COLUMNS
from rolltrace.viewer.columns import column_expression
from rolltrace.viewer.filters import RolloutSelection, read_names, select_by_id, select_rollouts
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.schemas import Count, FacetsResponse, NeighboursResponse, RolloutsResponse
from rolltrace.viewer.user_sql import SQL_TIMEOUT_SECONDS

MAX_ROWS = 1_000
MAX_COLUMNS = 100
MAX_FACETS = 20
"""Each is counted by a statement of its own."""
_MAX_KEYS = 5
FIRST_IDS = 2_000
"""How many rows of a listing are found at first."""
_MAX_VALUES = 100
_MAX_CELL_CHARS = 2_000
"""A cell of the table shows no more characters; the page of the rollout has all."""
_MAPS = {name for name, kind in STORED_COLUMNS["rollouts"].items() if kind == NUMBER_MAP}
_DEFAULT = (("iteration", True), ("env", False), ("group", False), ("index", False))

Sort = tuple[tuple[str, bool], ...]
"""Columns and whether each is descending."""


def parse_sort(text: str) -> Sort:
    """An order written as COLUMN,-COLUMN, where the minus says that the largest come first."""
    keys = read_names(text)
    if len(keys) > _MAX_KEYS:
        raise InputError(f"Expected at most {_MAX_KEYS} columns to sort by, got {len(keys)}.")
    sort = tuple((key.removeprefix("-"), key.startswith("-")) for key in keys)
    for name, _ in sort:
        column_expression(name)
    return sort


def list_rollouts(
    run: OpenRun, sql_run: Run, selection: RolloutSelection, sort: Sort, columns: Sequence[str], offset: int, limit: int
) -> RolloutsResponse:
    """Some rows of the listing."""
    if len(columns) > MAX_COLUMNS:
        raise InputError(f"Expected at most {MAX_COLUMNS} columns, got {len(columns)}.")
    last = offset + min(limit, MAX_ROWS)
    found = _find(run, sql_run, selection, sort, last)
    return RolloutsResponse(total=found.total, offset=offset, rows=_rows(run.run, found.ids[offset:last], columns))


def find_neighbours(
    run: OpenRun, asked: Run, selection: RolloutSelection, sort: Sort, rollout: str
) -> NeighboursResponse:
    """Where a rollout stands in a listing."""
    found = _find(run, asked, selection, sort, 1)
    if rollout not in found.ids[:-1]:  # the one after it must be known, too
        found = _find(run, asked, selection, sort, found.total)
    ids = found.ids
    try:
        position = ids.index(rollout)
    except ValueError:
        return NeighboursResponse(position=None, total=found.total, previous=None, next=None)
    return NeighboursResponse(
        position=position,
        total=found.total,
        previous=ids[position - 1] if position else None,
        next=ids[position + 1] if position + 1 < len(ids) else None,
    )


class _ListedIds(NamedTuple):
    """A listing, or its beginning."""

    ids: list[str]
    total: int


def _find(run: OpenRun, asked: Run, selection: RolloutSelection, sort: Sort, last: int) -> _ListedIds:
    """The ids of a listing in order, at least up to some place: found once for each state of the run."""
    limit = FIRST_IDS if last <= FIRST_IDS else None
    return run.cached(
        ("ids", selection, sort, limit),
        lambda: _ask_ids(asked, selection, sort, limit),
        lambda found: sum(map(len, found.ids[:1])) * len(found.ids) + 64 * len(found.ids),
    )


def count_values(
    asked: Run, selection: RolloutSelection, columns: Sequence[str], timeout: float | None
) -> FacetsResponse:
    """How many rollouts have each value of some columns, under all filters but those on that column."""
    if len(columns) > MAX_FACETS:
        raise InputError(f"Expected at most {MAX_FACETS} columns, got {len(columns)}.")
    return FacetsResponse(facets={name: _counts(asked, selection.without(name), name, timeout) for name in columns})


def _counts(asked: Run, selection: RolloutSelection, column: str, timeout: float | None) -> tuple[Count, ...]:
    rows = select_rollouts(selection, {"value": column})
    value = "unnest(value)" if column_expression(column).kind == "tags" else "value"
    values = f"select left({value}::varchar, {_MAX_CELL_CHARS}) as value from ({rows})"
    counted = f"select value, count(*) as n from ({values}) where value is not null group by 1"
    question = f"{counted} order by n desc, value limit {_MAX_VALUES}"
    return tuple(Count(*row) for row in asked.sql(question, timeout=timeout))


def _ask_ids(asked: Run, selection: RolloutSelection, sort: Sort, limit: int | None) -> _ListedIds:
    """One list instead of very many rows; most people look at its beginning, which is found much sooner."""
    given = [name for name, _ in sort]
    order = (*sort, *((name, False) for name, _ in _DEFAULT if name not in given)) if sort else _DEFAULT
    rows = select_rollouts(selection, {f"k{place}": name for place, (name, _) in enumerate(order)})
    keys = [_key(f"k{place}", name, descending) for place, (name, descending) in enumerate(order)]
    order_by = f"order by {', '.join(keys)}, id"
    some = "" if limit is None else f"limit {limit}"
    question = f"""
        with chosen as ({rows})
        select (select list(id) from (select id from chosen {order_by} {some})), (select count(distinct id) from chosen)
    """
    [(ids, total)] = asked.sql(question, timeout=_timeout(selection)).fetchall()
    return _ListedIds(list(dict.fromkeys(ids or ())), total)  # a line that is there twice is one rollout


def _timeout(selection: RolloutSelection) -> float | None:
    return SQL_TIMEOUT_SECONDS if selection.has_user_sql else None


def _key(alias: str, name: str, descending: bool) -> str:
    """In any order what is missing comes last, and what is no number just before it."""
    direction = "desc" if descending else "asc"
    kind = column_expression(name).kind
    if kind == "number":
        return f"{alias} is null, isnan({alias}::double), {alias} {direction}"
    if name == "group":  # often numbers, which people count
        return f"try_cast({alias} as bigint) {direction} nulls last, {alias} {direction} nulls last"
    return f"{alias} {direction} nulls last"


def _rows(run: Run, ids: Sequence[str], columns: Sequence[str]) -> tuple[dict[str, Any], ...]:
    names = [name for name in dict.fromkeys(columns) if name != "id"]
    if not ids:
        return ()
    if not names:
        return tuple({"id": one} for one in ids)
    aliases = {f"c{place}": name for place, name in enumerate(names)}
    question = f"select id, {', '.join(map(_shown, aliases, names))} from ({select_by_id(aliases)})"
    found = {row[0]: row[1:] for row in run.sql(question, {"ids": list(ids)})}
    return tuple({"id": one, **dict(zip(names, found[one], strict=True))} for one in ids if one in found)


def _shown(alias: str, name: str) -> str:
    """The value for a cell: long texts are cut, and so is JSON."""
    kind = column_expression(name).kind
    value = f"to_json({alias})" if name in _MAPS else alias
    return f"left({value}::varchar, {_MAX_CELL_CHARS})" if kind in ("text", "json") else alias
