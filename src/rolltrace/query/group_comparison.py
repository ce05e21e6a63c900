"""Compares the members of one group, for the terminal, the viewer and the report."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import InputError, RolltraceError, UnknownNameError
from rolltrace.query.group_members import Member, compare_member, member_transcript
from rolltrace.query.groups import Group
from rolltrace.query.message_truncation import TruncatedMessage, truncate_messages
from rolltrace.query.preference_matrix import MatrixMember, PreferenceMatrix, read_preference_matrix
from rolltrace.query.rubric_grid import RubricGrid, rubric_grid
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.score_order import in_score_order
from rolltrace.query.table_schema import group_condition, sql_literal
from rolltrace.query.why_no_signal import MemberStatus, why_no_signal
from rolltrace.store.sessions import Sessions
from rolltrace.trace.failure import Failure
from rolltrace.trace.freeform import from_json_mapping
from rolltrace.trace.json_numbers import Float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Layer
from rolltrace.trace.transcript import TranscriptMessage, shared_prompt

MAX_MEMBERS = 256
"""A group with more members is compared by those with the best rewards."""

_SCORE_COLUMNS = "id, run, session, name, value, data, producer, created_at, error_layer, error_type, error_message"


class GroupScore(msgspec.Struct, frozen=True):
    """A late score about the group."""

    id: str
    name: str
    value: Float | None
    producer: str
    created_at: datetime
    error: Failure | None
    """Without its traceback."""


class GroupComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A group and its members: for each index, the last attempt that is not superseded."""

    split: str
    iteration: int
    env: str
    group: str
    task: str
    task_data: dict[str, Any]
    """The task data of the first member."""
    size: int
    """How many members the group has; the next numbers are those of the table `groups`."""
    n: int
    mean: Float | None
    std: Float | None
    has_signal: bool
    no_signal: str | None
    """Why every advantage is zero or missing; None if the group has a learning signal."""
    shared: tuple[TruncatedMessage, ...]
    """The messages with which every first prompt begins."""
    shared_omitted: int
    """How many further messages of the shared prompt were left out."""
    members: tuple[Member, ...]
    """The best reward first, rewards that are NaN or null last, then by index."""
    omitted: int
    """How many further members were left out."""
    matrix: PreferenceMatrix | None
    rubric: RubricGrid | None
    scores: tuple[GroupScore, ...]
    """About the group as a whole, the earliest first."""
    retried: int
    """How many attempts were retried."""
    collides: int
    """How many members are in slots that several sessions recorded at the same time."""


class LoadedGroup(NamedTuple):
    """A group with its rollouts and scores."""

    group: Group
    retried: int
    """How many attempts were retried."""
    collides: int
    """How many members are in slots that several sessions recorded at the same time."""
    rollouts: list[Rollout]
    """The members, in the order of their rewards."""
    scores: list[Score]
    """Scores about the group as a whole, the earliest first; errors have no traceback."""


def load_group(run: Run, key: GroupKey, most: int) -> LoadedGroup:
    """Load a group and those `most` members that have the best rewards."""
    is_in_group = group_condition(key)
    groups = list(run.groups(where=is_in_group))
    if len(groups) > 1:
        raise InputError(f"Expected a group of one run, got one that {len(groups)} runs have: open one of them.")
    if not groups:
        where = f"env {key.env!r}, iteration {key.iteration} of {key.split!r}"
        raise UnknownNameError(
            f"There is no group {key.group!r} of {where} in {run.path}: `rolltrace show` lists them."
        )
    [(retried, collides)] = run.sql(
        f"select count(*) filter (retried), count(*) filter (collides) from rollouts where {is_in_group}"
    )
    best = run.sql(f"""
        select id from {COUNTED_ROLLOUTS} and {is_in_group}
        order by reward is null, isnan(reward), reward desc, "index", id limit {most}
    """)
    rollouts = _read_rollouts(run, [id_ for (id_,) in best])
    return LoadedGroup(groups[0], retried, collides, rollouts, _group_scores(run, key, rollouts))


