"""Plays one episode: one rollout, or one for each seat of a game; writes a line for each, whatever happens."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rolltrace.cancellation import cancellation_requested
from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.roles import RoleCallContext, RoleCaller
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.contract import require_observe, validate_envs, validate_grade
from rolltrace.rollout.rollout_end import (
    CANCELLED,
    ENV_LAYER,
    EPISODE_ABORTED,
    GRADER_LAYER,
    FinishedRollout,
    LayerError,
    RolloutEnd,
    end_for_failure,
)
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.rollout.turn_loop import TurnLoop
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import Failure, failure_of
from rolltrace.trace.ids import new_id
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy

log = logging.getLogger(__name__)


class RolloutTask:
    """Plays one env of an episode, and writes exactly one line."""

    __slots__ = (
        "_builder", "_finished", "_on_record", "_policy", "_role", "_settings", "aborted", "rollout_builder",
        "stopped_before_done",
    )  # fmt: skip

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
        self._finished: FinishedRollout | None = None
        settings.in_flight.add(self)

    @property
    def finished(self) -> FinishedRollout | None:
        """The rollout once it is recorded."""
        return self._finished

    async def play(self, env: Env) -> FinishedRollout:
        """Play and record. Exceptions that are not failures of the rollout are raised after it is recorded."""
        turn_loop = TurnLoop(env, self.rollout_builder, self._settings, self._policy, self._role)
        with RoleCallContext(lambda: self._role_caller(turn_loop)), turn_loop.clock:
            return await self._play(turn_loop, env)

    def _role_caller(self, turn_loop: TurnLoop) -> RoleCaller:
        return RoleCaller(
            self._settings.roles,
            self.rollout_builder.calls,
            identity=turn_loop.identity,
            seed=turn_loop.seed,
            current_step=turn_loop.current_step,
            acquire_slot=turn_loop.sampler.acquire_slot,
            release_slot=self._settings.request_slots.release,
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
            is_input_error = isinstance(error, InputError)  # the settings do not fit the env
            self.record(end_for_failure(failure_of(Layer.RUNNER, error)) if is_input_error else CANCELLED)
            raise

    def record(self, stop: RolloutEnd) -> FinishedRollout:
        """Write the line, if it is not written yet."""
        if self._finished is None:
            self._finished = FinishedRollout(self.rollout_builder, stop, self._outcome(stop))
            self._on_record(self._finished)
        elif self not in self._settings.in_flight:  # else a signal handler has interrupted this method
            return self._finished
        try:
            self._settings.sink.end(self.rollout_builder, self._finished.outcome)
        except Exception:
            # A sink must not raise. If it does, the record is lost, but not the rollout.
            log.exception("The sink failed to write rollout %s", self.rollout_builder.id)
        self._settings.in_flight.discard(self)
        return self._finished

    def _outcome(self, stop: RolloutEnd) -> Outcome:
        rewards = self.rollout_builder.rewards
        limits = self._settings.limits
        so_far = float(sum(rewards)) + stop.reward
        if self.rollout_builder.grade is not None:
            so_far += self.rollout_builder.grade.reward
        is_final = stop.status is Status.OK and not self._builder.grades_groups
        total, unclamped = stop.clamp(so_far, limits.zero_reward_on_limit) if is_final else (None, None)
        return {
            "ended_at": utc_now(),
            "status": stop.status,
            "stop_reason": stop.reason,
            "stopped_by": stop.by,
            "error": stop.error,
            "reward": total,
            "reward_so_far": so_far,
            "unclamped_reward": unclamped,
        }

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
            failure = error.failure
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


class Episode:
    """One episode. When `play` returns or raises, the line of each seat is written."""

    __slots__ = ("_aborted", "_builder", "_key", "_number", "_on_record", "_seats", "_settings")

    def __init__(
        self,
        builder: EnvGroupBuilder,
        key: GroupKey,
        number: int,
        settings: RunnerSettings,
        on_record: Callable[[FinishedRollout], None],
    ) -> None:
        self._builder = builder
        self._key = key
        self._number = number
        self._settings = settings
        self._on_record = on_record
        self._seats: list[RolloutTask] = []
        self._aborted = False

    async def play(self, attempt: int) -> list[FinishedRollout]:
        """Make the envs and play them."""
        builder = self._builder
        seats = self._seats = [self._make_task(number, attempt) for number in range(builder.seats)]
        try:
            with ENV_LAYER:
                value = await require_awaitable(builder.make_episode(self._number), builder, "make_episode")
                envs = validate_envs(value, builder)
        except LayerError as error:
            stop = end_for_failure(error.failure)
            return [seat.record(stop) for seat in seats]
        except BaseException:
            for seat in seats:
                seat.record(EPISODE_ABORTED if seat.aborted else CANCELLED)
            raise
        if len(seats) == 1:
            return [await seats[0].play(envs[0])]
        return await _play_together(seats, envs)

    @property
    def recorded(self) -> list[FinishedRollout]:
        """The recorded rollouts of the last attempt."""
        return [seat.finished for seat in self._seats if seat.finished is not None]

    def record_unplayed(self, attempt: int, end: RolloutEnd | None = None) -> None:
        """Record an attempt that will not be played, by default as aborted or cancelled.

        A retry is recorded so that the failed attempt before it does not count as the last.
        """
        for number in range(self._builder.seats):
            self._make_task(number, attempt).record(end or (EPISODE_ABORTED if self._aborted else CANCELLED))

    def abort(self) -> None:
        """Record the seats as aborted instead of cancelled when their tasks are cancelled."""
        self._aborted = True
        for seat in self._seats:
            seat.aborted = True

    def _make_task(self, number: int, attempt: int) -> RolloutTask:
        builder, settings = self._builder, self._settings
        role = builder.role_of(number)
        policy = settings.roles.policy_for_seat(role, number if builder.seats > 1 else None)
        return RolloutTask(
            self._rollout_builder(number, policy, attempt), role, policy, builder, settings, self._on_record
        )

    def _rollout_builder(self, seat: int, policy: Policy, attempt: int) -> RolloutBuilder:
        builder, key, sink = self._builder, self._key, self._settings.sink
        several = builder.seats > 1
        low, high = builder.reward_range or (None, None)
        header = Header(
            id=new_id(),
            run=sink.run,
            session=sink.session,
            split=key.split,
            iteration=key.iteration,
            env=key.env,
            env_args=dict(builder.env_args),
            seed=builder.seed,
            task=builder.task,
            task_data=dict(builder.task_data),
            group=key.group,
            index=self._number * builder.seats + seat,
            attempt=attempt,
            episode=self._number if several else None,
            seat=seat if several else None,
            policy=policy.name,
            policy_version=policy.version,
            tags=tuple(builder.tags),
            started_at=utc_now(),
            reward_min=None if low is None else float(low),
            reward_max=None if high is None else float(high),
        )
        try:
            return sink.begin(header)
        except Exception:
            # As in `RolloutTask.record`: if the sink fails, the rollout is played without a record.
            log.exception("The sink failed to begin rollout %s", header.id)
            return RolloutBuilder(header)


async def _play_together(seats: Sequence[RolloutTask], envs: Sequence[Env]) -> list[FinishedRollout]:
    """Play all seats concurrently. If one fails, or the runner stops it, the others are aborted."""
    tasks = [asyncio.create_task(seat.play(env)) for seat, env in zip(seats, envs, strict=True)]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.cancelled() or task.exception() is not None for task in done):
                break
            if any(seat.stopped_before_done for seat in seats):
                break
        for seat, task in zip(seats, tasks, strict=True):
            if not task.done():
                seat.aborted = True
                task.cancel()
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def close_with_timeout(
    seconds: float, close: Callable[[], Awaitable[None]], owner: object
) -> BaseException | None:
    """Call `close` and return the exception it raised, if any; a failure here changes no reward."""
    try:
        async with asyncio.timeout(seconds):
            with ENV_LAYER:
                await require_awaitable(close(), owner, close.__name__)
    except TimeoutError:  # only our own: one that `close` raises arrives as a LayerError
        return TimeoutError(f"it did not end within {seconds} s")
    except LayerError as error:
        return error.cause
    return None
