"""Groups of a run as objects: a row of the table `groups`, and its members."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey

ReadRollouts = Callable[[Sequence[str]], Iterator[Rollout]]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group: the last attempt at its index that is not superseded."""

    id: str
    """The rollout's id."""
    index: int | None
    reward: float | None
    """Including late scores."""
    advantage: float | None
    """The reward minus the mean of the group; None without a reward."""


class Group(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One row of the table `groups`: the rollouts of one task, and statistics of their rewards."""

    run: str
    """The id of the run."""
    split: str
    iteration: int
    env: str
    group: str
    """Its name, unique within the iteration."""
    task: str
    """The task of the first member."""
    size: int
    """How many members it has."""
    n: int
    """How many members have a reward; the statistics are over those."""
    mean: float | None
    std: float | None
    """The standard deviation."""
    min: float | None
    max: float | None
    has_signal: bool
    """Whether two rewards differ, so that some advantage is not 0."""
    collides: bool
    """Whether several sessions that overlap recorded it."""
    members: tuple[GroupMember, ...]
    """In the order of their indexes."""

    @property
    def key(self) -> GroupKey:
        """The key of the group."""
        return GroupKey(self.split, self.iteration, self.env, self.group)

    def rollouts(self) -> Iterator[Rollout]:
        """The members' rollouts, read one by one, in the order of their indexes."""
        read: ReadRollouts = self.__dict__["_read"]
        return read([member.id for member in self.members])


def group_from_row(row: Mapping[str, Any], read: ReadRollouts) -> Group:
    """The group of a row; `read` reads rollouts by id."""
    group = Group(**{**row, "members": tuple(GroupMember(**member) for member in row["members"])})
    force_setattr(group, "_read", read)
    return group
