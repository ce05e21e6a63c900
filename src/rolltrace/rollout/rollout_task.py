"""Plays, closes, grades and records one rollout. Its line is written whatever happens."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from rolltrace.cancellation import cancellation_requested
from rolltrace.deadline_pause import DeadlinePause
from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.role_calls import RoleCallContext, RoleCaller
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.contract import require_observe, validate_grade
from rolltrace.rollout.error_layer import GRADER_LAYER, LayerError, close_with_timeout
from rolltrace.rollout.rollout_end import CANCELLED, EPISODE_ABORTED, RolloutEnd, end_for_failure
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.rollout.turn_loop import TurnLoop
from rolltrace.trace.codec import copy_score, utc_now
from rolltrace.trace.failure import failure_of
from rolltrace.trace.rollout import Failure, Grade, Outcome, Rollout, Score, group_grade, latest_reward
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy

log = logging.getLogger(__name__)


class FinishedRollout(msgspec.Struct):
    """A rollout that has ended and is recorded."""

    rollout_builder: RolloutBuilder
    stop: RolloutEnd
    outcome: Outcome
    raw_scores: list[Score] = msgspec.field(default_factory=list)
    """Scores of the rollout, in the order in which the sink got them."""
    grade_failure: Failure | None = None
    """Why the group's grade is missing, if it is."""

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self.rollout_builder.header.id

    @property
    def index(self) -> int:
        """The position in the group."""
        return cast("int", self.rollout_builder.header.index)  # the runner numbers every member

    @property
    def attempt(self) -> int:
        """The number of failed attempts before this one."""
        return self.rollout_builder.header.attempt

    @property
    def status(self) -> Status:
        """Whether the rollout is ok, failed, or was cancelled."""
        return self.stop.status

    @property
    def stop_reason(self) -> str:
        """Why the rollout ended."""
        return self.stop.reason

    @property
    def error(self) -> Failure | None:
        """What failed, if anything did."""
        return self.stop.error

    @property
    def reward_so_far(self) -> float:
        """The sum of the step rewards and the rollout's own grade."""
        return self.outcome["reward_so_far"]

    @property
    def reward(self) -> float | None:
        """The total as it stands now, the group's grade included; None if the rollout has no reward."""
        latest = latest_reward(self.raw_scores)
        return self.line_reward if latest is None else latest.value

    @property
    def line_reward(self) -> float | None:
        """The total that was known when the rollout ended; None if the group is graded later."""
        return self.outcome["reward"]

    @property
    def group_grade(self) -> Grade | None:
        """The grade of the group's grader, if there is one."""
        latest = latest_reward(self.scores)
        return None if latest is None else group_grade(latest)

    @property
    def scores(self) -> tuple[Score, ...]:
        """Copies of the scores, as they are read back from the run."""
        return tuple(map(copy_score, self.raw_scores))

    @property
    def rollout(self) -> Rollout:
        """A new copy of the record with its scores."""
        return self.rollout_builder.build(self.outcome).with_scores(self.scores)


