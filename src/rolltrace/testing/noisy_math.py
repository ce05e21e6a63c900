"""Solves problems from the text of the prompt: arithmetic exactly, word problems by guessing; and makes mistakes."""

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from rolltrace.errors import InputError
from rolltrace.expressions import evaluate, format_number
from rolltrace.trace.message import Message

ExactNumber = int | Fraction | float

# A run of characters that expressions consist of. It is trimmed afterwards, so that each character is read once.
_RUN = re.compile(r"[0-9 .,+*/%^()×÷−-]+")
_NOT_FIRST, _NOT_LAST = " .,+*/%^×÷)", " .,+*/%^×÷(−-"
_OPERATOR = re.compile(r"[+*/%^×÷−-]")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_WORD = re.compile(r"[^\W\d_]{2,}")

_MAX_PROMPT_CHARS = 20_000
"""How many characters of a message are read, from its end: a message can be of any length."""
_MAX_MESSAGES = 10
"""How many messages are read, from the last."""

_HINTS = (
    ("/", ("share", "per ", "split", "average", "divided", "how many days", "boxes of")),
    ("*", ("each", "times", "area", "cost", "rows of")),
    ("-", ("left", "fewer", "gives", "falls", "less", "remain", "change", "back")),
    ("+", ("altogether", "total", "together", "sum", "more")),
)


class Solution(NamedTuple):
    """An answer, and how it was found."""

    answer: str
    working: str
    """The calculation; empty if there was none."""


def find_question(messages: Sequence[Message]) -> str:
    """The question: the last user message with an expression, otherwise with a number, otherwise the last one.

    The last is not always the question: it may only say that the previous reply could not be parsed.
    """
    questions = [message.content[-_MAX_PROMPT_CHARS:] for message in messages if message.role == "user"][
        -_MAX_MESSAGES:
    ]
    questions.reverse()
    for text in questions:
        if find_expression(text) is not None:
            return text
    with_numbers = [text for text in questions if _NUMBER.search(text)]
    return next(iter(with_numbers or questions), "")


def find_expression(text: str) -> str | None:
    """The longest arithmetic expression in the text that has a value."""
    candidates = [match[0].lstrip(_NOT_FIRST).rstrip(_NOT_LAST) for match in _RUN.finditer(text)]
    for candidate in sorted(candidates, key=len, reverse=True)[:8]:
        if _OPERATOR.search(candidate.lstrip("-−")) and evaluate_or_none(candidate) is not None:
            return candidate
    return None


def guess_expression(text: str, rng: random.Random) -> str | None:
    """A calculation with the numbers of a word problem, with an operator that its words suggest, or None."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    lowered = text.lower()
    hinted = [sign for sign, words in _HINTS if any(word in lowered for word in words)]
    first, second = (*numbers, rng.choice(numbers))[:2]
    expression = f"{first} {rng.choice(hinted or ['+', '-', '*'])} {second}"
    return expression if evaluate_or_none(expression) is not None else first


def evaluate_or_none(expression: str) -> ExactNumber | None:
    """Value of the expression, or None if it is invalid."""
    try:
        return evaluate(expression)
    except InputError:
        return None


def parse_tool_result(text: str) -> str | None:
    """The number in a tool's result, or after its last `=`; None if that is not a number."""
    result = text[-_MAX_PROMPT_CHARS:].rpartition("=")[2].strip()
    return result if _NUMBER.fullmatch(result) else None


def format_answer(value: ExactNumber) -> str:
    """A number as an answer: a decimal if that is exact, otherwise a fraction."""
    text = format_number(value)
    return str(value) if isinstance(value, Fraction) and evaluate_or_none(text) != value else text


def solve(text: str, rng: random.Random) -> Solution:
    """An answer to the question: calculated, guessed from its numbers, or one of its words."""
    expression = find_expression(text) or guess_expression(text, rng)
    if expression is not None and (value := evaluate_or_none(expression)) is not None:
        return Solution(format_answer(value), expression)
    words = _WORD.findall(text)
    return Solution(rng.choice(words) if words else "unknown", "")


def make_wrong(answer: str, rng: random.Random) -> str:
    """A plausible wrong answer: off by a little, by a sign or by a factor of ten; `not X` if X is not a number."""
    value = evaluate_or_none(answer)
    if value is None:
        return f"not {answer}"
    slips = (value + 1, value - 1, value + 2, value + 10, value - 10, value * 10, -value)
    return format_answer(rng.choice([slip for slip in slips if slip != value]))
