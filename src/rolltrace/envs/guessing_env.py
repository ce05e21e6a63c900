"""A base class for envs with a limited number of turns, in which the policy asks and guesses."""

import re
from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from rolltrace.envs.env import Env, Observation, SingleUse, StepResult
from rolltrace.errors import InputError
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason

# Anchored at the start of a line, which keeps the time linear in the length of the text.
_GUESS_LINE = re.compile(r"^[ \t>#*_-]*guess[ \t*_]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


class GuessingEnv(Env):
    """Alternates turns and answers until the guess is right or no turns are left."""

    def __init__(self, opening: str, max_turns: int) -> None:
        check_max_turns(max_turns)
        self.opening = opening
        self.max_turns = max_turns
        self.turn = 0
        """Turns that the policy has used."""
        self._life = SingleUse()

    @abstractmethod
    async def answer_turn(self, text: str) -> StepResult:
        """The result of a turn: done if the guess is right, otherwise with the answer as its observation."""

    async def initial_observation(self) -> Observation:
        """The rules of the game."""
        self._life.start()
        return Observation((Message("user", self.opening),))

    async def step(self, completion: Completion) -> StepResult:
        """Answer the turn. The last one ends the game."""
        self._life.require_active()
        self.turn += 1
        result = await self.answer_turn(completion.message.content)
        if not result.done and self.turn >= self.max_turns:
            result = msgspec.structs.replace(result, done=True, stop_reason=StopReason.MAX_TURNS)
        if result.done:
            self._life.end()
        return result

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Accept messages from outside. Each message of the policy uses a turn; None if no turn would be left."""
        self._life.require_active("observe()")
        turn = self.turn + sum(message.role == "assistant" for message in messages)
        if turn >= self.max_turns:
            return None
        self.turn = turn
        return Observation(tuple(messages))

    def _reply(self, text: str) -> Observation:
        """A text for the policy, with the number of turns left."""
        left = self.max_turns - self.turn
        return Observation((Message("user", f"{text} {left} {'turn' if left == 1 else 'turns'} left."),))


def check_max_turns(max_turns: int) -> None:
    """Raise `InputError` if `max_turns` is below 1."""
    if max_turns < 1:
        raise InputError(f"Expected max_turns of at least 1, got {max_turns}.")


def last_guess(text: str) -> str | None:
    """The text after the last `Guess:` at the start of a line, without Markdown markup; None if no line starts so."""
    guess = None
    for match in _GUESS_LINE.finditer(text):
        guess = match[1].strip(" \t*_`") or guess
    return guess
