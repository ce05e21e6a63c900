"""One prompt and one response without a score, for distillation or for graders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltrace.envs.env import Env, GroupFields, Observation, SingleUse, StepResult
from rolltrace.errors import InputError
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason, Termination

Prompt = str | Sequence[Message | Mapping[str, Any]]
"""The text of a user's message, or a conversation to continue."""


class PromptOnlyEnv(Env):
    """Shows one prompt, accepts any response, and gives a reward of 0."""

    takes_any_completion = True

    def __init__(self, messages: Prompt) -> None:
        self.messages = (Message("user", messages),) if isinstance(messages, str) else tuple(messages)
        if not self.messages:
            raise InputError("Expected a prompt of at least one message, got none.")
        self._life = SingleUse()

    async def initial_observation(self) -> Observation:
        """The prompt."""
        self._life.start()
        return Observation(self.messages)

    async def step(self, completion: Completion) -> StepResult:
        """Accept the response; the episode is over."""
        self._life.require_active()
        self._life.end()
        return StepResult(
            reward=0.0,
            done=True,
            metrics={"well_formed": float(completion.termination.well_formed)},
            stop_reason=StopReason.MAX_TOKENS if completion.termination is Termination.LENGTH else None,
        )


@dataclass(kw_only=True)
class PromptOnlyGroup(GroupFields):
    """Episodes of one prompt; a grader of each response, or of the group, may score them."""

    messages: Prompt

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One new `PromptOnlyEnv`."""
        return (PromptOnlyEnv(self.messages),)
