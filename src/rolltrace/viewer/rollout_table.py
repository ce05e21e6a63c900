"""The rollout table: rows in any order and selection, the values of columns, and the neighbours of a rollout."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.table_schema import NUMBER_MAP, STORED_COLUMNS, sql_literal
from rolltrace.viewer.columns import column_expression
from rolltrace.viewer.filters import RolloutSelection, read_names, select_by_id, select_rollouts
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.schemas import Count, FacetsResponse, NeighboursResponse, RolloutsResponse

MAX_ROWS = 1_000
MAX_COLUMNS = 100
MAX_FACETS = 20
"""Each facet is counted by a statement of its own."""
_MAX_KEYS = 5
WINDOW = 2_000
"""How many ids are queried at once."""
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
    found = _Listing(run, sql_run, selection, sort).page(offset, min(limit, MAX_ROWS))
    return RolloutsResponse(total=found.total, offset=offset, rows=_rows(run.run, found.ids, columns))


def find_neighbours(
    run: OpenRun, sql_run: Run, selection: RolloutSelection, sort: Sort, rollout: str
) -> NeighboursResponse:
    """The position of a rollout among the selected ones, and the rollouts before and after it."""
    listing = _Listing(run, sql_run, selection, sort)
    window = listing.find(rollout)
    if window is None:
        return NeighboursResponse(position=None, total=listing.page(0, 0).total, previous=None, next=None)
    place = window.ids.index(rollout)
    return NeighboursResponse(
        position=window.start + place,
        total=window.total,
        previous=window.ids[place - 1] if place else None,
        next=window.ids[place + 1] if place + 1 < len(window.ids) else None,
    )


class _Window(NamedTuple):
    """Some ids of a listing, the position of the first, and how many the listing has in all."""

    start: int
    ids: list[str]
    total: int

    def has_neighbours_of(self, rollout: str) -> bool:
        """Whether this rollout is in it, and those before and after it are, too, if there are such."""
        if rollout not in self.ids:
            return False
        is_first, is_last = rollout == self.ids[0], rollout == self.ids[-1]
        return (not is_first or self.start == 0) and (not is_last or self.start + len(self.ids) >= self.total)


def _bytes_of(window: _Window) -> int:
    """About how much memory a window takes."""
    return sum(map(len, window.ids)) + 64 * len(window.ids)


class _Listing:
    """The ids of the selected rollouts in order. They are queried and cached in windows."""

    def __init__(self, run: OpenRun, sql_run: Run, selection: RolloutSelection, sort: Sort) -> None:
        sorted_by = [name for name, _ in sort]
        order = (*sort, *((name, False) for name, _ in _DEFAULT if name not in sorted_by)) if sort else _DEFAULT
        self._run = run
        self._sql_run = sql_run
        self._timeout = selection.timeout
        self._name = selection, sort
        self._rows = select_rollouts(selection, {f"k{number}": name for number, (name, _) in enumerate(order)})
        keys = [key for number, (name, descending) in enumerate(order) for key in _keys(f"k{number}", name, descending)]
        self._keys = [*keys, ("id", False)]
        self._last: list[_Window] = run.cached(("last window", self._name), list, lambda _: 0)
        """The window that was last used, in which the next rollout is likely to be."""

    def page(self, offset: int, limit: int) -> _Window:
        """The ids at some positions."""
        window = self._window(offset // WINDOW * WINDOW)
        self._last[:] = [window]
        ids = window.ids[offset - window.start :]
        for start in range(window.start + WINDOW, min(offset + limit, window.total), WINDOW):
            following = self._window(start)
            if following.total != window.total:  # the run has grown since: only one statement is consistent
                return self._select(offset, limit)
            ids = ids + following.ids
        return _Window(offset, ids[:limit], window.total)

    def find(self, rollout: str) -> _Window | None:
        """A window that has this rollout and its neighbours; None if the rollout is not selected."""
        for window in (self._window(0), *self._last):
            if window.has_neighbours_of(rollout):
                return window
        statement = f"""
            with selected as ({self._rows}), ordered as materialized (
                select id, row_number() over (order by {self._order()}) - 1 as position from selected
            ), own as (select position from ordered where id = {sql_literal(rollout)})
            select id, ordered.position, (select count(*) from ordered) from ordered, own
            where abs(ordered.position - own.position) < {WINDOW // 2} order by 2
        """
        rows = self._sql_run.sql(statement, timeout=self._timeout).fetchall()
        if not rows:
            return None
        window = _Window(rows[0][1], [id_ for id_, *_ in rows], rows[0][2])
        self._last[:] = [window]
        return window

    def _window(self, start: int) -> _Window:
        """The window that begins at this position, a multiple of its length."""
        return self._run.cached(("ids", self._name, start), lambda: self._query(start), _bytes_of)

    def _query(self, start: int) -> _Window:
        total = self._window(0).total if start else 0
        if start > total // 2:  # sorting from the end is quicker: fewer rows come before
            limit = max(min(WINDOW, total - start), 0)
            window = self._select(max(total - start - limit, 0), limit, is_reversed=True)
            if window.total == total:  # or the run has grown since
                return _Window(start, window.ids[::-1], total)
        return self._select(start, WINDOW)

    def _select(self, offset: int, limit: int, *, is_reversed: bool = False) -> _Window:
        # The rows themselves, not a list of them: an aggregate does not keep the order of its input.
        statement = f"""
            with selected as materialized ({self._rows})
            select id, (select count(*) from selected) from selected
            order by {self._order(is_reversed=is_reversed)} limit {limit} offset {offset}
        """
        rows = self._sql_run.sql(statement, timeout=self._timeout).fetchall()
        if rows:
            return _Window(offset, [id_ for id_, _ in rows], rows[0][1])
        [(total,)] = self._sql_run.sql(f"select count(*) from ({self._rows})", timeout=self._timeout)
        return _Window(offset, [], total)

    def _order(self, *, is_reversed: bool = False) -> str:
        nulls = "nulls first" if is_reversed else "nulls last"
        return ", ".join(f"{key} {'desc' if desc != is_reversed else 'asc'} {nulls}" for key, desc in self._keys)


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


def _keys(alias: str, name: str, descending: bool) -> list[tuple[str, bool]]:
    """The keys of an ORDER BY for a column, in which nulls come last, and NaN just before them in both directions."""
    keys = [(alias, descending)]
    if descending and column_expression(name).kind == "number" and STORED_COLUMNS["rollouts"].get(name) != "BIGINT":
        keys.insert(0, (f"isnan({alias}::double)", False))
    if name == "group":  # names are often numbers
        keys.insert(0, (f"try_cast({alias} as bigint)", descending))
    return keys


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
