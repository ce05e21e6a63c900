"""Where a user's own code may look at a rollout while it is played."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import StepResult
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Grade, Identity, Rollout


class Turn(msgspec.Struct, frozen=True):
    """Which turn of which rollout, and what the policy sees."""

    identity: Identity
    step: int
    messages: tuple[Message, ...]


BeforeTurn = Callable[[Turn], Awaitable[Sequence[Message | dict[str, Any]] | None]]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Async functions, each optional. One that raises is a recorded failure of the rollout, of layer `hook`."""

    before_turn: BeforeTurn | None = None
    """May return messages, which are put to the env's `observe` and so into the prompt."""
    after_step: Callable[[Turn, Completion, StepResult], Awaitable[None]] | None = None
    """May read a turn that the env has taken."""
    on_stop: Callable[[Rollout], Awaitable[str | None]] | None = None
    """May read a rollout that has ended, and name the stop reason where the env gave none."""
    on_grade: Callable[[Rollout, Grade], Awaitable[None]] | None = None
    """May read each grade: the rollout's own, and the group's."""
