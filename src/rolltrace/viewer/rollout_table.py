"""The rollout table: rows in any order and selection, the values of columns, and the neighbours of a rollout."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.table_schema import NUMBER_MAP, STORED_COLUMNS
from rolltrace.viewer.columns import column_expression
from rolltrace.viewer.filters import RolloutSelection, read_names, select_by_id, select_rollouts
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.schemas import Count, FacetsResponse, NeighboursResponse, RolloutsResponse

MAX_ROWS = 1_000
MAX_COLUMNS = 100
MAX_FACETS = 20
"""Each facet is counted by a statement of its own."""
_MAX_KEYS = 5
FIRST_IDS = 2_000
"""How many ids are queried at first."""
_MAX_VALUES = 100
_MAX_CELL_CHARS = 2_000
"""Longer cells are truncated; the page of the rollout shows everything."""
_MAPS = {name for name, kind in STORED_COLUMNS["rollouts"].items() if kind == NUMBER_MAP}
_DEFAULT = (("iteration", True), ("env", False), ("group", False), ("index", False))

Sort = tuple[tuple[str, bool], ...]
"""Columns, and whether each is in descending order."""


def parse_sort(text: str) -> Sort:
    """Parse an order written as COLUMN,-COLUMN, where a minus means descending."""
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
    """Some rows of the selected rollouts, in order."""
    if len(columns) > MAX_COLUMNS:
        raise InputError(f"Expected at most {MAX_COLUMNS} columns, got {len(columns)}.")
    last = offset + min(limit, MAX_ROWS)
    listed = _list_ids(run, sql_run, selection, sort, last)
    return RolloutsResponse(total=listed.total, offset=offset, rows=_rows(run.run, listed.ids[offset:last], columns))


def find_neighbours(
    run: OpenRun, sql_run: Run, selection: RolloutSelection, sort: Sort, rollout: str
) -> NeighboursResponse:
    """The position of a rollout among the selected ones, and the rollouts before and after it."""
    listed = _list_ids(run, sql_run, selection, sort, 1)
    if rollout not in listed.ids[:-1]:  # the one after it is needed, too
        listed = _list_ids(run, sql_run, selection, sort, listed.total)
    ids = listed.ids
    try:
        position = ids.index(rollout)
    except ValueError:
        return NeighboursResponse(position=None, total=listed.total, previous=None, next=None)
    return NeighboursResponse(
        position=position,
        total=listed.total,
        previous=ids[position - 1] if position else None,
        next=ids[position + 1] if position + 1 < len(ids) else None,
    )


class _ListedIds(NamedTuple):
    """The ids of the selected rollouts in order, or the first of them."""

    ids: list[str]
    total: int


def _list_ids(run: OpenRun, sql_run: Run, selection: RolloutSelection, sort: Sort, last: int) -> _ListedIds:
    """The ids of the selected rollouts in order, at least up to the position `last`; cached."""
    limit = FIRST_IDS if last <= FIRST_IDS else None
    return run.cached(
        ("ids", selection, sort, limit),
        lambda: _query_ids(sql_run, selection, sort, limit),
        lambda listed: sum(map(len, listed.ids[:1])) * len(listed.ids) + 64 * len(listed.ids),
    )


def count_values(sql_run: Run, selection: RolloutSelection, columns: Sequence[str]) -> FacetsResponse:
    """How many selected rollouts have each value of some columns, without the filters on that column."""
    if len(columns) > MAX_FACETS:
        raise InputError(f"Expected at most {MAX_FACETS} columns, got {len(columns)}.")
    return FacetsResponse(facets={name: _counts(sql_run, selection.without(name), name) for name in columns})


def _counts(sql_run: Run, selection: RolloutSelection, column: str) -> tuple[Count, ...]:
    rows = select_rollouts(selection, {"value": column})
    value = "unnest(value)" if column_expression(column).kind == "tags" else "value"
    values = f"select left({value}::varchar, {_MAX_CELL_CHARS}) as value from ({rows})"
    counted = f"select value, count(*) as n from ({values}) where value is not null group by 1"
    statement = f"{counted} order by n desc, value limit {_MAX_VALUES}"
    return tuple(Count(*row) for row in sql_run.sql(statement, timeout=selection.timeout))


def _query_ids(sql_run: Run, selection: RolloutSelection, sort: Sort, limit: int | None) -> _ListedIds:
    sorted_by = [name for name, _ in sort]
    order = (*sort, *((name, False) for name, _ in _DEFAULT if name not in sorted_by)) if sort else _DEFAULT
    rows = select_rollouts(selection, {f"k{number}": name for number, (name, _) in enumerate(order)})
    keys = [_key(f"k{number}", name, descending) for number, (name, descending) in enumerate(order)]
    shown = "" if limit is None else f"limit {limit}"
    statement = f"with selected as ({rows}) select id from selected order by {', '.join(keys)}, id {shown}"
    timeout = selection.timeout
    # The rows themselves, not a list of them: an aggregate does not keep the order of its input.
    rows_of_ids = sql_run.sql(statement, timeout=timeout)
    ids = list(dict.fromkeys(row[0] for row in rows_of_ids))  # duplicate lines are one rollout
    if limit is None or len(ids) < limit:
        return _ListedIds(ids, len(ids))
    [(total,)] = sql_run.sql(f"select count(distinct id) from ({rows})", timeout=timeout)
    return _ListedIds(ids, total)


def _key(alias: str, name: str, descending: bool) -> str:
    """An ORDER BY key: in both directions nulls come last, and NaN just before them."""
    direction = "desc" if descending else "asc"
    kind = column_expression(name).kind
    if kind == "number":
        return f"{alias} is null, isnan({alias}::double), {alias} {direction}"
    if name == "group":  # names are often numbers
        return f"try_cast({alias} as bigint) {direction} nulls last, {alias} {direction} nulls last"
    return f"{alias} {direction} nulls last"


def _rows(run: Run, ids: Sequence[str], columns: Sequence[str]) -> tuple[dict[str, Any], ...]:
    names = [name for name in dict.fromkeys(columns) if name != "id"]
    if not ids:
        return ()
    if not names:
        return tuple({"id": one} for one in ids)
    aliases = {f"c{number}": name for number, name in enumerate(names)}
    statement = f"select id, {', '.join(map(_cell, aliases, names))} from ({select_by_id(aliases)})"
    rows = {row[0]: row[1:] for row in run.sql(statement, {"ids": list(ids)})}
    return tuple({"id": one, **dict(zip(names, rows[one], strict=True))} for one in ids if one in rows)


def _cell(alias: str, name: str) -> str:
    """SQL for the value of a cell: long texts and JSON are truncated."""
    kind = column_expression(name).kind
    value = f"to_json({alias})" if name in _MAPS else alias
    return f"left({value}::varchar, {_MAX_CELL_CHARS})" if kind in ("text", "json") else alias
