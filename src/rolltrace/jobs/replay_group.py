"""Plays one recorded group again in fresh envs, in memory, and compares each rollout with its record."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.jobs.plan import Plan, make_runner
from rolltrace.jobs.replay_compare import (
    Comparison,
    compare_group_calls,
    compare_group_grade,
    compare_rollout,
    group_score,
)
from rolltrace.policies.replay_group import GroupReplayPolicy
from rolltrace.rollout.strategies import FailFast, KeepViable
from rolltrace.trace.call import Call
from rolltrace.trace.codec import copy_score, decode_rollout
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status
from rolltrace.trace.text_transform import RedactText, has_hashed_text, transform_record

AS_NUMBERS = "recorded as numbers, without text"
_NEVER_PLAYED = "ended before the first turn ({})"
_NO_CALLS = "its model calls were not recorded"
_NO_ATTEMPT = "an earlier attempt ended differently"
_MEMBER_LEFT_OUT = "the group has a member whose end was not compared"
_MEMBER_MISSING = "the record of the group is incomplete"


class CompareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay plays, and what it compares."""

    also: tuple[str, ...]
    """Further fields to compare."""
    tolerance: float
    has_calls: bool
    """Whether the calls of graders, answerers and opponents were recorded."""
    redaction: RedactText | None
    """The redaction of the record, which is applied to the replay too."""
    recorded_tools: bool = False
    """Whether recorded results are used in place of running tools."""


class ComparedRollout(NamedTuple):
    """A recorded rollout, and the result of its replay."""

    rollout: Rollout
    not_replayed: str | None
    """Why it could not be replayed."""
    comparison: Comparison
    steps: int
    """How many steps were compared."""


class ReplayedGroup(NamedTuple):
    """A group of a run that is replayed."""

    key: GroupKey
    builder: EnvGroupBuilder
    rollouts: Sequence[Rollout]
    """All recorded attempts of all members."""
    score: Score | None
    """The score of the group's grader, with its calls."""

    async def replay(self, plan: Plan, settings: CompareSettings) -> list[ComparedRollout]:
        """Play the group, and compare each recorded rollout."""
        if all(map(_why_not_replayed, self.rollouts)):
            return [_not_replayed(rollout, str(_why_not_replayed(rollout))) for rollout in self.rollouts]
        calls = () if self.score is None else self.score.calls
        policy = GroupReplayPolicy(self.rollouts, calls, seed=plan.seed, recorded_tools=settings.recorded_tools)
        sink = _ReplaySink(self.rollouts, settings.redaction)
        # Failures are those of the record; a rollout that was cancelled there must not abort the others here.
        strategy = KeepViable() if isinstance(plan.strategy, FailFast) else plan.strategy
        attempts = max(rollout.attempt for rollout in self.rollouts)
        runner = make_runner(msgspec.structs.replace(plan, strategy=strategy, retries=attempts), policy, {}, sink)
        await runner.play_group(self.builder, self.key)
        compared = [self._compare(rollout, sink, policy, settings) for rollout in self.rollouts]
        if self.builder.grades_groups:
            compared = list(self._with_group_grades(compared, sink, policy, settings))
        return compared

    def _compare(
        self, rollout: Rollout, sink: "_ReplaySink", policy: GroupReplayPolicy, settings: CompareSettings
    ) -> ComparedRollout:
        if reason := _why_not_replayed(rollout):
            return _not_replayed(rollout, reason)
        replayed = sink.rollouts.get(rollout.id)
        if replayed is None:
            return _not_replayed(rollout, _NO_ATTEMPT)
        if rollout.id in policy.unanswered and not settings.has_calls:
            return _not_replayed(rollout, _NO_CALLS)
        comparison = compare_rollout(rollout, replayed, settings.also, settings.tolerance)
        return ComparedRollout(rollout, None, comparison, min(len(rollout.steps), len(replayed.steps)))

    def _with_group_grades(
        self,
        compared: Sequence[ComparedRollout],
        sink: "_ReplaySink",
        policy: GroupReplayPolicy,
        settings: CompareSettings,
    ) -> Iterator[ComparedRollout]:
        """Add the differences of the group's grades to those of the rollouts."""
        left_out = _MEMBER_LEFT_OUT if any(map(_changes_grades, compared)) else None
        if len({rollout.index for rollout in self.rollouts}) < self.builder.episodes * self.builder.seats:
            left_out = _MEMBER_MISSING
        if None in policy.unanswered and not settings.has_calls:
            left_out = _NO_CALLS
        calls = [] if self.score is None or left_out else compare_group_calls(self.score.calls, sink.group_calls)
        for one in compared:
            rollout = one.rollout
            if one.not_replayed is not None or one.comparison.left_out is not None or rollout.status is not Status.OK:
                yield one
                continue
            if left_out is not None:
                yield one._replace(comparison=Comparison(one.comparison.differences, left_out))
                continue
            recorded, replayed = group_score(rollout), group_score(sink.with_scores(rollout.id))
            grade = compare_group_grade(recorded, replayed, settings.tolerance)
            of_group = [] if grade.left_out else [*calls, *grade.differences]
            differences = [*one.comparison.differences, *of_group]
            yield one._replace(comparison=Comparison(differences, grade.left_out))


