"""What all rollouts of a runner have in common."""

import asyncio
from typing import Any

import msgspec

from rolltrace.policies.roles import Roles
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import Sink
from rolltrace.rollout.strategies import Strategy
from rolltrace.trace.message import Sampling


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner was made with."""

    roles: Roles
    sink: Sink
    limits: Limits
    hooks: Hooks
    strategy: Strategy
    retries: int
    """How often an episode is played again after the policy or the env failed."""
    sampling: Sampling
    seed: int
    request_slots: asyncio.Semaphore
    """Bounds the policy requests in flight."""
    in_flight: set[Any]
    """The seats whose rollout is in flight: its line is not written yet."""
    open_groups: set[Any]
    """The groups that are being played or graded."""
