"""How people name rollouts: by id or part of one, or by where they stand in the run."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from rolltrace.errors import InputError, UnknownNameError

_SHORTEST_PART = 4
_MOST_NAMED = 5


class Placed(Protocol):
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


Some = TypeVar("Some", bound=Placed)


def group_address(rollout: Placed) -> str:
    """Where the rollout's group stands: SPLIT/ENV/ITERATION/GROUP."""
    return f"{rollout.split}/{rollout.env}/{rollout.iteration}/{rollout.group}"


def address(rollout: Placed) -> str:
    """Where a rollout stands: SPLIT/ENV/ITERATION/GROUP/INDEX. Attempts and sessions of one share it."""
    return f"{group_address(rollout)}/{rollout.index}"


def short_addresses(rollouts: Sequence[Placed]) -> dict[str, str]:
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


def latest_plays(rollouts: Sequence[Some]) -> list[Some]:
    """Of the rollouts at one address, only the last attempt of the latest session."""
    latest: dict[str, Some] = {}
    for rollout in rollouts:
        place = address(rollout)
        before = latest.get(place)
        if before is None or (rollout.session, rollout.attempt) >= (before.session, before.attempt):
            latest[place] = rollout
    return list(latest.values())


def choose(rollouts: Sequence[Some], name: str, where: str | Path) -> list[Some]:
    """The one rollout that `name` means, or all of the group that it means.

    It is an id, the beginning or end of one, or the end of an address: `GROUP/INDEX`, `GROUP`, or more of it.
    """
    exact = [rollout for rollout in rollouts if rollout.id == name]
    if exact:
        return exact[:1]
    standing = [rollout for rollout in rollouts if _ends_with(address(rollout), name)]
    found = latest_plays(standing) or _by_part_of_id(rollouts, name)
    if len(found) > 1:
        raise InputError(_ambiguous(found, name, where))
    return found or _group(rollouts, name, where)


def _group(rollouts: Sequence[Some], name: str, where: str | Path) -> list[Some]:
    members = [rollout for rollout in rollouts if _ends_with(group_address(rollout), name)]
    groups = sorted({group_address(rollout) for rollout in members})
    if len(groups) > 1:
        listing = ", ".join(groups[:_MOST_NAMED])
        raise InputError(f"{len(groups)} groups of {where} match {name!r}: {listing}{_more(groups)}. Give more of one.")
    if not members:
        raise unknown_name(rollouts, len(rollouts), name, where)
    return sorted(latest_plays(members), key=lambda rollout: rollout.index)


def _by_part_of_id(rollouts: Sequence[Some], part: str) -> list[Some]:
    if len(part) < _SHORTEST_PART:
        return []
    return [rollout for rollout in rollouts if rollout.id.startswith(part) or rollout.id.endswith(part)]


def _ends_with(whole: str, tail: str) -> bool:
    return whole == tail or whole.endswith(f"/{tail}")


def _more(matches: Sequence[object]) -> str:
    return ", …" if len(matches) > _MOST_NAMED else ""


def _ambiguous(found: Sequence[Placed], name: str, where: str | Path) -> str:
    listing = ", ".join(f"{address(rollout)} ({rollout.id})" for rollout in found[:_MOST_NAMED])
    return f"{len(found)} rollouts of {where} match {name!r}: {listing}{_more(found)}. Give more of one."


def unknown_name(some: Sequence[Placed], count: int, name: str, where: str | Path) -> UnknownNameError:
    """The error for a name that none of the run's `count` rollouts has, with the nearest name of some of them."""
    if not some:
        return UnknownNameError(f"There is no rollout {name!r} in {where}: it holds none.")
    names = {*short_addresses(some).values(), *(rollout.id for rollout in some)}
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.0)
    return UnknownNameError(
        f"There is no rollout or group {name!r} among the {count} rollouts of {where}. "
        f"Did you mean {near[0]!r}? `rolltrace show {where}` lists them."
    )
