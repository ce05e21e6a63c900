"""Policies with scripted replies: deterministic, whatever the order in which rollouts are played."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.policy import Completion, Request, to_completion
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.tokens import Usage

ScriptedReply = str | Message | Completion | Exception
"""Text, a message, a whole completion, or an exception to raise."""

TOKENS_PER_MESSAGE = 4
"""Tokens that a message counts besides its words, as in a chat template."""


class ScriptedPolicy(ABC):
    """A policy whose replies depend on the request alone, so that scheduling does not matter."""

    def __init__(self, *, name: str, version: int | str | None = None, context_length: int | None = None) -> None:
        self.name = name
        self.version = version
        self.context_length = context_length

    @abstractmethod
    def reply(self, request: Request) -> ScriptedReply | Awaitable[ScriptedReply]:
        """The reply, or the exception to raise, at this turn."""

    async def complete(self, request: Request) -> Completion:
        """The reply as a completion, with its tokens counted."""
        reply = self.reply(request)
        if hasattr(reply, "__await__"):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply.with_traceback(None)  # otherwise its traceback would grow each time it is raised
        completion = to_completion(reply)
        if completion.usage is not None:
            return completion
        usage = Usage(self.count_tokens(request), count_words(completion.message))
        return msgspec.structs.replace(completion, usage=usage)

    def count_tokens(self, request: Request) -> int:
        """A simple count: the words, and a constant for each message and tool."""
        words = sum(map(count_words, request.messages)) + sum(map(_count_tool, request.tools))
        return TOKENS_PER_MESSAGE * len(request.messages) + words


class ScriptedReplies(ScriptedPolicy):
    """Gives the replies in turn, or what a function of the request returns.

    A rollout's step number picks the reply, so any number of rollouts can be played at once. It pickles if the
    function does.
    """

    def __init__(
        self,
        replies: Sequence[ScriptedReply] | Callable[[Request], ScriptedReply | Awaitable[ScriptedReply]],
        *,
        name: str = "scripted",
        version: int | str | None = None,
        context_length: int | None = None,
    ) -> None:
        super().__init__(name=name, version=version, context_length=context_length)
        self.replies = (replies,) if isinstance(replies, str) else replies if callable(replies) else tuple(replies)

    def reply(self, request: Request) -> ScriptedReply | Awaitable[ScriptedReply]:
        """The reply of this step."""
        if callable(self.replies):
            return self.replies(request)
        if request.step >= len(self.replies):
            raise PolicyError(
                f"Expected at most {len(self.replies)} turns, as many as there are scripted replies, "
                f"got a request for turn {request.step + 1}: add replies, or let the env end sooner."
            )
        return self.replies[request.step]


def count_words(message: Message) -> int:
    """The words of a message: its text, its reasoning and its tool calls."""
    words = len(message.content.split())
    if message.reasoning is not None:
        words += len(message.reasoning.split())
    for call in message.tool_calls:
        words += 1 + len(call.arguments.split())
    return words


def _count_tool(tool: ToolSpec) -> int:
    return TOKENS_PER_MESSAGE + len(tool.description.split()) + len(tool.parameters.json_bytes.split())
