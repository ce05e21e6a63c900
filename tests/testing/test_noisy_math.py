import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.testing.noisy_math import (
    find_expression,
    find_question,
    format_answer,
    guess_expression,
    make_wrong,
    parse_tool_result,
    solve,
)
from rolltrace.trace.message import Message


def rng(seed=0):
    return random.Random(seed)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("What is 12 + 7 * 3?\nFinish with a line `Answer: NUMBER`.", "12 + 7 * 3"),
        ("What is (4 + 18) * 12?", "(4 + 18) * 12"),
        ("What is -3 - 4?", "-3 - 4"),
        ("Compute 8 ÷ 2 × 3.", "8 ÷ 2 × 3"),
        ("First 1 + 1, then 10 + 20 + 30.", "10 + 20 + 30"),
        ("What is 1/2 + 1/3, as a fraction?", "1/2 + 1/3"),
        ("A coat costs 80 and is sold at 25% off", None),
        ("no numbers", None),
        ("1 / 0", None),
        ("-5", None),
    ],
)
def test_the_longest_expression_with_a_value_is_found(text, expression):
    """Arithmetic is found anywhere; a lone number, or an expression without a value, does not count."""
    assert find_expression(text) == expression


def test_the_question_is_the_last_that_asks_something():
    """Examples come before the question; a note on an unreadable reply comes after it, and is not the question."""
    messages = [
        Message("user", "What is 1 + 1?"),
        Message("assistant", "Answer: 2"),
        Message("user", "What is 2 + 3?"),
        Message("assistant", "9 + 9"),
        Message("user", "Your tool call could not be read."),
    ]
    assert find_question(messages) == "What is 2 + 3?"
    assert find_question([Message("user", "I have 3 cats."), Message("user", "How many?")]) == "I have 3 cats."
    assert find_question([Message("user", "first"), Message("user", "last")]) == "last"
    assert find_question([]) == ""


def test_arithmetic_is_solved_exactly():
    """Arithmetic is computed exactly, as a decimal if that is exact and else as a fraction."""
    assert solve("What is 12 + 7 * 3?", rng()).answer == "33"
    assert solve("What is 1 / 4?", rng()).answer == "0.25"
    assert solve("What is 1/2 + 1/3?", rng()).answer == "5/6"
    assert format_answer(Fraction(2, 3)) == "2/3"


def test_word_problems_are_guessed_from_their_numbers():
    """The words hint at the operation; without numbers the answer is a word of the question."""
    assert solve("Mara has 14 apples and gives 5 away. How many are left?", rng()).answer == "9"
    assert guess_expression("7 tickets cost 12 dollars each", rng()) == "7 * 12"
    assert guess_expression("none", rng()) is None
    assert solve("Who is the youngest?", rng()).answer in {"Who", "is", "the", "youngest"}
    assert solve("", rng()).answer == "unknown"


@given(st.fractions() | st.integers(), st.integers(0, 20))
def test_a_falsified_number_is_another_number(value, seed):
    """A wrong answer differs from the right one, also from zero."""
    spoilt = make_wrong(str(value), rng(seed))
    assert Fraction(spoilt) != value


def test_a_falsified_word_is_another_text():
    """An answer that is no number can be wrong too."""
    assert make_wrong("Friday", rng()) != "Friday"


@pytest.mark.parametrize(
    ("text", "result"),
    [("42", "42"), (" -4.5\n", "-4.5"), ("2 + 2 = 4", "4"), ("Error at character 12", None), ("", None)],
)
def test_a_tools_result_is_a_number_or_none(text, result):
    """An error that mentions a number is not a result."""
    assert parse_tool_result(text) == result


@given(st.text() | st.text(alphabet="0123456789 +-*/().,%^"))
def test_any_prompt_has_an_answer(text):
    """Any prompt is answered, and nothing raises."""
    assert solve(text, rng()).answer


@pytest.mark.parametrize("text", ["- " * 50_000, "1" * 50_000, "(" * 50_000, "9**9**9**9", "1 + " * 20_000 + "1"])
def test_hostile_prompts_end(text):
    """A prompt made to be slow is answered like any other."""
    assert solve(text, rng()).answer
