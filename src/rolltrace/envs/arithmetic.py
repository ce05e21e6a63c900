"""Arithmetic problems, generated without end from a seed."""

import random
from typing import NamedTuple

from rolltrace.envs.problem import ProblemGroup
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.graders.form import FORMAT_COEF, check_format_coef
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

MOST_EXAMPLES = 64
INSTRUCTION = "Think it through, then finish with a line `Answer: NUMBER`."


class Level(NamedTuple):
    """What the expressions of one difficulty are made of."""

    operators: int
    signs: str
    largest: int
    """The largest number written; factors and divisors stay below 13."""


LEVELS = {
    1: Level(1, "+-", 20),
    2: Level(2, "+-*", 20),
    3: Level(3, "+-*", 50),
    4: Level(4, "+-*/", 100),
    5: Level(6, "+-*/", 1000),
}
"""By difficulty."""

_LARGEST_FACTOR = 12
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}
_ATOM = 3


class Expression(NamedTuple):
    """An expression as text, with what it comes to."""

    text: str
    value: int
    binds: int
    """How strongly its outermost operator binds: what decides whether parentheses are needed around it."""


class ArithmeticTasks(Tasks):
    """Integer arithmetic with one exact answer; difficulty 1 is `7 + 12`, 5 has six operators and parentheses."""

    env = "arithmetic"
    count = None

    def __init__(
        self, difficulty: int = 1, format_coef: float = FORMAT_COEF, examples: int = 0, system: str | None = None
    ) -> None:
        if difficulty not in LEVELS:
            raise InputError(f"Expected difficulty from 1 to {max(LEVELS)} for arithmetic, got {difficulty}.")
        if not 0 <= examples <= MOST_EXAMPLES:
            raise InputError(f"Expected examples from 0 to {MOST_EXAMPLES} for arithmetic, got {examples}.")
        check_format_coef(format_coef)
        self.difficulty = difficulty
        self.format_coef = format_coef
        self.examples = examples
        """How many worked examples come before the question."""
        self.system = system

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays problem `number` of this seed."""
        task_seed = derive_seed("arithmetic", self.difficulty, seed, number)
        chance = random.Random(task_seed)  # noqa: S311 - not for secrets
        expression = make_expression(chance, LEVELS[self.difficulty])
        return ProblemGroup(
            env=self.env,
            task=f"difficulty{self.difficulty}-seed{seed}-{number}",
            question=_question(expression),
            reference=str(expression.value),
            system=self.system,
            examples=tuple(message for _ in range(self.examples) for message in self._example(chance, expression)),
            format_coef=self.format_coef,
            tags=("math", f"difficulty{self.difficulty}"),
            episodes=episodes,
            env_args={
                "difficulty": self.difficulty,
                "format_coef": self.format_coef,
                "examples": self.examples,
                "system": self.system,
            },
            task_data={"number": number, "expression": expression.text, "answer": str(expression.value)},
            seed=task_seed,
        )

    def _example(self, chance: random.Random, asked: Expression) -> tuple[Message, Message]:
        """Another expression than the one that is asked, with its value."""
        expression = asked
        while expression == asked:
            expression = make_expression(chance, LEVELS[self.difficulty])
        working = f"{expression.text} = {expression.value}\nAnswer: {expression.value}"
        return Message("user", _question(expression)), Message("assistant", working)


def make_expression(chance: random.Random, level: Level) -> Expression:
    """A random expression of this level, whose value is an integer at every step."""
    return _grow(chance, level, level.operators)


def _question(expression: Expression) -> str:
    return f"What is {expression.text}?\n{INSTRUCTION}"


def _grow(chance: random.Random, level: Level, operators: int) -> Expression:
    if operators == 0:
        return _number(chance.randint(1, level.largest))
    sign = chance.choice(level.signs)
    if sign in "+-":
        on_the_left = chance.randrange(operators)
        left = _grow(chance, level, on_the_left)
        return _join(left, sign, _grow(chance, level, operators - 1 - on_the_left))
    left = _grow(chance, level, operators - 1)
    if sign == "/":
        divisors = [divisor for divisor in range(2, _LARGEST_FACTOR + 1) if left.value % divisor == 0]
        if divisors:
            return _join(left, "/", _number(chance.choice(divisors)))
    return _join(left, "*", _number(chance.randint(2, _LARGEST_FACTOR)))


def _number(value: int) -> Expression:
    return Expression(str(value), value, _ATOM)


def _join(left: Expression, sign: str, right: Expression) -> Expression:
    binds = _BINDS[sign]
    left_text = left.text if left.binds >= binds else f"({left.text})"
    # On the right of a minus or a division, even an equally strong operator needs parentheses.
    right_text = right.text if right.binds > binds or (right.binds == binds and sign in "+*") else f"({right.text})"
    return Expression(f"{left_text} {sign} {right_text}", _compute(left.value, sign, right.value), binds)


def _compute(left: int, sign: str, right: int) -> int:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    return left * right if sign == "*" else left // right
