"""The settings that all rollouts of a runner share."""

import asyncio
from typing import Any

import msgspec

from rolltrace.policies.roles import Roles
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.strategies import Strategy
from rolltrace.trace.message import Sampling
from rolltrace.trace.sink import Sink


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a runner, and the rollouts and groups that it plays now."""

    roles: Roles
    sink: Sink
    limits: Limits
    hooks: Hooks
    strategy: Strategy
    retries: int
    """How often an episode is retried after a failure of the policy or the env."""
    sampling: Sampling
    seed: int
    request_slots: asyncio.Semaphore
    """Bounds the policy requests in flight."""
    in_flight: set[Any]
    """The `RolloutTask`s whose line is not written yet."""
    open_groups: set[Any]
    """The `GroupRunner`s that play or grade."""
