"""The policy interface: a `Request` in, a `Completion` out."""

from typing import Protocol, runtime_checkable

import msgspec

from rolltrace.errors import InputError
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.rollout import Identity
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.tokens import Tokens, Usage


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request to a policy."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    seed: int | None = None
    """Seed for sampling: the same for the same turn of the same rollout of the same run."""
    identity: Identity | None = None
    """The rollout that the request belongs to."""
    step: int = 0
    role: str = "policy"
    """The role that answers: `policy`, `grader`, `answerer` or `opponent`."""
    include_tokens: bool = False
    """Whether token ids and log-probabilities are recorded and should be requested from the server."""


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer."""

    message: Message
    termination: Termination = Termination.EOS
    parse_error: str | None = None
    """Why part or all of the answer could not be parsed."""
    raw: str | None = None
    """The answer before it was parsed, if that differs from the message's content."""
    policy_version: int | str | None = None
    """The version of the policy that answered, if it can change while running."""
    usage: Usage | None = None
    tokens: Tokens | None = None


def to_completion(answer: object) -> Completion:
    """Convert a text, a message or a completion to a `Completion`."""
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        answer = Message("assistant", answer)
    if isinstance(answer, Message):
        termination = Termination.TOOL_CALLS if answer.tool_calls else Termination.EOS
        return Completion(message=answer, termination=termination)
    raise InputError(f"Expected an answer to be a str, a Message or a Completion, got {type(answer).__name__}.")


@runtime_checkable
class Policy(Protocol):
    """Answers requests."""

    @property
    def name(self) -> str:
        """The name that records show."""
        ...

    @property
    def version(self) -> int | str | None:
        """The version, such as the training step of the weights."""
        ...

    @property
    def context_length(self) -> int | None:
        """The maximum number of tokens of prompt and answer together; None if only the server knows."""
        ...

    async def complete(self, request: Request) -> Completion:
        """Answer a request; raise `ContextOverflowError` if the prompt does not fit."""
        ...

    def count_tokens(self, request: Request) -> int | None:
        """The number of tokens of the prompt; None if only the server knows."""
        ...
