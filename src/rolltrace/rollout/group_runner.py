"""Plays the episodes of one env group builder, grades them together, and cleans up."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.cancellation import cancellation_requested
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import GraderError, RolltraceError
from rolltrace.graders.grader import GroupGrade
from rolltrace.policies.roles import RoleCallContext, RoleCaller
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.contract import validate_grade, validate_group_grade
from rolltrace.rollout.episode import Episode, close_with_timeout
from rolltrace.rollout.rollout_end import GRADER_LAYER, FinishedRollout, LayerError, end_for_failure
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.rollout.strategies import FailFast, KeepViable, can_retry
from rolltrace.seeds import derive_seed
from rolltrace.trace.call import Call
from rolltrace.trace.codec import utc_now
from rolltrace.trace.coerce import coerce_record
from rolltrace.trace.failure import INTERRUPTED, Failure, failure_of
from rolltrace.trace.freeform import Note
from rolltrace.trace.ids import new_id
from rolltrace.trace.json_numbers import mean_of
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade, GroupKey, Score, latest_reward
from rolltrace.trace.stop_reasons import Layer, Status

log = logging.getLogger(__name__)


class PlayedGroup:
    """What can be said about a group that was played, whether its rollouts are at hand or only their outcomes."""

    __slots__ = ()
    key: GroupKey
    members: Sequence[Any]
    failure: Failure | None

    @property
    def group(self) -> str:
        """The name of the group, unique within the iteration."""
        return self.key.group

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each member, or None if a member has no reward."""
        return [member.reward for member in self.members]

    def raise_for_failure(self) -> None:
        """Raise `RolltraceError` if the group does not count."""
        if self.failure is not None:
            cause = f"{self.failure.type} in the {self.failure.layer}: {self.failure.message}"
            raise RolltraceError(f"Group {self.group!r} of iteration {self.key.iteration} failed: {cause}")


class GroupResult(PlayedGroup, msgspec.Struct, frozen=True):
    """The result of playing a group."""

    key: GroupKey
    task: str
    members: tuple[FinishedRollout, ...]
    """The last attempt of each index, in the order of the indexes."""
    failure: Failure | None = None
    """Why the group as a whole does not count, if it does not."""


