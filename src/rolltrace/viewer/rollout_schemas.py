"""The responses of the server about one rollout and about one group, as JSON objects; see `schemas`."""

from typing import Annotated

import msgspec

from rolltrace.query.group_comparison import GroupComparison
from rolltrace.query.reward_breakdown import Regrade, RewardTerm
from rolltrace.trace.codec import RolloutWithScores
from rolltrace.trace.json_numbers import Float
from rolltrace.trace.score import GroupKey, Score


class GroupSibling(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout of the same group or episode."""

    id: str
    index: int | None
    seat: int | None
    episode: int | None
    policy: str
    status: str
    stop_reason: str
    steps: int
    reward: Float | None


class RolloutGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The group that a rollout belongs to."""

    size: int
    n: int
    """The number of rewards."""
    mean: Float | None
    std: Float | None
    has_signal: bool
    members: tuple[GroupSibling, ...]
    """At most 40: the nearest to the rollout, itself included, in the order of their indexes."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at the same index of a group."""

    id: str
    attempt: int
    session: str
    status: str
    stop_reason: str
    superseded: bool
    collides: bool


class CutText(msgspec.Struct, frozen=True):
    """A text of which a response has only the beginning."""

    path: tuple[str | int, ...]
    """Where it is in the record: names of fields, keys and indexes."""
    length: int
    """How many code points it has; 0 for token ids, which are left out."""
    shown: int
    """How many of them are in the response."""


class TextResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/text?run=&id=&path=&offset=`: a piece of a text of a rollout; `path` is a JSON array."""

    text: str
    next: int | None
    """The offset of the next piece, in code points; None if this is the last."""


class RolloutResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/rollout?run=&id=&first=`: one rollout with its scores, its group and its other attempts.

    Of very many messages it has the first and the last or, with `first`, those from this index on.
    """

    rollout: Annotated[msgspec.Raw, msgspec.Meta(extra={"json_of": RolloutWithScores})]
    loaded: tuple[tuple[int, int], ...]
    """The ranges of messages that `rollout` has, without their ends; of at most 2,000 messages it has all."""
    cut: tuple[CutText, ...]
    """Texts of which `rollout` has only the beginning, because its record is very long; the first 20,000 of them."""
    reward: Float | None
    """The total as it stands now, late scores included."""
    advantage: Float | None
    terms: tuple[RewardTerm, ...]
    """The terms whose sum is the reward; without a reward, the terms that are known so far."""
    scores: tuple[Annotated[msgspec.Raw, msgspec.Meta(extra={"json_of": Score})], ...]
    """Late scores of this rollout, the oldest first; if there are very many, only the newest."""
    reward_score: str | None
    """The id of the score that gives the reward; None if the rollout itself gives it."""
    regrades: tuple[Regrade, ...]
    """Old against new, for each grader that `rolltrace regrade` ran, the latest last."""
    group: RolloutGroup
    seats: tuple[GroupSibling, ...]
    """The seats of the same episode, at most 100; empty if it is not a game."""
    attempts: tuple[Attempt, ...]
    """The attempts and sessions at the same index, at most 100; only its own if members have no indexes."""


class GroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/group?run=&split=&iteration=&env=&group=&offset=&limit=&against=`: members of a group side by side.

    `limit` is at most 256. `against` is the id of a member to compare all others with; without it each is compared with
    the one before it.
    """

    group: GroupComparison
    previous: GroupKey | None
    next: GroupKey | None
