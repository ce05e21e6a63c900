"""One group, its members side by side: the one computation behind the terminal, the viewer and the report."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from rolltrace.query.group import AboutGroup, load_group
from rolltrace.query.group_members import Member, MemberTranscript, compare_member, member_transcript, shared_prompt
from rolltrace.query.message_truncation import TruncatedMessage, truncate_messages
from rolltrace.query.preference_matrix import MatrixMember, PreferenceMatrix, read_preference_matrix
from rolltrace.query.rubric_grid import RubricGrid, rubric_grid
from rolltrace.query.run import Run
from rolltrace.query.why_no_signal import MemberStatus, why_no_signal
from rolltrace.trace.freeform import to_json_mapping
from rolltrace.trace.json_numbers import json_number
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Failure
from rolltrace.trace.score import GroupKey
from rolltrace.trace.strict_json import json_encoder

MAX_MEMBERS = 256
"""A group with more members is compared by those with the best rewards."""


class GroupScore(msgspec.Struct, frozen=True):
    """A late score about the group."""

    id: str
    name: str
    value: float | None
    producer: str
    at: datetime
    error: Failure | None
    """Without its traceback."""


class GroupComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A group and its members: of each place in it the last attempt that no later session repeated."""

    split: str
    iteration: int
    env: str
    group: str
    task: str
    task_data: dict[str, Any]
    """The first member's, as the other facts about the task."""
    size: int
    """How many members it has; the numbers that follow are those of the table `groups`."""
    n: int
    mean: float | None
    spread: float | None
    has_signal: bool
    no_signal: str | None
    """The reason why every advantage is zero or missing; None where one is not."""
    shared: tuple[TruncatedMessage, ...]
    """The messages with which every first prompt begins."""
    shared_omitted: int
    """How many of them come after those."""
    members: tuple[Member, ...]
    """The best reward first, rewards that are NaN or null last, then by index."""
    omitted: int
    """How many members come after those."""
    matrix: PreferenceMatrix | None
    rubric: RubricGrid | None
    scores: tuple[GroupScore, ...]
    """About the group as a whole, the earliest first."""
    retried: int
    """How many attempts were tried again."""
    collides: int
    """How many members are of places that several sessions recorded at once."""


def compare_group(
    run: Run, split: str, iteration: int, env: str, group: str, *, most: int = MAX_MEMBERS
) -> GroupComparison:
    """The group of this name; what its records hold that does not fit is None, and raises nothing."""
    found = load_group(run, GroupKey(split, iteration, env, group), most)
    told = [member_transcript(rollout) for rollout in found.rollouts]
    shared = shared_prompt(told)
    common = truncate_messages(shared)
    members = tuple(
        compare_member(one, before, len(shared), found.rewards.mean)
        for one, before in zip(told, [None, *told[:-1]], strict=True)
    )
    first = found.rollouts[0] if found.rollouts else None
    return GroupComparison(
        split=split,
        iteration=iteration,
        env=env,
        group=group,
        task="" if first is None else first.task,
        task_data={} if first is None else first.task_data,
        size=found.rewards.size,
        n=found.rewards.n,
        mean=found.rewards.mean,
        spread=found.rewards.spread,
        has_signal=found.rewards.has_signal,
        no_signal=why_no_signal(
            found.rewards, [_standing(one, given) for one, given in zip(told, members, strict=True)]
        ),
        shared=common,
        shared_omitted=len(shared) - len(common),
        members=members,
        omitted=max(0, found.rewards.size - len(members)),
        matrix=_matrix(found.scores, [MatrixMember(one.id, one.index) for one in members]),
        rubric=rubric_grid(found.rollouts),
        scores=tuple(_group_score(score) for score in found.scores),
        retried=found.retried,
        collides=found.collides,
    )


def encode_comparison(comparison: GroupComparison) -> bytes:
    """A comparison as one JSON object; numbers that are not finite are spelt as in records."""
    fields = {name: getattr(comparison, name) for name in comparison.__struct_fields__}
    fields["task_data"] = to_json_mapping(comparison.task_data, "task_data", [])
    return json_encoder.encode({name: _wire(value) for name, value in fields.items()})


def _standing(told: MemberTranscript, given: Member) -> MemberStatus:
    rollout = told.rollout
    return MemberStatus(
        index=rollout.index,
        reward=given.reward,
        status=rollout.status,
        stop_reason=rollout.stop_reason,
        error=rollout.error,
        grading_error=given.error if rollout.error is None else None,
    )


def _matrix(scores: Sequence[AboutGroup], members: Sequence[MatrixMember]) -> PreferenceMatrix | None:
    """The latest that a grader of the group recorded."""
    matrices = (
        read_preference_matrix(score.data, members) for score in reversed(scores) if score.name == "group_grade"
    )
    return next((matrix for matrix in matrices if matrix is not None), None)


def _group_score(score: AboutGroup) -> GroupScore:
    return GroupScore(score.id, score.name, score.value, score.producer, score.at, score.error)


def _wire(value: Any) -> Any:
    if isinstance(value, Message):  # has no numbers
        return value
    if isinstance(value, msgspec.Struct):
        return {name: _wire(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: _wire(item) for name, item in value.items()}
    return [_wire(item) for item in value] if isinstance(value, list | tuple) else json_number(value)
