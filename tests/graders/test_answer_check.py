import pickle
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.graders.answer_check import (
    ANSWER_CHECKS,
    exact_score,
    extract_answer,
    extract_tagged,
    is_number,
    number_score,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 5", "5"),
        ("some work\nANSWER :  -3.5  \nmore", "-3.5"),
        ("**Answer:** 5", "5"),
        ("**Answer: 5**", "5"),
        ("**Answer**: **5**", "5"),
        ("## Answer: two words", "two words"),
        ("Answer: 1\r\nAnswer: 2\r\n", "2"),
        ("Answer: 1\nAnswer:\nAnswer: **\n", "1"),
        (r"so \boxed{12}.", "12"),
        (r"\boxed{\frac{3}{4}}", r"\frac{3}{4}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{1} and {\boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"Answer: $\boxed{7}$", "7"),
        ("\\boxed{1}\nAnswer: 2", "2"),
        ("Answer: 2\n\\boxed{1}", "1"),
    ],
)
def test_the_last_answer_is_found(text, answer):
    """The last answer counts: an `Answer:` line, bold or not, or a box with balanced braces."""
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text", ["", "5", "Answer", "Answer:", "Answer: **", "The answer: 5", r"\boxed{5", r"\boxed{ }"]
)
def test_text_without_an_answer(text):
    """A text without an `Answer:` line or a box has no answer."""
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>5</answer>", "5"),
        ("work\n<answer>\n1 2\n3 4\n</answer> done", "1 2\n3 4"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("</answer>", None),
        ("</answer><answer>", None),
        ("<answer> </answer>", None),
        ("<Answer>5</Answer>", None),
        ("5", None),
        ("<answer>" * 100_000, None),
        ("<answer>" * 100_000 + "5" + "</answer>" * 100_000, "5" + "</answer>" * 99_999),
    ],
)
def test_the_last_tagged_answer_is_found(text, answer):
    """Tags hold an answer of any number of lines; the last closed pair counts."""
    assert extract_tagged(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 100_000,
        "\\boxed{" * 50_000 + "}" * 50_000,
        "answer" + "* " * 200_000,
        "{" * 200_000,
        "Answer: " * 50_000,
    ],
)
def test_hostile_text_is_read_in_one_pass(text):
    """Extraction is linear: a long text made to backtrack ends like any other."""
    found = extract_answer(text)
    assert found is None or found in text


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("42", "42"),
        ("42.", "42"),
        ("+42", "42.000"),
        ("1,234,567", "1234567"),
        ("$1,200.50", "1200.5"),
        ("-$5", "$-5"),
        ("−5", "-5"),
        ("$7$", "7"),
        ("3/4", "0.75"),
        ("6 / 8", "3/4"),
        ("1/3", "2/6"),
        (".5", "1/2"),
        ("1.2e3", "1200"),
        ("1E-3", "0.001"),
        ("75%", "0.75"),
        ("75%", "75"),
        ("0.75", "75%"),
        ("75", r"75\%"),
        ("0", "-0"),
    ],
)
def test_equal_numbers_are_right(answer, reference):
    """Numbers are compared by value, however they are written."""
    assert number_score(answer, reference) == 1.0


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("41", "42"),
        ("0.3", "0.30000000000000001"),
        ("1,2", "12"),
        ("75%", "0.75%"),
        ("five", "5"),
        ("5 apples", "5"),
        ("", "0"),
        (".", "0"),
        ("e5", "0"),
        ("--5", "5"),
        ("-$-5", "5"),
        ("1_000", "1000"),
        ("٣", "3"),
        ("1/0", "1/0"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("-Infinity", "-Infinity"),
        ("1e999999999", "1e999999999"),
        ("1e1001", "1e1001"),
        ("1e-999999999", "0"),
        ("1e" + "9" * 900, "1"),
        ("9" * 10_000, "9" * 10_000),
        ("\ud800", "1"),
    ],
)
def test_other_numbers_and_no_numbers_are_wrong(answer, reference):
    """A value that is different, not a number, not finite or too large is wrong, and never raises."""
    assert number_score(answer, reference) == 0.0


def test_exact_score_compares_text():
    """The exact check ignores white space and nothing else."""
    assert exact_score("  New \n York ", "New York") == 1.0
    assert exact_score("new york", "New York") == 0.0
    assert exact_score("1.0", "1") == 0.0


def test_is_number_agrees_with_the_check():
    """`is_number` holds exactly for texts that equal themselves by the number check."""
    assert is_number("3/4")
    assert not is_number("three")


def test_checks_are_named_and_pickle():
    """The named checks are module functions, so that builders that hold one pickle."""
    assert set(ANSWER_CHECKS) >= {"exact", "number"}
    assert all(pickle.loads(pickle.dumps(check)) is check for check in ANSWER_CHECKS.values())


@given(st.text())
def test_nothing_raises(text):
    """Extraction and scoring raise for no text."""
    answer = extract_answer(text)
    assert number_score(text, "1") in (0.0, 1.0)
    if answer is not None:
        assert answer.strip()
        assert answer in text


@given(st.text(alphabet=string.digits + "+-.,eE/%$\\ ", max_size=30))
def test_number_like_text_never_raises(text):
    """Text made of the characters of numbers either equals itself or is wrong, and never raises."""
    assert number_score(text, text) == (1.0 if is_number(text) else 0.0)


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_equals_its_text(value):
    """A fraction equals its own text and no other."""
    assert number_score(str(value), str(value)) == 1.0
    assert number_score(str(value + Fraction(1, 10**9)), str(value)) == 0.0


@given(st.integers())
def test_thousands_separators_change_nothing(value):
    """An integer is the same number with commas."""
    assert number_score(f"{value:,}", str(value)) == 1.0


@given(st.text(alphabet=string.ascii_letters + string.digits + " .", min_size=1).filter(str.strip), st.text())
def test_a_line_after_any_text_is_the_answer(answer, before):
    """Whatever comes before it, a closing `Answer:` line is the answer."""
    assert extract_answer(f"{before}\nAnswer: {answer}") == answer.strip()
