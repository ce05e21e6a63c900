"""One play of a task: a single rollout, or the rollouts of the seats that play one game together."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from rolltrace.envs.base import Env, EnvGroupBuilder
from rolltrace.policies.base import Policy
from rolltrace.policies.contract import awaitable
from rolltrace.rollout.blame import BLAME_ENV, BlamedError
from rolltrace.rollout.contract import checked_envs
from rolltrace.rollout.seat import Played, Seat
from rolltrace.rollout.settings import Settings
from rolltrace.rollout.stop import ABORTED, CANCELLED, stop_for_failure
from rolltrace.trace.codec import utc_now
from rolltrace.trace.draft import Draft, new_id
from rolltrace.trace.failure import failure_of
from rolltrace.trace.rollout import Header
from rolltrace.trace.score import GroupKey

log = logging.getLogger(__name__)


class Episode:
    """One play, at one attempt. Each of its seats has its line when `play` returns or raises."""

    def __init__(
        self,
        builder: EnvGroupBuilder,
        key: GroupKey,
        number: int,
        settings: Settings,
        on_record: Callable[[Played], None],
    ) -> None:
        self._builder = builder
        self._key = key
        self._number = number
        self._settings = settings
        self._on_record = on_record
        self._seats: list[Seat] = []
        self._aborted = False

    async def play(self, attempt: int) -> list[Played]:
        """Make the envs and play them."""
        builder = self._builder
        seats = self._seats = [self._seat(number, attempt) for number in range(builder.seats)]
        try:
            with BLAME_ENV:
                made = await awaitable(builder.make_episode(self._number), builder, "make_episode")
                envs = checked_envs(made, builder)
        except BlamedError as blamed:
            stop = stop_for_failure(failure_of(blamed.layer, blamed.cause))
            return [seat.record(stop) for seat in seats]
        except BaseException:
            for seat in seats:
                seat.record(ABORTED if seat.aborted else CANCELLED)
            raise
        if len(seats) == 1:
            return [await seats[0].play(envs[0])]
        return await _play_together(seats, envs)

    @property
    def recorded(self) -> list[Played]:
        """What is recorded of the last attempt; after a cancelled play, the rollout of each seat."""
        return [seat.played for seat in self._seats if seat.played is not None]

    def record_unplayed(self, attempt: int) -> None:
        """Record an attempt that was due and will not be played, so that the one before does not count as the last."""
        for number in range(self._builder.seats):
            self._seat(number, attempt).record(ABORTED if self._aborted else CANCELLED)

    def abort(self) -> None:
        """Let the seats be recorded as aborted, not as cancelled, when the play is cancelled."""
        self._aborted = True
        for seat in self._seats:
            seat.aborted = True

    def _seat(self, number: int, attempt: int) -> Seat:
        builder, settings = self._builder, self._settings
        role = builder.role_of(number)
        policy = settings.roles.of_seat(role, number if builder.seats > 1 else None)
        return Seat(self._draft(number, policy, attempt), role, policy, builder, settings, self._on_record)

    def _draft(self, seat: int, policy: Policy, attempt: int) -> Draft:
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
            # As in `Seat.record`: a sink that fails costs its record, not the rollout.
            log.exception("The sink failed to begin rollout %s", header.id)
            return Draft(header)


async def _play_together(seats: Sequence[Seat], envs: Sequence[Env]) -> list[Played]:
    """All seats at once. One that fails, or that the runner stops, will not move again: the others are aborted."""
    tasks = [asyncio.create_task(seat.play(env)) for seat, env in zip(seats, envs, strict=True)]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.cancelled() or task.exception() is not None for task in done):
                break
            if any(seat.left_early for seat in seats):
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
