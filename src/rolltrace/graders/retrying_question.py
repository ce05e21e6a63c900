"""A question to the policy of a role, asked again until the reply can be parsed or no tries are left."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rolltrace.errors import ContextOverflowError, GraderError, InputError, PolicyError, RoleError
from rolltrace.policies.policy import Completion
from rolltrace.policies.roles import ask
from rolltrace.trace.message import Message, Sampling

MAX_TRIES = 3
REPLY_SECONDS = 60.0
"""Time-out of one reply."""
MAX_TOKENS = 1024
GRADER_SAMPLING = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)

_MAX_REPLY_CHARS = 10_000
"""Of a longer reply only the end is sent back with the correction, so that it does not fill the context."""

ReplyValue = TypeVar("ReplyValue")


@dataclass(frozen=True, kw_only=True)
class AskSettings:
    """Which role is asked, and how."""

    role: str = "grader"
    tries: int = MAX_TRIES
    seconds: float | None = REPLY_SECONDS
    """Time-out of one reply; None is no limit."""
    sampling: Sampling = GRADER_SAMPLING

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise InputError(f"Expected tries of at least 1, got {self.tries}.")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"Expected seconds above 0, or None for no limit, got {self.seconds}.")
        max_tokens = self.sampling.max_tokens
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"Expected max_tokens of at least 1, or None for no limit, got {max_tokens}.")


@dataclass(eq=False)
class RetryingQuestion(Generic[ReplyValue]):
    """One question. If a reply cannot be parsed, a correction is sent; if the call fails, it is made again.

    Failures that would repeat are not retried: a prompt that is too long, and a role without a policy.
    """

    settings: AskSettings
    messages: Sequence[Message]
    parse: Callable[[Completion], ReplyValue]
    """Raises `GraderError` if it cannot parse a reply; its text is the `{problem}` of the correction."""
    correction: str
    about: str | None = None

    def __post_init__(self) -> None:
        self.outcome: ReplyValue | GraderError | PolicyError = GraderError("the question was not asked")
        """The parsed value, or the error of the last try."""
        self.attempts = 0
        self.replies = 0
        """How many tries got a reply, also one that could not be parsed."""

    @property
    def has_tries_left(self) -> bool:
        """Whether to try again."""
        error = self.outcome
        if self.attempts == 0:
            return True
        if not isinstance(error, GraderError | PolicyError) or self.attempts == self.settings.tries:
            return False
        return isinstance(error, GraderError | RoleError) and not isinstance(error.__cause__, ContextOverflowError)

    async def ask(self) -> None:
        """Try once. An error is stored and not raised, because that would cancel concurrent questions."""
        self.attempts += 1
        asked = self.settings
        try:
            completion = await ask(
                asked.role, self.messages, sampling=asked.sampling, seconds=asked.seconds, about=self.about
            )
        except PolicyError as error:
            self.outcome = error
            return
        self.replies += 1
        try:
            self.outcome = self.parse(completion)
        except GraderError as error:
            self.outcome = error
            correction = Message("user", self.correction.format(problem=error))
            self.messages = [*self.messages, _as_history(completion.message), correction]

    async def run(self) -> None:
        """Try until there is an answer, or no tries are left."""
        while self.has_tries_left:
            await self.ask()

    def result(self, expected: str) -> ReplyValue:
        """The parsed value. Raises `GraderError` if no reply could be parsed."""
        if not isinstance(self.outcome, GraderError | PolicyError):
            return self.outcome
        tries = "1 try" if self.attempts == 1 else f"{self.attempts} tries"
        raise GraderError(f"Expected {expected}, got none in {tries}: {self.outcome}") from self.outcome


async def ask_all(questions: Sequence[RetryingQuestion[ReplyValue]]) -> None:
    """Ask all questions in concurrent rounds, so that the order of recorded calls does not depend on their duration."""
    while open_questions := [question for question in questions if question.has_tries_left]:
        async with asyncio.TaskGroup() as tasks:
            for question in open_questions:
                tasks.create_task(question.ask())


def _as_history(message: Message) -> Message:
    """The reply for the next prompt, without tool calls, because servers reject calls without results."""
    if message.tool_calls:
        message = Message("assistant", message.content)
    if len(message.content) > _MAX_REPLY_CHARS:
        message = Message("assistant", message.content[-_MAX_REPLY_CHARS:])
    return message