def _read_rollouts(run: Run, ids: Sequence[str]) -> list[Rollout]:
    """The rollouts of these ids, in this order; those that can no longer be read are left out."""
    if not ids:
        return []
    try:
        read = {rollout.id: rollout for rollout in run.rollouts(where=f"id in ({', '.join(map(sql_literal, ids))})")}
    except RolltraceError:
        # A file was damaged after its table was made. Reading one by one loses only the rollouts in it.
        read = {}
    return [rollout for id_ in ids if (rollout := read.get(id_) or _read_rollout(run, id_)) is not None]


def _read_rollout(run: Run, rollout: str) -> Rollout | None:
    try:
        return run.get(rollout)
    except RolltraceError:
        return None


def _group_scores(run: Run, key: GroupKey, rollouts: Sequence[Rollout]) -> list[Score]:
    """The scores about the group, without those of sessions that a member's session supersedes."""
    rows = run.sql(f"select {_SCORE_COLUMNS} from scores where rollout is null and {group_condition(key)}")
    scores = [_score_from_row(key, row) for row in rows]
    if len(scores) > 1:
        locations = run.locations("scores", f"id in ({', '.join(sql_literal(score.id) for score in scores)})")
        scores = in_score_order((locations[score.id], score) for score in scores if score.id in locations)
    members = {rollout.session for rollout in rollouts}
    if members.issuperset(score.session for score in scores):
        return scores
    supersedes = Sessions(run.ledgers().values()).supersedes
    return [score for score in scores if not any(supersedes(member, score.session) for member in members)]


def _score_from_row(key: GroupKey, row: tuple[Any, ...]) -> Score:
    id_, run, session, name, value, data, producer, created_at, layer, kind, message = row
    error = None if layer is None else Failure(Layer(layer), kind or "", message or "")
    return Score(
        id=id_, run=run, session=session, group=key, name=name, value=value, data=_mapping(data), producer=producer,
        created_at=created_at.replace(tzinfo=UTC), error=error,
    )  # fmt: skip


def _mapping(text: str | None) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(text or "{}")
        return from_json_mapping(decoded) if isinstance(decoded, dict) else {}
    except (ValueError, RecursionError):
        return {}


def compare_group(run: Run, key: GroupKey, *, most: int = MAX_MEMBERS) -> GroupComparison:
    """Compare the members of a group. Parts of its records that cannot be read are None; they raise nothing."""
    loaded = load_group(run, key, most)
    transcripts = [member_transcript(rollout) for rollout in loaded.rollouts]
    shared = shared_prompt(loaded.rollouts)
    shared_shown = truncate_messages([TranscriptMessage(message, None) for message in shared])
    stats = loaded.group
    members = tuple(
        compare_member(transcript, before, len(shared), stats.mean)
        for transcript, before in zip(transcripts, [None, *transcripts[:-1]], strict=True)
    )
    first = loaded.rollouts[0] if loaded.rollouts else None
    return GroupComparison(
        **msgspec.structs.asdict(key),
        task="" if first is None else first.task,
        task_data={} if first is None else first.task_data,
        size=stats.size,
        n=stats.n,
        mean=stats.mean,
        std=stats.std,
        has_signal=stats.has_signal,
        no_signal=why_no_signal(stats, [_member_status(*pair) for pair in zip(loaded.rollouts, members, strict=True)]),
        shared=shared_shown,
        shared_omitted=len(shared) - len(shared_shown),
        members=members,
        omitted=max(0, stats.size - len(members)),
        matrix=_matrix(loaded.scores, [MatrixMember(one.id, one.index) for one in members]),
        rubric=rubric_grid(loaded.rollouts),
        scores=tuple(
            GroupScore(score.id, score.name, score.value, score.producer, score.created_at, score.error)
            for score in loaded.scores
        ),
        retried=loaded.retried,
        collides=loaded.collides,
    )


def _member_status(rollout: Rollout, member: Member) -> MemberStatus:
    return MemberStatus(
        index=rollout.index,
        reward=member.reward,
        status=rollout.status,
        stop_reason=rollout.stop_reason,
        error=rollout.error,
        grading_error=member.error if rollout.error is None else None,
    )


def _matrix(scores: Sequence[Score], members: Sequence[MatrixMember]) -> PreferenceMatrix | None:
    """The latest preference matrix that a grader of the group recorded."""
    matrices = (
        read_preference_matrix(score.data, members) for score in reversed(scores) if score.name == "group_grade"
    )
    return next((matrix for matrix in matrices if matrix is not None), None)
