"""One play of a task: a single rollout, or the rollouts of the seats that play one game together."""

import asyncio
from collections.abc import Sequence

from rolltrace.envs.base import Env, EnvGroupBuilder
from rolltrace.errors import EnvError
from rolltrace.rollout.blame import failure_of
from rolltrace.rollout.contract import awaitable
from rolltrace.rollout.seat import Played, Seat
from rolltrace.rollout.settings import Settings, stop_for_failure
from rolltrace.trace.codec import utc_now
from rolltrace.trace.draft import Draft, new_id
from rolltrace.trace.freeform import describe
from rolltrace.trace.outcome import Layer, Status
from rolltrace.trace.rollout import Header
from rolltrace.trace.score import GroupKey


async def play_episode(
    builder: EnvGroupBuilder, key: GroupKey, number: int, attempt: int, settings: Settings
) -> list[Played]:
    """Play one episode; each seat has its line when this returns or raises."""
    drafts = [_draft(builder, key, number, seat, attempt, settings) for seat in range(builder.seats)]
    seats = [Seat(draft, builder, settings) for draft in drafts]
    try:
        envs = _checked_envs(await awaitable(builder.make_episode(number), builder, "make_episode"), builder)
    except Exception as error:  # noqa: BLE001 - whatever keeps an episode from starting is its recorded failure
        return [seat.record(stop_for_failure(failure_of(Layer.ENV, error))) for seat in seats]
    except BaseException:
        for seat in seats:
            seat.record_cancelled()
        raise
    if len(seats) == 1:
        return [await seats[0].play(envs[0])]
    return await _play_together(seats, envs)


async def _play_together(seats: Sequence[Seat], envs: Sequence[Env]) -> list[Played]:
    """All seats at once; when one fails the others are aborted."""
    tasks = [asyncio.create_task(seat.play(env)) for seat, env in zip(seats, envs, strict=True)]
    try:
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.cancelled() or task.exception() or task.result().status is not Status.OK for task in done):
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


def _draft(builder: EnvGroupBuilder, key: GroupKey, number: int, seat: int, attempt: int, settings: Settings) -> Draft:
    several = builder.seats > 1
    header = Header(
        id=new_id(),
        run=settings.sink.run,
        session=settings.sink.session,
        split=key.split,
        iteration=key.iteration,
        env=key.env,
        env_args=dict(builder.env_args),
        seed=settings.seed if builder.seed is None else builder.seed,
        task=builder.task,
        task_data=dict(builder.task_data),
        group=key.group,
        index=number * builder.seats + seat,
        attempt=attempt,
        episode=number if several else None,
        seat=seat if several else None,
        policy=settings.policy.name,
        policy_version=settings.policy.version,
        tags=tuple(map(str, builder.tags)),
        started_at=utc_now(),
    )
    return settings.sink.begin(header)


def _checked_envs(envs: object, builder: EnvGroupBuilder) -> Sequence[Env]:
    where = f"{type(builder).__name__}.make_episode"
    if not isinstance(envs, Sequence) or isinstance(envs, str):
        raise EnvError(f"Expected {where} to return a list of envs, got {describe(envs)}: return [env].")
    for env in envs:
        if not isinstance(env, Env):
            raise EnvError(
                f"Expected {where} to return instances of Env, got {describe(env)}: "
                "subclass rolltrace.Env, or wrap a message env in MessageEnvAdapter."
            )
    if len(envs) != builder.seats:
        raise EnvError(f"Expected {where} to return one env per seat, {builder.seats} in all, got {len(envs)}.")
    return envs
