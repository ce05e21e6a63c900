"""Finds the rollouts that a name means, in a run of any size."""

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
"""A name with fewer letters is no part of an id."""
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
    """The one rollout that `name` means, or all of the group that it means, up to a limit.

    A name is an id, the end of an address such as GROUP/INDEX, the beginning or end of an id, or the end of a group's
    address. The first of these that is true of exactly one thing is what is meant.
    """
    several: list[InputError] = []
    for find in (_by_id, _by_address, _by_part_of_id):
        found = find(run, name)
        if found.total == 1:
            return found.first
        if found.total:
            several.append(InputError(ambiguous_rollouts_message(found.first, found.total, name, run.path)))
    groups = _groups(run, name)
    if groups.total == 1:
        members = f"{COUNTED_ROLLOUTS} and {group_condition(groups.first[0].group_key)}"
        return _matches(run, members, limit=limit).first
    if groups.total:
        several.append(InputError(ambiguous_groups(groups.first, groups.total, name, run.path)))
    if several:
        raise several[0]
    count = (run.sql("select count(*) from every_rollout").fetchone() or (0,))[0]
    some = _matches(run, COUNTED_ROLLOUTS, limit=_MAX_SUGGESTED_FROM)
    raise unknown_name(some.first, count, name, run.path)


def _by_id(run: Run, name: str) -> _Matches:
    return _matches(run, f"every_rollout where id = {sql_literal(name)}")


def _by_address(run: Run, name: str) -> _Matches:
    """By GROUP/INDEX, with as much before it as is needed; the last attempt of the latest session is meant."""
    group, slash, index = name.rpartition("/")
    if not slash or not _is_index(index):
        return _Matches(0, [])
    return _matches(run, f'{COUNTED_ROLLOUTS} and "index" = {index} and {_stands_at(group)}')


def _by_part_of_id(run: Run, name: str) -> _Matches:
    if len(name) < SHORTEST_PART:
        return _Matches(0, [])
    part = sql_literal(name)
    return _matches(run, f"every_rollout where starts_with(id, {part}) or ends_with(id, {part})")


def _groups(run: Run, name: str) -> _Matches:
    """A rollout of each group that has this name."""
    source = f"(select distinct on ({GROUP_COLUMNS}) * from {COUNTED_ROLLOUTS} and {_stands_at(name)})"
    return _matches(run, source)


def _stands_at(group: str) -> str:
    """The condition that a group's address is this, or ends with it."""
    return f"({_GROUP_ADDRESS} = {sql_literal(group)} or ends_with({_GROUP_ADDRESS}, {sql_literal(f'/{group}')}))"


def _is_index(text: str) -> bool:
    """Whether an index is written so."""
    return text.isascii() and text.isdigit() and len(text) < 20 and str(int(text)) == text and int(text) < INT64_LIMIT


def _matches(run: Run, source: str, limit: int | None = MAX_NAMED) -> _Matches:
    """How many rollouts there are of a source, and the first of them; one whose line is there twice counts once."""
    shown = "" if limit is None else f"limit {limit}"
    rollouts = f"select distinct on (id) {_COLUMNS} from {source}"
    question = f"select *, count(*) over () from ({rollouts}) order by {_ADDRESS_ORDER}, index, id {shown}"
    rows = run.sql(question).fetchall()
    return _Matches(rows[0][-1] if rows else 0, [RolloutAddress(GroupKey(*row[:4]), *row[4:-1]) for row in rows])
