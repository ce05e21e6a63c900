"""A conversation of so many turns, in which the policy finds something out and guesses it."""

import re
from abc import abstractmethod
from collections.abc import Sequence

import msgspec

from rolltrace.envs.env import Env, Observation, SingleUse, StepResult
from rolltrace.errors import InputError
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason

# It starts at the start of a line, so that no input makes it look twice at the same place.
_GUESS_LINE = re.compile(r"^[ \t>#*_-]*guess[ \t*_]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)


class GuessingEnv(Env):
    """One message to start with, then a turn and an answer, until the guess is right or the turns are used up."""

    def __init__(self, opening: str, max_turns: int) -> None:
        check_max_turns(max_turns)
        self.opening = opening
        self.max_turns = max_turns
        self.turn = 0
        """Turns that the policy has used."""
        self._life = SingleUse()

    @abstractmethod
    async def answer_turn(self, text: str) -> StepResult:
        """What comes of what the policy said; done where it guessed right, else with what it hears next."""

    async def initial_observation(self) -> Observation:
        """What the game is."""
        self._life.start()
        return Observation((Message("user", self.opening),))

    async def step(self, completion: Completion) -> StepResult:
        """Take the turn; the last one ends the game, whatever it was."""
        self._life.require_active()
        self.turn += 1
        result = await self.answer_turn(completion.message.content)
        if not result.done and self.turn >= self.max_turns:
            result = msgspec.structs.replace(result, done=True, stop_reason=StopReason.MAX_TURNS)
        if result.done:
            self._life.end()
        return result

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Take messages from outside; each of the policy's own is a turn used. None where no turn would be left."""
        self._life.require_active("observe()")
        turn = self.turn + sum(message.role == "assistant" for message in messages)
        if turn >= self.max_turns:
            return None
        self.turn = turn
        return Observation(tuple(messages))

    def _reply(self, text: str) -> Observation:
        """A text for the policy, and how many turns it has left."""
        left = self.max_turns - self.turn
        return Observation((Message("user", f"{text} {left} {'turn' if left == 1 else 'turns'} left."),))


def check_max_turns(max_turns: int) -> None:
    """Refuse a game that is over before it begins."""
    if max_turns < 1:
        raise InputError(f"Expected max_turns of at least 1, got {max_turns}.")


def last_guess(text: str) -> str | None:
    """What stands after the last `Guess:` that begins a line, Markdown's stars aside; None where there is none."""
    guess = None
    for match in _GUESS_LINE.finditer(text):
        guess = match[1].strip(" \t*_`") or guess
    return guess
