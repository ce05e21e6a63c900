"""What all rollouts of a runner have in common, and how one of them stops."""

import asyncio

import msgspec

from rolltrace.policies.base import Policy
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits import Limits
from rolltrace.rollout.sink import Sink
from rolltrace.rollout.strategies import Strategy
from rolltrace.trace.message import Sampling
from rolltrace.trace.outcome import Status, StoppedBy, StopReason
from rolltrace.trace.rollout import Failure


class Settings(msgspec.Struct, frozen=True):
    """What a runner was made with."""

    policy: Policy
    sink: Sink
    limits: Limits
    hooks: Hooks
    strategy: Strategy
    sampling: Sampling
    seed: int
    gate: asyncio.Semaphore
    """Bounds the policy requests in flight."""


class Stop(msgspec.Struct, frozen=True):
    """Why a rollout stops, and what follows from it."""

    reason: str
    by: StoppedBy = StoppedBy.RUNNER
    status: Status = Status.OK
    error: Failure | None = None
    by_limit: bool = False
    """Whether `zero_reward_on_limit` clamps the total."""
    named_by_env: bool = False
    """Whether the env itself gave the reason, which a hook may not change."""

    @property
    def graded(self) -> bool:
        """Whether the rollout's own grader is asked: only where the env brought the play to its end."""
        return self.status is Status.OK and self.by is StoppedBy.ENV


def stop_at_limit(reason: StopReason) -> Stop:
    """The runner ends the rollout because a limit is reached."""
    return Stop(reason, by_limit=True)


def stop_for_failure(failure: Failure) -> Stop:
    """A layer failed."""
    return Stop(StopReason.ERROR, status=Status.ERROR, error=failure)
