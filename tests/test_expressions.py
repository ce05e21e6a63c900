"""Expressions: exact, bounded, and nothing but arithmetic."""

import math
import operator
import pickle
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rolltrace.errors import InputError
from rolltrace.expressions import MAX_DEPTH, MAX_DIGITS, MAX_LENGTH, ExpressionError, evaluate, format_number

VALUES = {
    "1 + 2 * 3": 7,
    "(1 + 2) * 3": 9,
    "2 - 3 - 4": -5,
    "2 ** 3 ** 2": 512,
    "2 ^ 10": 1024,
    "-2 ** 2": -4,
    "2 ** -3": Fraction(1, 8),
    "--5": 5,
    "+5": 5,
    "007": 7,
    ".5 + 5.": Fraction(11, 2),
    "1e3": 1000,
    "1.5E-2": Fraction(3, 200),
    "0.1 + 0.2": Fraction(3, 10),
    "1 / 3": Fraction(1, 3),
    "1 / 3 * 3": 1,
    "7 // 2": 3,
    "-7 // 2": -4,
    "-7 % 3": 2,
    "7.5 % 2": Fraction(3, 2),
    "48 × 17 − 309": 507,
    "9 ÷ 4": Fraction(9, 4),
    "3 · 4 – 2": 10,
    "sqrt(16)": 4,
    "sqrt(0.25)": Fraction(1, 2),
    "4 ** 0.5": 2,
    "abs(-3)": 3,
    "min(3, 1, 2) + max(4)": 5,
    "round(2.567, 2)": Fraction(257, 100),
    "round(1234, -2)": 1200,
    "floor(-1.5) + ceil(1.2)": 0,
    "1 ** (10 ** 900)": 1,
    "\n 1\t+\n1 ": 2,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_values(text, value):
    """Arithmetic has its exact value."""
    found = evaluate(text)
    assert found == value
    assert type(found) is type(value)


def test_irrational_values_are_floats():
    """Only values that no fraction can hold become floats."""
    assert evaluate("sqrt(2)") == math.sqrt(2)
    assert evaluate("2 ** 0.3 + 1") == pytest.approx(2**0.3 + 1)
    assert evaluate("sqrt(2) ** 2") == pytest.approx(2)


HOSTILE = [
    "9**9**9",
    "9**9**9**9**9",
    "10**10**10",
    "(10**1000)**1000",
    "2**-99999999",
    "(1/3)**10**9",
    "1e999999999",
    "1e-999999999",
    "1e" + "9" * 900,
    "9" * MAX_LENGTH + "9",
    "10**999 * 10**999",
    "1/10**999/10**999",
    "round(1, 10**9)",
    "round(1, 0.5)",
    "round(1, -10**9)",
    "sqrt(10**999 + 1)",
    "sqrt(2) ** 10**6",
    "2 ** (10**999 + 0.5)",
    "1 << 10**10",
    "1 if 1 else 2",
    "__import__('os').system('true')",
    "().__class__",
    "abs.__call__(1)",
    "[x for x in range(10)]",
    "lambda: 1",
    "f'{1}'",
    "exec(1)",
    "abs",
    "abs()",
    "abs(1, 2)",
    "sqrt(-1)",
    "(-8) ** (1/3)",
    "1 / 0",
    "1 // 0",
    "1 % 0",
    "0 ** -1",
    "0 ** -0.5",
    "1 / (sqrt(2) - sqrt(2))",
    "",
    "   ",
    "1 +",
    "* 1",
    "(1",
    "1)",
    "()",
    "1 2",
    "2(3)",
    "1,000",
    "1_000",
    "0x10",
    "1.2.3",
    "2 = 2",
    "1j",
    "nan",
    "inf",
    "\u0661 + \u0662",
    "²",
    "1\x00+1",
    "\ud800",
    "x" * MAX_LENGTH,
    "(" * MAX_LENGTH,
    "-" * MAX_LENGTH,
    "2**" * 300 + "2",
    "abs(" * 249,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_refused_with_its_place(text):
    """Anything but bounded arithmetic raises the one error, which is short and says where."""
    with pytest.raises(ExpressionError) as caught:
        evaluate(text)
    message = str(caught.value)
    assert len(message) < 200
    assert "at character" in message or "characters, got" in message
    message.encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(1 + 2", "Expected an operator or ')' at character 7, but the expression ends."),
        ("1,000 + 1", "Expected an operator or the end at character 2, but there is ','. Write 1000, not 1,000."),
        ("2(3)", "Expected an operator or the end at character 2, but there is '('. Write * to multiply."),
        ("1 + 6 / 0", "Division by zero at character 7."),
        ("abs(1, 2)", "Expected 1 argument(s) for abs at character 1, got 2."),
        ("10**10**10", f"Expected numbers of at most {MAX_DIGITS} digits, got more at character 3."),
    ],
)
def test_messages_help(text, message):
    """An error says what was expected, what came, and where."""
    with pytest.raises(ExpressionError) as caught:
        evaluate(text)
    assert str(caught.value) == message


def test_the_error_is_an_input_error_that_pickles():
    """There is one class to catch, and it pickles."""
    error = ExpressionError("no")
    assert isinstance(error, InputError)
    assert str(pickle.loads(pickle.dumps(error))) == "no"


def test_nesting_is_allowed_up_to_the_bound():
    """Nesting is allowed to the documented depth, and no deeper."""
    allowed = MAX_DEPTH - 1
    assert evaluate("(" * allowed + "1" + ")" * allowed) == 1
    with pytest.raises(ExpressionError, match="levels"):
        evaluate("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH)


def test_numbers_are_allowed_up_to_the_bound():
    """Numbers may have the documented number of digits."""
    assert evaluate("9" * MAX_LENGTH) == 10**MAX_DIGITS - 1
    assert evaluate(f"10 ** {MAX_DIGITS - 1}") == 10 ** (MAX_DIGITS - 1)


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "×": operator.mul,
    "÷": operator.truediv,
}


def _combine(children):
    def join(left, sign, right):
        values = None if None in (left[1], right[1]) else (left[1], right[1])
        if values is None or (OPERATORS[sign] not in (operator.add, operator.sub, operator.mul) and values[1] == 0):
            value = None
        else:
            value = Fraction(OPERATORS[sign](*values))
        return f"({left[0]}) {sign} ({right[0]})", value

    joined = st.builds(join, children, st.sampled_from(sorted(OPERATORS)), children)
    negated = st.builds(lambda child: (f"-({child[0]})", None if child[1] is None else -child[1]), children)
    return joined | negated


LEAVES = st.builds(
    lambda whole, tenths: (f"{whole}.{tenths}", Fraction(whole * 10 + tenths, 10)),
    st.integers(0, 999),
    st.integers(0, 9),
) | st.integers(0, 10**6).map(lambda value: (str(value), Fraction(value)))


@given(st.recursive(LEAVES, _combine, max_leaves=12))
def test_agrees_with_fractions(tree):
    """The value of any expression tree equals exact rational arithmetic; None is a division by zero."""
    text, value = tree
    if value is None:
        with pytest.raises(ExpressionError, match="Division by zero"):
            evaluate(text)
    else:
        assert evaluate(text) == value


@given(st.lists(st.integers(0, 99), min_size=2, max_size=8), st.data())
def test_precedence_is_pythons(numbers, data):
    """Without parentheses operators bind as in Python."""
    signs = [data.draw(st.sampled_from(["+", "-", "*", " - -"])) for _ in numbers[1:]]
    text = str(numbers[0]) + "".join(f"{sign}{number}" for sign, number in zip(signs, numbers[1:], strict=True))
    assert evaluate(text) == eval(text)


@given(st.text(alphabet="0123456789.+-*/%^() ,eabsqrtmxin_×÷−", max_size=60))
@example("9**9**9")
@example("round(9,9)")
def test_any_text_gives_a_value_or_the_one_error(text):
    """No text raises anything else."""
    try:
        value = evaluate(text)
    except ExpressionError:
        return
    assert isinstance(value, int | Fraction | float)
    format_number(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (True, "1"),
        (-(10**60), str(-(10**60))),
        (Fraction(3, 10), "0.3"),
        (Fraction(-1, 4), "-0.25"),
        (Fraction(6, 2), "3"),
        (Fraction(100), "100"),
        (Fraction(1, 3), "0.333333333333333"),
        (Fraction(2, 3), "0.666666666666667"),
        (Fraction(1, 10**16), "0.0000000000000001"),
        (Fraction(1, 10**50), "1e-50"),
        (Fraction(10**50, 3), "3.33333333333333e+49"),
        (0.1 + 0.2, "0.3"),
        (3.9999999999999996, "4"),
        (1200.0, "1200"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (1e300, "1e+300"),
        (math.sqrt(2), "1.4142135623731"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_format(value, text):
    """Numbers are formatted as a person would write them: no noise, no trailing zeros, no fractions of one."""
    assert format_number(value) == text


@given(st.integers(-(10**30), 10**30), st.integers(0, 9))
def test_terminating_decimals_are_read_back_equal(units, places):
    """A number that is written exactly is parsed to the same value."""
    value = Fraction(units, 10**places)
    assert evaluate(format_number(value)) == value


@given(st.fractions())
def test_other_values_are_read_back_close(value):
    """A rounded number keeps fifteen digits."""
    back = evaluate(format_number(value))
    assert abs(back - value) <= abs(value) * Fraction(1, 10**14)
