"""A question to whoever plays a role, put until the reply can be read or the tries are used up."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rolltrace.errors import ContextOverflowError, GraderError, InputError, PolicyError, RoleError
from rolltrace.policies.policy import Completion
from rolltrace.policies.roles import ask
from rolltrace.trace.message import Message, Sampling

MAX_TRIES = 3
REPLY_SECONDS = 60.0
"""How long one reply may take."""
MAX_TOKENS = 1024
GRADER_SAMPLING = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)

_MAX_REPLY_CHARS = 10_000
"""Of a longer reply only the end goes back with the correction: a reply without one must not fill the context."""

ReplyValue = TypeVar("ReplyValue")


class RetryingQuestion(Generic[ReplyValue]):
    """One question. A reply that cannot be read is answered with what is wrong with it; a failed call is made again.

    What would fail the next time too is not: a prompt that is too long, and a role that nobody plays.
    """

    def __init__(
        self,
        role: str,
        messages: Sequence[Message],
        read: Callable[[Completion], ReplyValue],
        correction: str,
        *,
        about: str | None = None,
        tries: int = MAX_TRIES,
        seconds: float | None = REPLY_SECONDS,
        sampling: Sampling = GRADER_SAMPLING,
    ) -> None:
        """`read` raises a `GraderError` where it cannot, whose text is the `{problem}` of the correction."""
        validate_retry_limits(tries, seconds, sampling)
        self.outcome: ReplyValue | GraderError | PolicyError = GraderError("nobody was asked")
        """What was read, or what kept the last try from giving it."""
        self.attempts = 0
        self.replies = 0
        """How many tries were answered, readably or not."""
        self._role = role
        self._messages = list(messages)
        self._read = read
        self._correction = correction
        self._about = about
        self._tries = tries
        self._seconds = seconds
        self._sampling = sampling

    @property
    def has_tries_left(self) -> bool:
        """Whether it is worth another try."""
        error = self.outcome
        if self.attempts == 0:
            return True
        if not isinstance(error, GraderError | PolicyError) or self.attempts == self._tries:
            return False
        return isinstance(error, GraderError | RoleError) and not isinstance(error.__cause__, ContextOverflowError)

    async def ask(self) -> None:
        """Try once. What goes wrong is kept, and not raised: that would cancel others that are asked beside it."""
        self.attempts += 1
        try:
            completion = await ask(
                self._role, self._messages, sampling=self._sampling, seconds=self._seconds, about=self._about
            )
        except PolicyError as error:
            self.outcome = error
            return
        self.replies += 1
        try:
            self.outcome = self._read(completion)
        except GraderError as error:
            self.outcome = error
            correction = Message("user", self._correction.format(problem=error))
            self._messages += [_as_said(completion.message), correction]

    async def run(self) -> None:
        """Try until there is an answer, or no hope of one."""
        while self.has_tries_left:
            await self.ask()

    def result(self, expected: str) -> ReplyValue:
        """What was read; where there is nothing, an error that says what was expected and what came."""
        if not isinstance(self.outcome, GraderError | PolicyError):
            return self.outcome
        tries = "1 try" if self.attempts == 1 else f"{self.attempts} tries"
        raise GraderError(f"Expected {expected}, got none in {tries}: {self.outcome}") from self.outcome


async def ask_all(inquiries: Sequence[RetryingQuestion[ReplyValue]]) -> None:
    """Ask all at once, in rounds, so that the order of calls in the record does not hang on how long each takes."""
    while waiting := [inquiry for inquiry in inquiries if inquiry.has_tries_left]:
        async with asyncio.TaskGroup() as asked:
            for inquiry in waiting:
                asked.create_task(inquiry.ask())


def validate_retry_limits(tries: int, seconds: float | None, sampling: Sampling = GRADER_SAMPLING) -> None:
    """Refuse tries, seconds and tokens in which nobody could answer."""
    if tries < 1:
        raise InputError(f"Expected tries of at least 1, got {tries}.")
    if seconds is not None and not seconds > 0:
        raise InputError(f"Expected seconds above 0, or None for no limit, got {seconds}.")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InputError(f"Expected max_tokens of at least 1, or None for no limit, got {sampling.max_tokens}.")


def _as_said(message: Message) -> Message:
    """The reply as the conversation goes on: servers refuse one that calls a tool and gets no answer from it."""
    if message.tool_calls:
        message = Message("assistant", message.content)
    if len(message.content) > _MAX_REPLY_CHARS:
        message = Message("assistant", message.content[-_MAX_REPLY_CHARS:])
    return message
