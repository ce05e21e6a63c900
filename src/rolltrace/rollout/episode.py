"""Plays one episode: one rollout, or the rollouts of all seats of a game."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.policies.policy import Policy
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.contract import validate_envs
from rolltrace.rollout.error_layer import ENV_LAYER, LayerError
from rolltrace.rollout.rollout_end import CANCELLED, EPISODE_ABORTED, end_for_failure
from rolltrace.rollout.rollout_task import FinishedRollout, RolloutTask
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import failure_of
from rolltrace.trace.rollout import Header
from rolltrace.trace.rollout_builder import RolloutBuilder, new_id
from rolltrace.trace.score import GroupKey

log = logging.getLogger(__name__)


class Episode:
    """One episode. When `play` returns or raises, the line of each seat is written."""

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
            stop = end_for_failure(failure_of(error.layer, error.cause))
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
        return [seat.played for seat in self._seats if seat.played is not None]

    def record_unplayed(self, attempt: int) -> None:
        """Record a retry that will not be played, so that the failed attempt before it does not count as the last."""
        for number in range(self._builder.seats):
            self._make_task(number, attempt).record(EPISODE_ABORTED if self._aborted else CANCELLED)

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