class RolloutTask:
    """Plays one env of an episode, and writes exactly one line."""

    def __init__(
        self,
        rollout_builder: RolloutBuilder,
        role: str,
        policy: Policy,
        builder: EnvGroupBuilder,
        settings: RunnerSettings,
        on_record: Callable[[FinishedRollout], None],
    ) -> None:
        self.rollout_builder = rollout_builder
        self.aborted = False
        """Set before its task is cancelled because another seat ended the game for all."""
        self.stopped_before_done = False
        """Whether the play ended before the env was done. A grader that fails later does not change this."""
        self._role = role
        self._policy = policy
        self._builder = builder
        self._settings = settings
        self._on_record = on_record
        self._played: FinishedRollout | None = None
        settings.in_flight.add(self)

    @property
    def played(self) -> FinishedRollout | None:
        """The rollout once it is recorded."""
        return self._played

    async def play(self, env: Env) -> FinishedRollout:
        """Play and record. Exceptions that are not failures of the rollout are raised after it is recorded."""
        turn_loop = TurnLoop(env, self.rollout_builder, self._settings, self._policy, self._role)
        with RoleCallContext(lambda: self._asker(turn_loop)), DeadlinePause(turn_loop.clock.paused):
            return await self._play(turn_loop, env)

    def _asker(self, turn_loop: TurnLoop) -> RoleCaller:
        return RoleCaller(
            self._settings.roles,
            self.rollout_builder.calls,
            identity=turn_loop.identity,
            seed=turn_loop.seed,
            step=turn_loop.current_step,
            enter=turn_loop.sampler.acquire_slot,
            leave=self._settings.request_slots.release,
            notes=self.rollout_builder.notes,
        )

    async def _play(self, turn_loop: TurnLoop, env: Env) -> FinishedRollout:
        closed = False
        stop: RolloutEnd | None = None
        try:
            require_observe(env, self._settings.limits)
            stop = await turn_loop.play()
            self.stopped_before_done = stop.status is not Status.OK or stop.by is StoppedBy.RUNNER
            closed = True
            await self._close(env)
            stop = await self._call_hook_and_grader(stop)
            if cancellation_requested():  # an env, hook or grader has swallowed it
                raise asyncio.CancelledError
            return self.record(stop)
        except BaseException as error:
            if not closed:
                await self._close_after_cancellation(env)
            if stop is not None and stop.error is not None:
                self.rollout_builder.add_note("", f"before that the {_summary(stop.error)}")
            turn_loop.recorder.set_env_failure(EPISODE_ABORTED if self.aborted else CANCELLED)
            if self.aborted:
                return self.record(EPISODE_ABORTED)
            is_refused = isinstance(error, InputError)  # the settings do not fit the env
            self.record(end_for_failure(failure_of(Layer.RUNNER, error)) if is_refused else CANCELLED)
            raise

    def record(self, stop: RolloutEnd) -> FinishedRollout:
        """Write the line, if it is not written yet."""
        if self._played is None:
            self._played = FinishedRollout(self.rollout_builder, stop, self._outcome(stop))
            self._on_record(self._played)
        elif self not in self._settings.in_flight:  # else a signal handler has interrupted this method
            return self._played
        try:
            self._settings.sink.end(self.rollout_builder, self._played.outcome)
        except Exception:
            # A sink must not raise. If it does, the record is lost, but not the rollout.
            log.exception("The sink failed to take rollout %s", self.rollout_builder.id)
        self._settings.in_flight.discard(self)
        return self._played

    def _outcome(self, stop: RolloutEnd) -> Outcome:
        rewards = self.rollout_builder.rewards
        limits = self._settings.limits
        so_far = float(sum(rewards)) + stop.reward
        if self.rollout_builder.grade is not None:
            so_far += self.rollout_builder.grade.reward
        is_final = stop.status is Status.OK and not self._builder.grades_groups
        total, unclamped = stop.clamp(so_far, limits.zero_reward_on_limit) if is_final else (None, None)
        return Outcome(
            ended_at=utc_now(),
            status=stop.status,
            stop_reason=stop.reason,
            stopped_by=stop.by,
            error=stop.error,
            reward=total,
            reward_so_far=so_far,
            unclamped_reward=unclamped,
        )

    async def _call_hook_and_grader(self, stop: RolloutEnd) -> RolloutEnd:
        """Call `on_stop` and the grader; a failure of either is a failure of the rollout."""
        hooks = self._settings.hooks
        grader = self._builder.grader
        try:
            if hooks.on_stop is not None:
                stop = _with_hook_reason(stop, await hooks.call("on_stop", self._rollout(stop)))
            if grader is not None and stop.needs_grade:
                rollout = self._rollout(stop)
                with GRADER_LAYER:
                    answer = await require_awaitable(grader.grade(rollout), grader, "grade")
                    grade = validate_grade(answer, f"grader {type(grader).__name__}")
                self.rollout_builder.grade = grade
                if hooks.on_grade is not None:
                    await hooks.call("on_grade", rollout, grade)
        except LayerError as error:
            failure = failure_of(error.layer, error.cause)
            if stop.error is not None:  # the first failure is the one that counts
                self.rollout_builder.add_note("", f"after that the {_summary(failure)}")
                return stop
            self.rollout_builder.add_note(
                "", f"played to an end ({stop.reason}, by {stop.by}) before the {failure.layer} failed"
            )
            return end_for_failure(failure)
        return stop

    def _rollout(self, stop: RolloutEnd) -> Rollout:
        return self.rollout_builder.build(self._outcome(stop))

    async def _close(self, env: Env) -> None:
        """Close the env. A failure is recorded as a note."""
        if type(env).close is Env.close:
            return
        error = await close_with_timeout(self._settings.limits.close_timeout, env.close, env)
        if error is not None:
            self.rollout_builder.add_note("", f"close of {type(env).__name__} raised {type(error).__name__}: {error}")

    async def _close_after_cancellation(self, env: Env) -> None:
        """Close after a cancellation; the record is written even if a second cancellation interrupts it."""
        try:
            await self._close(env)
        except BaseException as error:  # noqa: BLE001 - the caller raises the first one again
            self.rollout_builder.add_note(
                "", f"close of {type(env).__name__} was interrupted by {type(error).__name__}"
            )


def _summary(failure: Failure) -> str:
    return f"{failure.layer} failed: {failure.type}: {failure.message}"


def _with_hook_reason(stop: RolloutEnd, name: str | None) -> RolloutEnd:
    """The end with the hook's stop reason, if the env ended the rollout and gave no reason."""
    if name is None or stop.reason_from_env or stop.by is not StoppedBy.ENV:
        return stop
    return msgspec.structs.replace(stop, reason=str(name))
