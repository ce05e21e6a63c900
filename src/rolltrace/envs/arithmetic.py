"""The built-in `arithmetic`: problems that are generated from a seed."""

import operator
import random
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.graders.format_check import FORMAT_COEF, check_format_coef, reward_range_with_format
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

MAX_EXAMPLES = 64
INSTRUCTION = "Think it through, then finish with a line `Answer: NUMBER`."


class Difficulty(NamedTuple):
    """The parameters of the expressions of one difficulty."""

    operator_count: int
    operators: str
    largest: int
    """The largest number in an expression; factors and divisors stay below 13."""


DIFFICULTIES = {
    1: Difficulty(1, "+-", 20),
    2: Difficulty(2, "+-*", 20),
    3: Difficulty(3, "+-*", 50),
    4: Difficulty(4, "+-*/", 100),
    5: Difficulty(6, "+-*/", 1000),
}
"""The levels by difficulty."""

_LARGEST_FACTOR = 12
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_ATOM = 3


class Expression(NamedTuple):
    """An expression as text, with its value."""

    text: str
    value: int
    precedence: int
    """The precedence of the outermost operator, which decides whether parentheses are needed."""


@dataclass
class ArithmeticTasks(Tasks):
    """Integer arithmetic with one exact answer; difficulty 1 is `7 + 12`, 5 has six operators and parentheses."""

    env = "arithmetic"
    count = None

    difficulty: int = 1
    format_coef: float = FORMAT_COEF
    examples: int = 0
    """How many worked examples the prompt shows before the question."""
    system: str | None = None

    def __post_init__(self) -> None:
        if self.difficulty not in DIFFICULTIES:
            expected = f"difficulty from 1 to {max(DIFFICULTIES)}"
            raise InputError(f"Expected {expected} for arithmetic, got {self.difficulty}.")
        if not 0 <= self.examples <= MAX_EXAMPLES:
            raise InputError(f"Expected examples from 0 to {MAX_EXAMPLES} for arithmetic, got {self.examples}.")
        check_format_coef(self.format_coef)

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays problem `number` of this seed."""
        task_seed = derive_seed("arithmetic", self.difficulty, seed, number)
        rng = random.Random(task_seed)  # noqa: S311 - not for secrets
        expression = make_question_expression(rng, DIFFICULTIES[self.difficulty])
        return ProblemGroup(
            env=self.env,
            task=f"difficulty{self.difficulty}-seed{seed}-{number}",
            question=_question(expression),
            reference=str(expression.value),
            system=self.system,
            examples=tuple(message for _ in range(self.examples) for message in self._example(rng, expression)),
            format_coef=self.format_coef,
            tags=("math", f"difficulty{self.difficulty}"),
            episodes=episodes,
            env_args=asdict(self),
            task_data={"number": number, "expression": expression.text, "answer": str(expression.value)},
            seed=task_seed,
            reward_range=reward_range_with_format(self.format_coef),
        )

    def _example(self, rng: random.Random, question: Expression) -> tuple[Message, Message]:
        """A random expression that differs from the question, with its value."""
        expression = question
        while expression == question:
            expression = make_question_expression(rng, DIFFICULTIES[self.difficulty])
        working = f"{expression.text} = {expression.value}\nAnswer: {expression.value}"
        return Message("user", _question(expression)), Message("assistant", working)


def make_question_expression(rng: random.Random, level: Difficulty) -> Expression:
    """A random expression of this level, whose value is an integer at every step."""
    return _grow(rng, level, level.operator_count)


def _question(expression: Expression) -> str:
    return f"What is {expression.text}?\n{INSTRUCTION}"


def _grow(rng: random.Random, level: Difficulty, operators: int) -> Expression:
    if operators == 0:
        return _number(rng.randint(1, level.largest))
    sign = rng.choice(level.operators)
    if sign in "+-":
        on_the_left = rng.randrange(operators)
        left = _grow(rng, level, on_the_left)
        return _join(left, sign, _grow(rng, level, operators - 1 - on_the_left))
    left = _grow(rng, level, operators - 1)
    if sign == "/":
        divisors = [divisor for divisor in range(2, _LARGEST_FACTOR + 1) if left.value % divisor == 0]
        if divisors:
            return _join(left, "/", _number(rng.choice(divisors)))
    return _join(left, "*", _number(rng.randint(2, _LARGEST_FACTOR)))


def _number(value: int) -> Expression:
    return Expression(str(value), value, _ATOM)


def _join(left: Expression, sign: str, right: Expression) -> Expression:
    binds = _PRECEDENCE[sign]
    left_text = left.text if left.precedence >= binds else f"({left.text})"
    # To the right of a minus or a division, an operator of equal precedence needs parentheses too.
    right_text = (
        right.text if right.precedence > binds or (right.precedence == binds and sign in "+*") else f"({right.text})"
    )
    return Expression(f"{left_text} {sign} {right_text}", _COMPUTE[sign](left.value, right.value), binds)
