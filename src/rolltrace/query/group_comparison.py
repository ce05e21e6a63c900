"""Compares the members of one group, for the terminal, the viewer and the report."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.query.evenly_spaced import BY_REWARD, select_evenly_spaced
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
"""Of a group with more members so many are compared at once: those with the best rewards, then the next."""
_MAX_BYTES = 64 << 20
"""How long the lines of the members that are compared at once may be, unless they are only two."""
_MAX_MARKS = 400
"""How many rewards show how those of a larger group are distributed."""

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


class MemberName(msgspec.Struct, frozen=True):
    """What a member is called."""

    id: str
    index: int | None
    episode: int | None
    seat: int | None


class RewardMark(msgspec.Struct, frozen=True):
    """The reward of one of many members."""

    id: str
    index: int | None
    reward: Float | None
    rank: int
    """How many members have a better reward, or an equal one and a smaller index."""


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
    offset: int
    """The rank of the first of them, from 0."""
    omitted: int
    """How many members come before and after these."""
    unreadable: int
    """How many members between them are left out because their lines are damaged."""
    is_against: bool
    """Whether all members are compared with `reference`, and not each with the one before it."""
    reference: MemberName | None
    """The member that was chosen to compare all with; otherwise the one before the first of these, if there is one."""
    marks: tuple[RewardMark, ...]
    """If `members` are not all: rewards of the group, evenly spaced by rank."""
    matrix: PreferenceMatrix | None
    rubric: RubricGrid | None
    scores: tuple[GroupScore, ...]
    """About the group as a whole, the earliest first."""
    retried: int
    """How many attempts were retried."""
    collides: int
    """How many members are in slots that several sessions recorded at the same time."""


class LoadedGroup(NamedTuple):
    """A group with some of its rollouts, and its scores."""

    group: Group
    retried: int
    """How many attempts were retried."""
    collides: int
    """How many members are in slots that several sessions recorded at the same time."""
    ids: list[str]
    """Some members, in the order of their rewards."""
    rollouts: list[Rollout]
    """Those of them that can be read."""
    scores: list[Score]
    """Scores about the group as a whole, the earliest first; errors have no traceback."""


def load_group(run: Run, key: GroupKey, most: int, offset: int = 0) -> LoadedGroup:
    """Load a group and `most` of its members, those with the best rewards after the first `offset`."""
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
    ranked = f"select id from {COUNTED_ROLLOUTS} and {is_in_group} order by {BY_REWARD} limit {most} offset {offset}"
    ids = _short_enough(run, list(dict.fromkeys(id_ for (id_,) in run.sql(ranked))))
    rollouts = _read_rollouts(run, ids)
    return LoadedGroup(groups[0], retried, collides, ids, rollouts, _group_scores(run, key, rollouts))


def _short_enough(run: Run, ids: list[str]) -> list[str]:
    """The first of these rollouts, as many as may be read at once."""
    if not ids:
        return []
    lengths = {id_: place.length for id_, place in run.locations("rollouts", _one_of(ids)).items()}
    totals = accumulate(lengths.get(id_, 0) for id_ in ids)
    fitting = sum(total <= _MAX_BYTES for total in totals)
    return ids[: max(2, fitting)]  # a member and the one before it


def _read_rollouts(run: Run, ids: Sequence[str]) -> list[Rollout]:
    """The rollouts of these ids, in this order; those that can no longer be read are left out."""
    read = {rollout.id: rollout for rollout in run.rollouts(where=_one_of(ids))} if ids else {}
    return [read[id_] for id_ in ids if id_ in read]


def _one_of(ids: Sequence[str]) -> str:
    return f"id in ({', '.join(map(sql_literal, ids))})"


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


def compare_group(
    run: Run, key: GroupKey, *, most: int = MAX_MEMBERS, offset: int = 0, against: str | None = None
) -> GroupComparison:
    """Compare `most` members of a group, after the first `offset`: each with the one before it, or with `against`.

    Parts of its records that cannot be read are None; they raise nothing.
    """
    before = min(offset, 1) if against is None else 0
    loaded = load_group(run, key, most + before, offset - before)
    transcripts = [member_transcript(rollout) for rollout in loaded.rollouts]
    reference = transcripts.pop(0) if transcripts and loaded.ids[:before] == [transcripts[0].rollout.id] else None
    if against is not None:
        reference = next(map(member_transcript, _read_rollouts(run, [against])), None)
    rollouts = [one.rollout for one in transcripts]
    others = [reference, *transcripts] if against is None else [reference] * len(transcripts)
    shared = shared_prompt(rollouts if reference is None else [*rollouts, reference.rollout])
    shared_shown = truncate_messages([TranscriptMessage(message, None) for message in shared])
    stats = loaded.group
    members = tuple(
        compare_member(transcript, other, len(shared), stats.mean)
        for transcript, other in zip(transcripts, others, strict=False)
    )
    first = rollouts[0] if rollouts else None
    window = max(0, len(loaded.ids) - before)
    return GroupComparison(
        **msgspec.structs.asdict(key),
        task="" if first is None else first.task,
        task_data={} if first is None else first.task_data,
        size=stats.size,
        n=stats.n,
        mean=stats.mean,
        std=stats.std,
        has_signal=stats.has_signal,
        no_signal=why_no_signal(stats, [_member_status(*pair) for pair in zip(rollouts, members, strict=True)]),
        shared=shared_shown,
        shared_omitted=len(shared) - len(shared_shown),
        members=members,
        offset=offset,
        omitted=max(0, stats.size - window),
        unreadable=window - len(members),
        is_against=against is not None,
        reference=None if reference is None else _name(reference.rollout),
        marks=_reward_marks(run, key) if window < stats.size else (),
        matrix=_matrix(loaded.scores, [MatrixMember(one.id, one.index) for one in members]),
        rubric=rubric_grid(rollouts),
        scores=tuple(
            GroupScore(score.id, score.name, score.value, score.producer, score.created_at, score.error)
            for score in loaded.scores
        ),
        retried=loaded.retried,
        collides=loaded.collides,
    )


def _name(rollout: Rollout) -> MemberName:
    return MemberName(rollout.id, rollout.index, rollout.episode, rollout.seat)


def _reward_marks(run: Run, key: GroupKey) -> tuple[RewardMark, ...]:
    members = f"{COUNTED_ROLLOUTS} and {group_condition(key)}"
    return tuple(RewardMark(*row) for row in run.sql(select_evenly_spaced('id, "index", reward', members, _MAX_MARKS)))


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
