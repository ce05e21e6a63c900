"""Functions of the user that the runner calls while it plays a rollout."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import StepResult
from rolltrace.policies.policy import Completion
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.rollout_end import HOOK_LAYER
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Identity, Rollout
from rolltrace.trace.score import Grade


class Turn(msgspec.Struct, frozen=True):
    """The turn of a rollout, and the messages that the policy sees."""

    identity: Identity
    step: int
    messages: tuple[Message, ...]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Async functions, each optional. If one raises, the rollout fails with the error layer `hook`."""

    before_turn: Callable[[Turn], Awaitable[Sequence[Message | dict[str, Any]] | None]] | None = None
    """May return messages, which the env's `observe` adds to the prompt."""
    after_step: Callable[[Turn, Completion, StepResult], Awaitable[None]] | None = None
    """Called after each step of the env."""
    on_stop: Callable[[Rollout], Awaitable[str | None]] | None = None
    """Called with a rollout that has ended. It may return the stop reason if the env gave none."""
    on_grade: Callable[[Rollout, Grade], Awaitable[None]] | None = None
    """Called with each grade of a rollout: that of its own grader, and that of the group's grader."""

    async def call(self, name: str, *args: Any) -> Any:
        """Call a hook that is set, and return what it returns."""
        with HOOK_LAYER:
            return await require_awaitable(getattr(self, name)(*args), self, name)
