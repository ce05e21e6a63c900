"""What a worker sends back: small reports of groups, never the rollouts themselves, which are in the run."""

from typing import Self

import msgspec

from rolltrace.rollout.group_runner import GroupResult, PlayedGroup
from rolltrace.rollout.rollout_end import FinishedRollout
from rolltrace.store.ledger import Ledger
from rolltrace.trace.failure import Failure
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

    @classmethod
    def of(cls, member: FinishedRollout) -> Self:
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
        )


class GroupReport(PlayedGroup, msgspec.Struct, frozen=True):
    """A group that a worker has played and recorded; as `GroupResult`, without the rollouts."""

    key: GroupKey
    task: str
    members: tuple[MemberReport, ...]
    """The last attempt of each index, in the order of the indexes."""
    failure: Failure | None = None
    """Why the group as a whole does not count, if it does not."""

    @classmethod
    def of(cls, result: GroupResult) -> Self:
        """The report of a group's result."""
        members = tuple(map(MemberReport.of, result.members))
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

_decoder = msgspec.msgpack.Decoder(list[Event])


def encode_events(events: list[Event]) -> bytes:
    """Encode events for the process that plays."""
    return msgspec.msgpack.encode(events)


def decode_events(data: bytes) -> list[Event]:
    """Decode events of a worker."""
    return _decoder.decode(data)
