"""Plays as a runner would record them, for graders to look at."""

from datetime import UTC, datetime

import msgspec

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.conformance.tested import TestedEnv
from rolltrace.trace.draft import Draft, new_id
from rolltrace.trace.numbers import as_number
from rolltrace.trace.outcome import Layer, Status, StoppedBy, StopReason
from rolltrace.trace.rollout import Failure, Header, Outcome, Rollout


def recorded(builder: EnvGroupBuilder, seat: TestedEnv, episode: int, number: int) -> Rollout:
    """The seat's play."""
    draft = _draft(builder, episode, number)
    seat.write(draft)
    total = sum(draft.rewards) if seat.unplayed is None else float(as_number(seat.unplayed.reward) or 0.0)
    if seat.done:
        return draft.rollout(_outcome(total, seat.stop_reason or StopReason.COMPLETED, StoppedBy.ENV))
    return draft.rollout(_outcome(total, StopReason.MAX_TURNS, StoppedBy.RUNNER))


def overflowed(builder: EnvGroupBuilder, seat: TestedEnv, episode: int, number: int) -> Rollout:
    """The seat's play if its first prompt had not fitted: it counts, though it has no steps."""
    draft = _draft(builder, episode, number)
    seat.write_start(draft)
    return draft.rollout(_outcome(-0.1, StopReason.CONTEXT_OVERFLOW, StoppedBy.RUNNER))


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


def _draft(builder: EnvGroupBuilder, episode: int, number: int) -> Draft:
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
    return Draft(header)


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