def _not_replayed(rollout: Rollout, reason: str) -> ComparedRollout:
    return ComparedRollout(rollout, reason, Comparison([], None), 0)


def _why_not_replayed(rollout: Rollout) -> str | None:
    """Why a rollout cannot be replayed, from its record alone."""
    if has_hashed_text(rollout):
        return AS_NUMBERS
    is_outside = rollout.error is not None and rollout.error.layer in (Layer.RUNNER, Layer.CALLER)
    if not rollout.steps and rollout.pending_prompt is None and (rollout.status is Status.CANCELLED or is_outside):
        return _NEVER_PLAYED.format(rollout.stop_reason)
    return None


def _changes_grades(compared: ComparedRollout) -> bool:
    """Whether the group's grader sees another rollout than it saw in the record."""
    is_partial = compared.not_replayed is not None or compared.comparison.left_out is not None
    return is_partial and compared.rollout.status is Status.OK


class _ReplaySink:
    """Stores the replayed rollouts and scores in memory, under the ids of the recorded rollouts."""

    def __init__(self, recorded: Sequence[Rollout], redaction: RedactText | None) -> None:
        self.run = recorded[0].run
        self.session = recorded[0].session
        self.rollouts: dict[str, Rollout] = {}
        self._scores: list[Score] = []
        self._recorded = {(rollout.index, rollout.attempt): rollout for rollout in recorded}
        self._redaction = redaction

    def begin(self, header: Header) -> RolloutBuilder:
        """A builder with the recorded id and policy, because a grader may use them."""
        recorded = self._recorded.get((header.index, header.attempt))
        if recorded is not None:
            header = msgspec.structs.replace(
                header, id=recorded.id, policy=recorded.policy, policy_version=recorded.policy_version
            )
        return RolloutBuilder(header, keeps_tokens=False, transform=self._redaction)

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Store a rollout that has ended."""
        self.rollouts[rollout_builder.id] = decode_rollout(rollout_builder.encode(outcome).data)

    def write_score(self, score: Score) -> None:
        """Store a score."""
        copy = copy_score(score)
        self._scores.append(copy if self._redaction is None else transform_record(copy, self._redaction))

    def with_scores(self, rollout: str) -> Rollout:
        """A replayed rollout with its scores."""
        return self.rollouts[rollout].with_scores([score for score in self._scores if score.rollout == rollout])

    @property
    def group_calls(self) -> Sequence[Call]:
        """The calls of the group's grader."""
        return next((score.calls for score in self._scores if score.name == "group_grade"), ())
