"""Where rollouts stand in a run, as people name them, and what to say of a name that is none or several."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rolltrace.errors import UnknownNameError

MAX_NAMED = 5
"""How many of several a message names."""


class HasAddress(Protocol):
    """What is known of a rollout by where it stands; a whole rollout is one, too."""

    @property
    def id(self) -> str:
        """Unique everywhere."""
        ...

    @property
    def split(self) -> str:
        """`train`, or the name of an evaluation."""
        ...

    @property
    def env(self) -> str:
        """The environment's name."""
        ...

    @property
    def iteration(self) -> int:
        """The iteration."""
        ...

    @property
    def group(self) -> str:
        """Unique within the iteration."""
        ...

    @property
    def index(self) -> int:
        """Its place in the group."""
        ...

    @property
    def attempt(self) -> int:
        """How many plays failed before."""
        ...

    @property
    def session(self) -> str:
        """The opening of the run it was written in."""
        ...


def group_address(rollout: HasAddress) -> str:
    """Where the rollout's group stands: SPLIT/ENV/ITERATION/GROUP."""
    return f"{rollout.split}/{rollout.env}/{rollout.iteration}/{rollout.group}"


def address(rollout: HasAddress) -> str:
    """Where a rollout stands: SPLIT/ENV/ITERATION/GROUP/INDEX. Attempts and sessions of one share it."""
    return f"{group_address(rollout)}/{rollout.index}"


def short_addresses(rollouts: Sequence[HasAddress]) -> dict[str, str]:
    """By id, the part of each address that can differ among these rollouts."""
    if len({rollout.split for rollout in rollouts}) > 1:
        return {rollout.id: address(rollout) for rollout in rollouts}
    start = 2
    if len({rollout.env for rollout in rollouts}) > 1:
        start = 0
    elif len({rollout.iteration for rollout in rollouts}) > 1:
        start = 1
    return {
        rollout.id: "/".join((rollout.env, str(rollout.iteration), rollout.group, str(rollout.index))[start:])
        for rollout in rollouts
    }


def ambiguous_rollouts_message(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> str:
    """What to say of a name that `count` rollouts have, of which these are some."""
    listing = ", ".join(f"{address(rollout)} ({rollout.id})" for rollout in some[:MAX_NAMED])
    return f"{count} rollouts of {where} match {name!r}: {listing}{_more(count)}. Give more of one, or its id."


def ambiguous_groups(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> str:
    """What to say of a name that `count` groups have, of which these are members of some."""
    listing = ", ".join(group_address(rollout) for rollout in some[:MAX_NAMED])
    return f"{count} groups of {where} match {name!r}: {listing}{_more(count)}. Give more of one."


def unknown_name(some: Sequence[HasAddress], count: int, name: str, where: str | Path) -> UnknownNameError:
    """The error for a name that none of the run's `count` rollouts has, with the nearest name of some of them."""
    if not some:
        return UnknownNameError(f"There is no rollout {name!r} in {where}: it holds none.")
    names = {*short_addresses(some).values(), *(rollout.id for rollout in some)}
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
    return UnknownNameError(
        f"There is no rollout or group {name!r} among the {count} rollouts of {where}. "
        f"Did you mean {near[0]!r}? `rolltrace show {where}` lists them."
    )


def _more(count: int) -> str:
    return ", …" if count > MAX_NAMED else ""
