"""The built-in `twenty_questions`: a secret to be found by questions that an answerer says yes or no to."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rolltrace.envs.answerer import YesNoAnswer, ask_answerer
from rolltrace.envs.dataset_rows import read_rows
from rolltrace.envs.env import Env, EnvGroupBuilder, StepResult
from rolltrace.envs.guessing_env import GuessingEnv, check_max_turns, last_guess
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError
from rolltrace.graders.retrying_question import MAX_TRIES, REPLY_SECONDS, validate_retry_limits

ENV = "twenty_questions"
SHIPPED = Path(__file__).parent / "data" / "twenty_questions.jsonl"

OPENING = (
    "I am thinking of something. Find out what it is, in at most {turns} turns. In each turn either ask one question "
    "that can be answered with yes or no, or guess with a line `Guess: NAME`. A wrong guess uses up a turn."
)
ANSWER_TEXTS = {
    YesNoAnswer.YES: "Yes.",
    YesNoAnswer.NO: "No.",
    YesNoAnswer.NEITHER: "I cannot say.",
    YesNoAnswer.UNREADABLE: "I cannot say.",
}
EMPTY = "You said nothing: ask a question, or guess with a line `Guess: NAME`."
WRONG, RIGHT = "No, that is not it.", "Yes, that is it!"

_MAX_GUESS_CHARS = 200
_NOT_A_WORD = re.compile(r"[\W_]+")
_UNSEEN = {"Mn", "Cf"}
"""Accents, joiners and other marks without a width of their own."""
_BEFORE_A_NAME = {"a", "an", "the", "is", "it", "its", "s"}

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class SecretRow(msgspec.Struct, frozen=True):
    """One row of the file."""

    id: NonEmpty | int
    secret: NonEmpty
    accept: tuple[NonEmpty, ...] = ()
    """Other names that are as right."""
    category: NonEmpty | None = None
    """What sort of thing it is: a tag of the rollouts, and shown to no policy."""
    other: dict[str, Any] = {}
    """The row's other keys, kept in the record's `task_data`."""


class TwentyQuestionsEnv(GuessingEnv):
    """The right guess is worth 1, all else 0. Only the answerer knows the secret; only yes or no is passed on."""

    def __init__(
        self,
        secret: str,
        accept: Sequence[str] = (),
        *,
        max_turns: int = 20,
        tries: int = MAX_TRIES,
        seconds: float | None = REPLY_SECONDS,
    ) -> None:
        super().__init__(OPENING.format(turns=max_turns), max_turns)
        self.secret = secret
        self.tries = tries
        self.seconds = seconds
        self._right = {normalize_name(name) for name in (secret, *accept)}

    async def answer_turn(self, text: str) -> StepResult:
        """A guess is compared here; a question goes to the answerer."""
        if (guess := last_guess(text)) is not None:
            guess = guess[:_MAX_GUESS_CHARS]
            right = normalize_name(guess) in self._right
            return self._result("guess", RIGHT if right else WRONG, guess=guess, right=right)
        if not text.strip():
            return self._result("nothing", EMPTY)
        answer, replies = await ask_answerer(self.secret, text, tries=self.tries, seconds=self.seconds)
        return self._result(
            "question", ANSWER_TEXTS[answer], answer=answer, unreadable=replies - (answer != YesNoAnswer.UNREADABLE)
        )

    def _result(
        self,
        kind: str,
        says: str,
        *,
        answer: YesNoAnswer | None = None,
        guess: str | None = None,
        right: bool = False,
        unreadable: int = 0,
    ) -> StepResult:
        said = None if answer is None else answer.value
        state = {"turn": self.turn, "kind": kind, "answer": said, "guess": guess, "secret": self.secret}
        return StepResult(
            reward=float(right),
            done=right,
            observation=self._reply(says),
            reward_data={"correct": float(right)},
            env_state=state,
            metrics={
                "correct": float(right),
                "questions": float(kind == "question"),
                "guesses": float(kind == "guess"),
                "unreadable_answers": unreadable,
            },
        )


class TwentyQuestionsBuilder(EnvGroupBuilder):
    """The episodes that look for one secret."""

    env = ENV

    def __init__(
        self, row: SecretRow, *, episodes: int, data: str | None, max_turns: int, tries: int, seconds: float | None
    ) -> None:
        self.row = row
        self.task = str(row.id)
        self.tags = ("game",) if row.category is None else ("game", row.category)
        self.episodes = episodes
        self.max_turns, self.tries, self.seconds = max_turns, tries, seconds
        self.env_args = {"data": data, "max_turns": max_turns, "tries": tries, "seconds": seconds}
        self.task_data = {
            **row.other,
            "secret": row.secret,
            "accept": list(row.accept),
            "category": row.category,
        }

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One env with the secret in mind."""
        env = TwentyQuestionsEnv(
            self.row.secret, self.row.accept, max_turns=self.max_turns, tries=self.tries, seconds=self.seconds
        )
        return [env]


class TwentyQuestionsTasks(Tasks):
    """A secret to be found in twenty turns, by questions that an answerer says yes or no to, and guesses."""

    env = ENV

    def __init__(
        self,
        data: str | None = None,
        max_turns: int = 20,
        tries: int = MAX_TRIES,
        seconds: float | None = REPLY_SECONDS,
    ) -> None:
        """Read the file of `{id, secret, accept, category}`; None is the shipped one."""
        check_max_turns(max_turns)
        validate_retry_limits(tries, seconds)
        self.data = data
        self.max_turns = max_turns
        self.tries = tries
        self.seconds = seconds
        self.secrets = read_rows(SHIPPED if data is None else data, SecretRow, unique="id", accept=_accept_names)
        self.count: int = len(self.secrets)

    def builder(self, number: int, *, episodes: int, seed: int) -> TwentyQuestionsBuilder:
        """The group that looks for secret `number`; nothing in it is left to chance."""
        return TwentyQuestionsBuilder(
            self.secrets[number],
            episodes=episodes,
            data=self.data,
            max_turns=self.max_turns,
            tries=self.tries,
            seconds=self.seconds,
        )


def normalize_name(text: str) -> str:
    """A name as it is compared: without case, accents, punctuation, articles and the like before it."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(letter for letter in plain if unicodedata.category(letter) not in _UNSEEN)
    words = _NOT_A_WORD.sub(" ", letters).casefold().split()
    while words and words[0] in _BEFORE_A_NAME:
        del words[0]
    return " ".join(words)


def _accept_names(row: SecretRow) -> SecretRow:
    for name in (row.secret, *row.accept):
        if not normalize_name(name) or len(name) > _MAX_GUESS_CHARS:
            raise DataError(
                f"expected names of at most {_MAX_GUESS_CHARS} characters with a letter or digit, got {name!r}."
            )
    return row
