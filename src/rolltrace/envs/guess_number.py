"""The built-in `guess_number`: the policy finds a whole number, with a hint after each guess."""

import random
import re
from dataclasses import asdict, dataclass
from functools import partial

from rolltrace.envs.env import SingleEnvGroup, StepResult
from rolltrace.envs.guessing_env import GuessingEnv, check_max_turns, last_guess
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.seeds import derive_seed

MAX_NUMBER = 10**15 - 1
"""The largest absolute value of a number; guesses with more digits are not read."""

OPENING = (
    "I am thinking of a whole number from {low} to {high}. You have {turns} turns to guess it, and after each guess "
    "I say whether it was too high or too low.\nFinish each turn with a line `Guess: NUMBER`."
)
UNREADABLE = "I could not read a whole number in that: finish with a line `Guess: NUMBER`."

_TOKEN = re.compile(r"[\w.,+−-]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)")
_LONGEST = len(f"-{MAX_NUMBER:,}")


class GuessNumberEnv(GuessingEnv):
    """The right number has reward 1, another number 0, and a turn without a number −1; play goes on after both."""

    def __init__(self, target: int, *, low: int = 1, high: int = 100, max_turns: int = 10) -> None:
        super().__init__(OPENING.format(low=low, high=high, turns=max_turns), max_turns)
        self.target = target
        self.low = low
        self.high = high

    async def answer_turn(self, text: str) -> StepResult:
        """Compare the guess with the number. A guess outside the range is a guess like any other."""
        guess = read_guess(text)
        hint = self._hint(guess)
        correct, unreadable = float(hint == "correct"), float(hint == "unreadable")
        outside = float(guess is not None and not self.low <= guess <= self.high)
        return StepResult(
            reward=correct - unreadable,
            done=hint == "correct",
            observation=self._reply(UNREADABLE if guess is None else f"{hint.capitalize()}."),
            reward_data={"correct": correct, "unreadable": unreadable},
            env_state={"turn": self.turn, "guess": guess, "hint": hint, "target": self.target},
            metrics={"correct": correct, "unreadable": unreadable, "out_of_range": outside},
        )

    def _hint(self, guess: int | None) -> str:
        if guess is None:
            return "unreadable"
        if guess == self.target:
            return "correct"
        return "too high" if guess > self.target else "too low"


@dataclass
class GuessNumberTasks(Tasks):
    """Whole numbers to find in a few guesses, each answered with "too high" or "too low"."""

    env = "guess_number"

    low: int = 1
    high: int = 100
    max_turns: int = 10

    def __post_init__(self) -> None:
        if not -MAX_NUMBER <= self.low < self.high <= MAX_NUMBER:
            expected = f"low < high, both from -{MAX_NUMBER} to {MAX_NUMBER}"
            raise InputError(f"Expected {expected}, got low={self.low} and high={self.high}.")
        check_max_turns(self.max_turns)

    def builder(self, number: int, *, episodes: int, seed: int) -> SingleEnvGroup:
        """The group that looks for number `number` of the seed."""
        args = asdict(self)
        task_seed = derive_seed(self.env, self.low, self.high, seed, number)
        target = random.Random(task_seed).randint(self.low, self.high)  # noqa: S311 - not for secrets
        return SingleEnvGroup(
            make_env=partial(GuessNumberEnv, target, **args),
            env=self.env,
            task=f"from{self.low}to{self.high}-seed{seed}-{number}",
            tags=("game",),
            episodes=episodes,
            env_args=args,
            task_data={"number": number, "target": target},
            seed=task_seed,
            reward_range=(-float(self.max_turns), 1.0),
        )


def read_guess(text: str) -> int | None:
    """The first number of the last line `Guess: …`; without such a line, the last number of the text."""
    line = last_guess(text)
    numbers = _numbers(text)[-1:] if line is None else _numbers(line)
    return numbers[0] if numbers else None


def _numbers(text: str) -> list[int]:
    """The whole numbers in a text; `1.5`, `50-60` and `x1` do not count."""
    # Splitting into tokens first keeps the time linear in the length of the text.
    tokens = (match[0].rstrip(".,_-").lstrip("_").replace("−", "-") for match in _TOKEN.finditer(text))
    digits = (token.replace(",", "") for token in tokens if len(token) <= _LONGEST and _NUMBER.fullmatch(token))
    return [number for number in map(int, digits) if abs(number) <= MAX_NUMBER]
