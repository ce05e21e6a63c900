"""What a policy is: the request it gets, the completion it gives."""

from typing import Protocol, runtime_checkable

import msgspec

from rolltrace.errors import InputError
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.rollout import Identity, Tokens, Usage
from rolltrace.trace.stop_reasons import Termination


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One question to a policy."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    seed: int | None = None
    """What the policy's chance is drawn from: the same for the same turn of the same rollout of the same run."""
    identity: Identity | None = None
    """Which rollout asks."""
    step: int = 0
    role: str = "policy"
    """Which part in the env this answer plays: `policy`, `grader`, `answerer`, `opponent`."""
    include_tokens: bool = False
    """Whether token ids and log-probabilities are recorded, so that it is worth asking for them."""


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer."""

    message: Message
    termination: Termination = Termination.EOS
    parse_error: str | None = None
    """Why part or all of the answer could not be read."""
    raw: str | None = None
    """The answer before it was parsed, where that differs from the message's content."""
    policy_version: int | str | None = None
    """The version of the policy that answered, where it may change while running."""
    usage: Usage | None = None
    tokens: Tokens | None = None


def to_completion(answer: object) -> Completion:
    """The completion that a text, a message or a completion stands for."""
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        answer = Message("assistant", answer)
    if isinstance(answer, Message):
        ended = Termination.TOOL_CALLS if answer.tool_calls else Termination.EOS
        return Completion(message=answer, termination=ended)
    raise InputError(f"Expected an answer to be a str, a Message or a Completion, got {type(answer).__name__}.")


@runtime_checkable
class Policy(Protocol):
    """Who answers."""

    @property
    def name(self) -> str:
        """Which policy this is, as records show it."""
        ...

    @property
    def version(self) -> int | str | None:
        """Which version of it, such as the training step of the weights."""
        ...

    @property
    def context_length(self) -> int | None:
        """How many tokens prompt and answer may have together; None where only the server knows."""
        ...

    async def complete(self, request: Request) -> Completion:
        """Answer; raise `ContextOverflowError` where the prompt does not fit."""
        ...

    def count_tokens(self, request: Request) -> int | None:
        """How many tokens the prompt has; None where only the server's error tells."""
        ...
