"""What a worker sends back: small reports of groups, with the rollouts themselves only if they were asked for."""

import pickle
from typing import Self, cast

import msgspec

from rolltrace.errors import InputError
from rolltrace.rollout.group_runner import GroupResult, PlayedGroup
from rolltrace.rollout.rollout_end import FinishedRollout
from rolltrace.store.ledger import Ledger
from rolltrace.trace.failure import Failure
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Status


class MemberReport(msgspec.Struct, frozen=True):
    """One member of a group that a worker has played."""

    id: str
    """The id of its rollout, which `open_run(path).get(id)` reads."""
    index: int
    attempt: int
    status: Status
    stop_reason: str
    reward: float | None
    error: Failure | None = None
    """What failed, without its traceback."""
    grade_failure: Failure | None = None
    pickled: bytes | None = None
    """The pickled rollout, with `return_rollouts`."""

    @property
    def rollout(self) -> Rollout:
        """A new copy of the record with its scores. Raises `InputError` without `return_rollouts`."""
        if self.pickled is None:
            raise InputError(
                f"Expected return_rollouts=True where workers play, to get rollouts; open_run(…).get('{self.id}') "
                "reads this one."
            )
        return cast("Rollout", pickle.loads(self.pickled))  # noqa: S301 - from a worker of this process

    @classmethod
    def of(cls, member: FinishedRollout, *, with_rollout: bool) -> Self:
        """The report of a finished rollout."""
        return cls(
            member.id,
            member.index,
            member.attempt,
            member.status,
            member.stop_reason,
            member.reward,
            _without_traceback(member.error),
            _without_traceback(member.grade_failure),
            pickle.dumps(member.rollout) if with_rollout else None,
        )


class GroupReport(PlayedGroup, msgspec.Struct, frozen=True):
    """A group that a worker has played and recorded; as `GroupResult`, by default without the rollouts."""

    key: GroupKey
    task: str
    members: tuple[MemberReport, ...]
    """The last attempt of each index, in the order of the indexes."""
    failure: Failure | None = None
    """Why the group as a whole does not count, if it does not."""

    @classmethod
    def of(cls, result: GroupResult, *, with_rollouts: bool) -> Self:
        """The report of a group's result."""
        members = tuple(MemberReport.of(member, with_rollout=with_rollouts) for member in result.members)
        return cls(result.key, result.task, members, _without_traceback(result.failure))


def _without_traceback(failure: Failure | None) -> Failure | None:
    return None if failure is None else Failure(failure.layer, failure.type, failure.message)


class Started(msgspec.Struct, frozen=True, tag=True):
    """The worker has opened its session and its policies."""

    session: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A group has ended, so that there is room for another one. Its record may not be on disk yet."""

    number: int


class Recorded(msgspec.Struct, frozen=True, tag=True):
    """The records of these groups are on disk."""

    reports: dict[int, GroupReport]
    """By the group's number."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker cannot go on: an argument is wrong, or a group raised what is not a failure of a rollout."""

    kind: str
    """The name of the exception."""
    message: str


def failed(error: BaseException) -> Failed:
    """An exception of a worker as an event."""
    return Failed(type(error).__name__, str(error))


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The worker has closed its session."""

    ledger: Ledger
    used_roles: list[str]


Event = Started | Ended | Recorded | Failed | Closed
"""What happens in a worker."""


def encode_events(events: list[Event]) -> bytes:
    """Encode events for the process that plays."""
    return pickle.dumps(events)  # unlike JSON or msgpack, with every string that an env may use as a name


def decode_events(data: bytes) -> list[Event]:
    """Decode events of a worker."""
    return cast("list[Event]", pickle.loads(data))  # noqa: S301 - from a worker of this process
