"""Finds rollouts by id, address or part of an id, in a run of any size."""

from typing import NamedTuple

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.address import MAX_NAMED, ambiguous_groups, ambiguous_rollouts_message, unknown_name
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.table_schema import GROUP_COLUMNS, group_condition, sql_literal
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.score import GroupKey

SHORTEST_PART = 4
"""Shorter names are not searched for in ids."""
_MAX_SUGGESTED_FROM = 1_000
_COLUMNS = f'{GROUP_COLUMNS}, id, "index", attempt, session'
_ADDRESS_ORDER = 'split, env, iteration, "group"'
_GROUP_ADDRESS = "split || '/' || env || '/' || iteration || '/' || \"group\""


class RolloutAddress(msgspec.Struct, frozen=True):
    """The address of a rollout, and which attempt of it this is."""

    group_key: GroupKey
    id: str
    index: int | None
    attempt: int
    session: str


class _Matches(NamedTuple):
    total: int
    first: list[RolloutAddress]


def find_rollouts(run: Run, name: str, limit: int | None = None) -> list[RolloutAddress]:
    """The one rollout with this name, or the rollouts of the one group with this name, up to a limit.

    A name is an id, the end of an address such as GROUP/INDEX, the beginning or end of an id, or the end of a group's
    address. They are tried in this order, until one matches exactly one rollout or group.
    """
    ambiguous: list[InputError] = []
    for find in (_by_id, _by_address, _by_part_of_id):
        matches = find(run, name)
        if matches.total == 1:
            return matches.first
        if matches.total:
            ambiguous.append(InputError(ambiguous_rollouts_message(matches.first, matches.total, name, run.path)))
    groups = _groups(run, name)
    if groups.total == 1:
        members = f"{COUNTED_ROLLOUTS} and {group_condition(groups.first[0].group_key)}"
        return _matches(run, members, limit=limit).first
    if groups.total:
        ambiguous.append(InputError(ambiguous_groups(groups.first, groups.total, name, run.path)))
    if ambiguous:
        raise ambiguous[0]
    count = (run.sql("select count(*) from every_rollout").fetchone() or (0,))[0]
    some = _matches(run, COUNTED_ROLLOUTS, limit=_MAX_SUGGESTED_FROM)
    raise unknown_name(some.first, count, name, run.path)


def _by_id(run: Run, name: str) -> _Matches:
    return _matches(run, f"every_rollout where id = {sql_literal(name)}")


def _by_address(run: Run, name: str) -> _Matches:
    """By GROUP/INDEX, or more of the address; finds the last attempt of the latest session."""
    group, slash, index = name.rpartition("/")
    if not slash or not _is_index(index):
        return _Matches(0, [])
    return _matches(run, f'{COUNTED_ROLLOUTS} and "index" = {index} and {_has_address(group)}')


def _by_part_of_id(run: Run, name: str) -> _Matches:
    if len(name) < SHORTEST_PART:
        return _Matches(0, [])
    part = sql_literal(name)
    return _matches(run, f"every_rollout where starts_with(id, {part}) or ends_with(id, {part})")


def _groups(run: Run, name: str) -> _Matches:
    """A rollout of each group that has this name."""
    source = f"(select distinct on ({GROUP_COLUMNS}) * from {COUNTED_ROLLOUTS} and {_has_address(name)})"
    return _matches(run, source)


def _has_address(group: str) -> str:
    """The SQL condition that a group's address is this, or ends with it."""
    return f"({_GROUP_ADDRESS} = {sql_literal(group)} or ends_with({_GROUP_ADDRESS}, {sql_literal(f'/{group}')}))"


def _is_index(text: str) -> bool:
    """Whether the text is an index as addresses have it."""
    return text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text and int(text) < INT64_LIMIT


def _matches(run: Run, source: str, limit: int | None = MAX_NAMED) -> _Matches:
    """Count the rollouts of a source, and return the first of them; duplicate lines count once."""
    shown = "" if limit is None else f"limit {limit}"
    rollouts = f"select distinct on (id) {_COLUMNS} from {source}"
    statement = f"select *, count(*) over () from ({rollouts}) order by {_ADDRESS_ORDER}, index, id {shown}"
    rows = run.sql(statement).fetchall()
    return _Matches(rows[0][-1] if rows else 0, [RolloutAddress(GroupKey(*row[:4]), *row[4:-1]) for row in rows])
