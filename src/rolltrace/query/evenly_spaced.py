"""Chooses some of many items at even distances, in Python and in SQL."""

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

BY_REWARD = 'reward is null, isnan(reward), reward desc, "index", id'
"""The order of a group's members in SQL: the best reward first, rewards that are NaN or null last."""


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` items, at even distances from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]


def is_evenly_spaced(rank: str, count: str, most: int) -> str:
    """The SQL condition that `evenly_spaced` takes the item of this rank, from 0, of so many."""
    steps = max(most - 1, 1)
    place = f"(({rank} * {steps} + {count} - 2) // ({count} - 1))"
    return f"({count} <= {most} or ({place} < {most} and {place} * ({count} - 1) // {steps} = {rank}))"


def select_evenly_spaced(columns: str, rows: str, most: int) -> str:
    """SQL for these columns and the rank of at most `most` rows of `rows`, a FROM clause, evenly spaced by reward."""
    ranked = (
        f"select {columns}, row_number() over (order by {BY_REWARD}) - 1 as rank, count(*) over () as n from {rows}"
    )
    return f"select {columns}, rank from ({ranked}) where {is_evenly_spaced('rank', 'n', most)} order by rank"