class GroupRunner:
    """Plays one group."""

    def __init__(
        self, builder: EnvGroupBuilder, key: GroupKey, settings: RunnerSettings, on_episode_end: Callable[[int], None]
    ) -> None:
        self.builder = builder
        self.key = key
        self.session = settings.sink.session
        self._settings = settings
        self._strategy = settings.strategy
        self._on_episode_end = on_episode_end
        self._members: dict[int, FinishedRollout] = {}
        """The last attempt of each index."""
        self._episode_failed = False
        """Whether an episode has failed with no retry left."""
        self._calls: list[Call] = []
        """The role calls of the group's grader."""
        self._notes: list[Note] = []
        """Notes on parts of the calls that could not be recorded unchanged."""

    async def play(self) -> GroupResult:
        """Play, grade and clean up. The only exception is cancellation, and clean-up is done then too."""
        self._settings.open_groups.add(self)
        try:
            await self._play_episodes()
            members = [self._members[index] for index in sorted(self._members)]
            failure = self._failure(members)
            if self.builder.grades_groups:
                await self._grade(members, failure)
            return GroupResult(self.key, self.builder.task, tuple(members), failure)
        finally:
            self._settings.open_groups.discard(self)
            await self._clean_up()

    def record_failed(self, failure: Failure) -> GroupResult:
        """Record every member as failed, without playing."""
        for number in range(self.builder.episodes):
            episode = Episode(self.builder, self.key, number, self._settings, self._keep_last_attempt)
            episode.record_unplayed(0, end_for_failure(failure))
        members = tuple(self._members[index] for index in sorted(self._members))
        return GroupResult(self.key, self.builder.task, members, self._failure(members))

    def record_interrupted(self, cause: str) -> None:
        """Record that the ok members without a reward were not graded because of an interruption.

        It may be called twice: by the runner before the grader ends, and when the grader ends.
        """
        if self.builder.grades_groups:
            waiting = [member for member in self._ok_members() if latest_reward(member.raw_scores) is None]
            self._score_failure(waiting, _interrupted(cause))

    async def _play_episodes(self) -> None:
        episodes = [
            Episode(self.builder, self.key, number, self._settings, self._keep_last_attempt)
            for number in range(self.builder.episodes)
        ]
        tasks = [asyncio.create_task(self._play_episode(episode)) for episode in episodes]
        try:
            if isinstance(self._strategy, FailFast):
                await self._abort_after_first_failure(episodes, tasks)
            for exception in await _gather_exceptions(tasks):
                if exception is not None and not isinstance(exception, asyncio.CancelledError):
                    raise exception
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.record_interrupted(type(error).__qualname__)
            raise

    async def _play_episode(self, episode: Episode) -> None:
        attempt = 0
        try:
            while self._should_retry(members := await episode.play(attempt), attempt):
                attempt += 1
            for member in members:
                self._episode_failed |= member.status is not Status.OK
        except BaseException:
            if self._should_retry(episode.recorded, attempt):
                episode.record_unplayed(attempt + 1)
            raise
        finally:
            self._on_episode_end(self.builder.seats)

    def _keep_last_attempt(self, member: FinishedRollout) -> None:
        """Store a member; a later attempt replaces an earlier one."""
        self._members[member.index] = member

    def _ok_members(self) -> list[FinishedRollout]:
        return [member for member in self._members.values() if member.status is Status.OK]

    def _should_retry(self, members: Sequence[FinishedRollout], attempt: int) -> bool:
        if attempt >= self._settings.retries:
            return False
        return any(member.error is not None and can_retry(member.error) for member in members)

    async def _abort_after_first_failure(
        self, episodes: Sequence[Episode], tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        """Wait until all episodes have ended, or one has failed with no retry left; then abort the rest."""
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._episode_failed or any(task.cancelled() or task.exception() is not None for task in done):
                for episode, task in zip(episodes, tasks, strict=True):
                    if task in waiting:
                        if self._episode_failed:
                            episode.abort()
                        task.cancel()
                return

    def _failure(self, members: Sequence[FinishedRollout]) -> Failure | None:
        """Why the group does not count, or None."""
        failed = [member for member in members if member.status is not Status.OK]
        ok = len(members) - len(failed)
        total = self.builder.episodes * self.builder.seats
        first = next((member.error for member in failed if member.error is not None), None)
        if not isinstance(self._strategy, KeepViable):
            return first
        needed = self._strategy.needed(total)
        if ok >= needed:
            return None
        message = f"{ok} of {total} members are ok, {needed} are needed"
        return Failure(first.layer if first else Layer.ENV, "NotViable", message)

    # Grading

    async def _grade(self, members: Sequence[FinishedRollout], failure: Failure | None) -> None:
        """Call the group's grader, and write one score for each ok member."""
        pending = self._ok_members()
        if failure is not None:
            self._score_failure(pending, Failure(failure.layer, failure.type, f"not graded: {failure.message}"))
            return
        grader = f"{type(self.builder).__name__}.grade_group"
        try:
            rollouts = {member.id: member.rollout for member in members}
            group_grade = await self._call_grader(list(rollouts.values()), grader)
        except LayerError as error:
            self._score_failure(pending, error.failure)
            self._score_failed_calls(error.failure)
            return
        except BaseException as error:
            self.record_interrupted(cause := type(error).__qualname__)
            self._score_failed_calls(_interrupted(cause))
            raise
        member_grades = [_MemberGrade(member, group_grade.grades, grader) for member in pending]
        # Before the members' rewards: a group with all rewards counts as finished when the run is resumed.
        if self._calls or group_grade.reward_data or group_grade.extra:
            self._score_group(member_grades, group_grade)
        self._report_unknown_ids(group_grade.grades, members, grader)
        for graded in member_grades:
            if graded.failure is not None:
                self._score_failure([graded.member], graded.failure)
            elif graded.grade is not None:
                self._score_grade(graded.member, graded.grade, graded.notes)
        if self._settings.hooks.on_grade is not None:
            await self._call_on_grade(member_grades, rollouts)

    async def _call_grader(self, rollouts: Sequence[Rollout], grader: str) -> GroupGrade:
        with RoleCallContext(self._role_caller), GRADER_LAYER:
            value = await require_awaitable(self.builder.grade_group(rollouts), self.builder, "grade_group")
            return validate_group_grade(value, grader)

    async def _call_on_grade(self, member_grades: "Sequence[_MemberGrade]", rollouts: Mapping[str, Rollout]) -> None:
        for graded in member_grades:
            if graded.grade is None:
                continue
            member = graded.member
            try:
                rollout = rollouts[member.id].with_scores(member.scores)
                await self._settings.hooks.call("on_grade", rollout, graded.grade)
            except LayerError as error:
                self._score("on_grade", None, member=member, error=error.failure)

    def _role_caller(self) -> RoleCaller:
        settings, key = self._settings, self.key
        return RoleCaller(
            settings.roles,
            self._calls,
            seed=derive_seed(settings.seed, key.split, key.iteration, key.group),
            acquire_slot=settings.request_slots.acquire,
            release_slot=settings.request_slots.release,
            notes=self._notes,
        )

    def _score_grade(self, member: FinishedRollout, grade: Grade, notes: Sequence[Note]) -> None:
        zero_on_limit = self._settings.limits.zero_reward_on_limit
        reward, unclamped = member.stop.clamp(member.reward_so_far + grade.reward, zero_on_limit)
        own_grade = member.rollout_builder.grade
        data: dict[str, Any] = {
            "reward_so_far": member.reward_so_far,
            "grade": None if own_grade is None else own_grade.reward,
            "group_grade": grade.reward,
            "unclamped_reward": unclamped,
            "reward_data": grade.reward_data,
            "extra": grade.extra,
        }
        if notes:
            data["notes"] = notes
        self._score("reward", reward, member=member, data=data)

    def _score_group(self, member_grades: "Sequence[_MemberGrade]", group_grade: GroupGrade) -> None:
        """Write the group's score: the mean of its grades, with the grader's data and role calls."""
        data: dict[str, Any] = {"reward_data": group_grade.reward_data, "extra": group_grade.extra}
        if self._notes:
            data["notes"] = self._notes
        rewards = [graded.grade.reward for graded in member_grades if graded.grade is not None]
        if rewards:
            self._score("group_grade", mean_of(rewards), group=self.key, data=data)
            return
        ungraded = Failure(Layer.GRADER, "GraderError", "no member of the group was graded")
        failure = next((graded.failure for graded in member_grades if graded.failure is not None), ungraded)
        self._score("group_grade", None, group=self.key, data=data, error=failure)

    def _score_failed_calls(self, failure: Failure) -> None:
        """Record the role calls that the grader made before it failed."""
        if self._calls:
            self._score("group_grade", None, group=self.key, error=failure)

    def _score_failure(self, members: Sequence[FinishedRollout], failure: Failure) -> None:
        for member in members:
            member.grade_failure = failure
            self._score("reward", None, member=member, error=failure)

    def _report_unknown_ids(self, grades: Mapping[str, Any], members: Sequence[FinishedRollout], grader: str) -> None:
        unknown = sorted(str(name) for name in grades.keys() - {member.id for member in members})
        if unknown:
            error = GraderError(
                f"Expected {grader} to grade rollouts of the group, got unknown ids: {', '.join(unknown)}."
            )
            self._score("reward", None, group=self.key, error=failure_of(Layer.GRADER, error))

    def _score(
        self,
        name: str,
        value: float | None,
        *,
        member: FinishedRollout | None = None,
        group: GroupKey | None = None,
        data: dict[str, Any] | None = None,
        error: Failure | None = None,
    ) -> None:
        sink = self._settings.sink
        score = Score(
            id=new_id(),
            run=sink.run,
            session=sink.session,
            rollout=None if member is None else member.id,
            group=group,
            name=name,
            value=value,
            data=data or {},
            calls=tuple(self._calls) if name == "group_grade" else (),
            producer=f"{self.key.env}:{type(self.builder).__qualname__}",
            created_at=utc_now(),
            error=error,
        )
        if member is not None:
            member.raw_scores.append(score)
        try:
            sink.write_score(score)
        except Exception:
            log.exception("The sink failed to write a score named %s", name)

    async def _clean_up(self) -> None:
        """Call the builder's `cleanup`. A failure is recorded as a score and changes no reward."""
        if type(self.builder).cleanup is EnvGroupBuilder.cleanup:
            return
        error = await close_with_timeout(self._settings.limits.close_timeout, self.builder.cleanup, self.builder)
        if error is not None:
            self._score("cleanup", None, group=self.key, error=failure_of(Layer.ENV, error))


class _MemberGrade:
    """A member with its grade from the group's grader, or the reason why it has none."""

    def __init__(self, member: FinishedRollout, grades: Mapping[str, Any], grader: str) -> None:
        self.member = member
        self.grade: Grade | None = None
        self.failure: Failure | None = None
        self.notes: list[Note] = []
        try:
            if member.id not in grades:
                raise GraderError(f"Expected {grader} to grade rollout {member.id}, which is ok, got no grade.")
            grade = validate_grade(grades[member.id], f"{grader} for rollout {member.id}")
        except Exception as error:  # noqa: BLE001 - the other members keep their grades
            self.failure = failure_of(Layer.GRADER, error)
        else:
            self.grade = coerce_record(grade, "grade", self.notes)


def _interrupted(cause: str) -> Failure:
    return Failure(Layer.RUNNER, INTERRUPTED, f"the group was not graded because of {cause}")


async def _gather_exceptions(tasks: Sequence[asyncio.Task[None]]) -> Sequence[BaseException | None]:
    """The exception of each task, once all have ended. Cancelling this cancels the tasks."""
    if len(tasks) > 1:
        return await asyncio.gather(*tasks, return_exceptions=True)
    try:
        await tasks[0]  # three times faster than gather
    except BaseException as error:
        if cancellation_requested():
            raise
        return [error]
    if cancellation_requested():  # the task has swallowed it
        raise asyncio.CancelledError
    return [None]
