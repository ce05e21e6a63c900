"""Groups of a run as objects: what the table `groups` says of each, and its members."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from rolltrace.trace.rollout import GroupKey, Rollout

ReadRollouts = Callable[[Sequence[str]], Iterator[Rollout]]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group: the last attempt at its place in the group, of a session that no other supersedes."""

    id: str
    """The rollout's id."""
    index: int | None
    reward: float | None
    """As it stands now, late scores included."""
    advantage: float | None
    """The reward less the mean of the group; None without a reward."""


class Group(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One row of the table `groups`: the rollouts that played one task together, and how their rewards compare."""

    run: str
    """The id of the run."""
    split: str
    iteration: int
    env: str
    group: str
    """Its name, unique within the iteration."""
    task: str
    """What was played; the first member's, if they differ."""
    size: int
    """How many members it has."""
    n: int
    """How many of them have a reward; the numbers that follow are over those."""
    mean: float | None
    std: float | None
    """The standard deviation."""
    min: float | None
    max: float | None
    has_signal: bool
    """Whether at least two rewards differ, so that some advantage is not 0."""
    collides: bool
    """Whether sessions that wrote at the same time share it."""
    members: tuple[GroupMember, ...]
    """In the order of their indexes."""

    @property
    def key(self) -> GroupKey:
        """Which group of the run."""
        return GroupKey(self.split, self.iteration, self.env, self.group)

    def rollouts(self) -> Iterator[Rollout]:
        """The members as whole rollouts, read one by one, in the order of their indexes."""
        read: ReadRollouts = self.__dict__["_read"]
        return read([member.id for member in self.members])


def group_from_row(row: Mapping[str, Any], read: ReadRollouts) -> Group:
    """The group of a row; `read` gives rollouts by id."""
    group = Group(**{**row, "members": tuple(GroupMember(**member) for member in row["members"])})
    force_setattr(group, "_read", read)
    return group
