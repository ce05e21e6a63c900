"""Plays as a runner would record them, for graders to look at."""

from datetime import UTC, datetime

import msgspec

from rolltrace.envs.conformance.tested import ProbedEnv
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.rollout import Failure, Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder, new_id
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason


def recorded(builder: EnvGroupBuilder, seat: ProbedEnv, episode: int, number: int) -> Rollout:
    """The seat's play."""
    rollout_builder = _rollout_builder(builder, episode, number)
    seat.write(rollout_builder)
    total = sum(rollout_builder.rewards) if seat.unplayed is None else float(as_number(seat.unplayed.reward) or 0.0)
    if seat.done:
        return rollout_builder.build(_outcome(total, seat.stop_reason or StopReason.COMPLETED, StoppedBy.ENV))
    return rollout_builder.build(_outcome(total, StopReason.MAX_TURNS, StoppedBy.RUNNER))


def overflowed(builder: EnvGroupBuilder, seat: ProbedEnv, episode: int, number: int) -> Rollout:
    """The seat's play if its first prompt had not fitted: it counts, though it has no steps."""
    rollout_builder = _rollout_builder(builder, episode, number)
    seat.write_start(rollout_builder)
    return rollout_builder.build(_outcome(-0.1, StopReason.CONTEXT_OVERFLOW, StoppedBy.RUNNER))


def failed(rollout: Rollout) -> Rollout:
    """The rollout as if its env had raised before the first step."""
    return msgspec.structs.replace(
        rollout,
        status=Status.ERROR,
        stop_reason=StopReason.ERROR,
        stopped_by=StoppedBy.RUNNER,
        error=Failure(Layer.ENV, "RuntimeError", "the check made this member a failed one"),
        reward_so_far=0.0,
        steps=(),
        final=(),
        unplayed=None,
    )


def _rollout_builder(builder: EnvGroupBuilder, episode: int, number: int) -> RolloutBuilder:
    game = builder.seats > 1
    header = Header(
        id=new_id(),
        run="check",
        env=builder.env,
        task=builder.task,
        group=builder.task,
        index=episode * builder.seats + number,
        episode=episode if game else None,
        seat=number if game else None,
        env_args=dict(builder.env_args),
        task_data=dict(builder.task_data),
        seed=builder.seed,
        tags=tuple(builder.tags),
        policy="check",
        started_at=datetime.now(UTC),
    )
    return RolloutBuilder(header)


def _outcome(total: float, reason: str, by: StoppedBy) -> Outcome:
    return Outcome(
        ended_at=datetime.now(UTC),
        status=Status.OK,
        stop_reason=reason,
        stopped_by=by,
        error=None,
        reward=None,
        reward_so_far=total,
        unclamped_reward=None,
    )


def at_index(rollout: Rollout, index: int) -> Rollout:
    """The same rollout at another place in its group."""
    return msgspec.structs.replace(rollout, index=index)
