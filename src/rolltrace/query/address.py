"""Addresses of rollouts and groups for people, and the messages for unknown and ambiguous names."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rolltrace.errors import UnknownNameError
from rolltrace.trace.score import GroupKey

MAX_NAMED = 5
"""How many candidates a message lists."""


class HasAddress(Protocol):
    """A rollout, or what is known of it without reading its line."""

    @property
    def id(self) -> str:
        """The id of the rollout."""
        ...

    @property
    def group_key(self) -> GroupKey:
        """Its group."""
        ...

    @property
    def index(self) -> int | None:
        """Its index in the group; None if it has none."""
        ...


def address(rollout: HasAddress) -> str:
    """The address of a rollout: SPLIT/ENV/ITERATION/GROUP/INDEX. All attempts and sessions share it.

    Without an index, it is the rollout's id.
    """
    return rollout.id if rollout.index is None else f"{rollout.group_key.address}/{rollout.index}"


def short_addresses(rollouts: Sequence[HasAddress]) -> dict[str, str]:
    """By id, the part of each address that can differ among these rollouts."""
    keys = [rollout.group_key for rollout in rollouts]
    if len({key.split for key in keys}) > 1:
        return {rollout.id: address(rollout) for rollout in rollouts}
    start = 2
    if len({key.env for key in keys}) > 1:
        start = 0
    elif len({key.iteration for key in keys}) > 1:
        start = 1
    return {
        rollout.id: rollout.id
        if rollout.index is None
        else "/".join((key.env, str(key.iteration), key.group, str(rollout.index))[start:])
        for rollout, key in zip(rollouts, keys, strict=True)
    }


def ambiguous_rollouts_message(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> str:
    """The message for a name that `count` rollouts match; `some` are the first of them."""
    listing = ", ".join(f"{address(rollout)} ({rollout.id})" for rollout in some[:MAX_NAMED])
    return f"{count} rollouts of {where} match {name!r}: {listing}{_more(count)}. Give more of one, or its id."


def ambiguous_groups(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> str:
    """The message for a name that `count` groups match; `some` has a member of each of the first."""
    listing = ", ".join(rollout.group_key.address for rollout in some[:MAX_NAMED])
    return f"{count} groups of {where} match {name!r}: {listing}{_more(count)}. Give more of one."


def unknown_name(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> UnknownNameError:
    """The error for a name that none of the run's `count` rollouts matches; it suggests the nearest name of `some`."""
    if not some:
        return UnknownNameError(f"There is no rollout {name!r} in {where}: the run has no rollouts.")
    names = {*short_addresses(some).values(), *(rollout.id for rollout in some)}
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
    return UnknownNameError(
        f"There is no rollout or group {name!r} among the {count} rollouts of {where}. "
        f"Did you mean {near[0]!r}? `rolltrace show {where}` lists them."
    )


def _more(count: int) -> str:
    return ", …" if count > MAX_NAMED else ""
