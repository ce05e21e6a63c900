"""Evaluates arithmetic that people and models write: safely, with bounds, and exactly if possible.

It does not use Python's parser, so that only arithmetic is accepted, decimals stay exact, and every error names a
position in the text.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

from rolltrace.errors import InputError

MAX_LENGTH = 1_000
"""Characters of an expression."""
MAX_DEPTH = 50
"""Nesting of parentheses, signs and powers."""
MAX_DIGITS = 1_000
"""Digits of the numerator and of the denominator of any intermediate value."""

_MAX_BITS = math.ceil(MAX_DIGITS * math.log2(10))
_ROUNDED_DIGITS = 15  # a double represents any 15 decimal digits, so rounding errors are in later digits
_EXACT_DIGITS = 40  # a terminating decimal up to this long is shown in full
_SMALLEST_EXPONENT = -16  # numbers below 1e-16 are shown as 1e-17, not as a row of zeros

_SYNONYMS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|[-+*/%^(),])"
)

_Exact = Fraction | float


class ExpressionError(InputError):
    """The text is not an expression, or its value is undefined or too large."""


class _UndefinedError(Exception):
    """An operation has no value; `_compute` adds the position."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def evaluate(text: str) -> int | Fraction | float:
    """The value of an arithmetic expression.

    It may have `+ - * / // % **` with Python's precedence, `× ÷ − ^` as synonyms, parentheses, decimals, and the
    functions abs, ceil, floor, max, min, round and sqrt. Rational values are exact: an int or a Fraction. Only
    irrational roots and powers are floats.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"Expected an expression of at most {MAX_LENGTH} characters, got {len(text)}.")
    value = _Parser(text).value()
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def format_number(value: int | Fraction | float) -> str:
    """The shortest decimal of the value, which `evaluate` accepts.

    Integers and terminating decimals of up to 40 digits are exact. Other values are rounded to 15 digits, which also
    removes the rounding errors of floats: 0.1 + 0.2 is 0.3.
    """
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _positional(Context(prec=_ROUNDED_DIGITS).create_decimal(value)) if math.isfinite(value) else str(value)
    exact = Context(prec=_EXACT_DIGITS)
    decimal = exact.divide(Decimal(value.numerator), Decimal(value.denominator))
    if Fraction(decimal) != value:
        decimal = Context(prec=_ROUNDED_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    return _positional(decimal)


def _positional(decimal: Decimal) -> str:
    if decimal == 0:
        return "0"
    text = f"{decimal:f}" if _SMALLEST_EXPONENT <= decimal.adjusted() <= _EXACT_DIGITS else f"{decimal:e}"
    digits, mark, exponent = text.partition("e")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + mark + exponent


class _Parser:
    """Parses and evaluates one expression in one pass; precedence climbing keeps the stack shallow."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.depth = 0

    def value(self) -> _Exact:
        value = self.operation(1)
        if self.token.kind != "end":
            self.fail("an operator or the end")
        return value

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def fail(self, expected: str) -> NoReturn:
        actual = "the expression ends" if self.token.kind == "end" else f"there is {self.token.text[:40]!r}"
        hint = _HINTS.get(self.token.text, "")
        raise ExpressionError(f"Expected {expected} at character {self.token.position + 1}, but {actual}.{hint}")

    def take(self, sign: str) -> bool:
        """Whether the next token is this sign; if so it is consumed."""
        if self.token.kind == "sign" and self.token.text == sign:
            self.next += 1
            return True
        return False

    def operation(self, min_precedence: int) -> _Exact:
        """Operands joined by operators of at least this precedence."""
        left = self.signed()
        while self.token.kind == "sign" and self.token.text in _OPERATORS:
            precedence, function = _OPERATORS[self.token.text]
            if precedence < min_precedence:
                break
            position = self.token.position
            self.next += 1
            left = _compute(function, [left, self.operation(precedence + 1)], position)
        return left

    def signed(self) -> _Exact:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ExpressionError(
                f"Expected at most {MAX_DEPTH} levels of parentheses, signs and powers, got more "
                f"at character {self.token.position + 1}."
            )
        if self.take("-"):
            value = -self.signed()
        elif self.take("+"):
            value = self.signed()
        else:
            value = self.power()
        self.depth -= 1
        return value

    def power(self) -> _Exact:
        base = self.atom()
        position = self.token.position
        if self.take("**") or self.take("^"):
            return _compute(_power, [base, self.signed()], position)
        return base

    def atom(self) -> _Exact:
        token = self.token
        if token.kind == "number":
            self.next += 1
            return _compute(_number, [token.text], token.position)
        if token.kind == "name":
            self.next += 1
            return self.call(token)
        if not self.take("("):
            self.fail("a number or '('")
        value = self.operation(1)
        if not self.take(")"):
            self.fail("an operator or ')'")
        return value

    def call(self, name: _Token) -> _Exact:
        if name.text not in _FUNCTIONS:
            raise ExpressionError(
                f"Expected numbers, operators and the functions {', '.join(sorted(_FUNCTIONS))}, "
                f"but there is {name.text[:40]!r} at character {name.position + 1}."
            )
        if not self.take("("):
            self.fail(f"'(' after {name.text}")
        arguments = [self.operation(1)]
        while self.take(","):
            arguments.append(self.operation(1))
        if not self.take(")"):
            self.fail("an operator, ',' or ')'")
        minimum, maximum, function = _FUNCTIONS[name.text]
        if not minimum <= len(arguments) <= maximum:
            number = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
            raise ExpressionError(
                f"Expected {number} argument(s) for {name.text} at character {name.position + 1}, got {len(arguments)}."
            )
        return _compute(function, arguments, name.position)


def _tokens(text: str) -> list[_Token]:
    plain = text.translate(_SYNONYMS)  # character by character, so positions do not change
    tokens = []
    position = 0
    while position < len(plain):
        if plain[position].isspace():
            position += 1
        elif match := _TOKEN.match(plain, position):
            tokens.append(_Token(str(match.lastgroup), match.group(), position))
            position = match.end()
        else:
            raise ExpressionError(
                f"Expected numbers, operators and parentheses only, but there is {text[position]!r} "
                f"at character {position + 1}."
            )
    return [*tokens, _Token("end", "", len(text))]


def _number(text: str) -> Fraction:
    _, _, exponent = text.lower().partition("e")
    # Checked first, because Fraction would expand every digit of 1e999999999.
    if exponent and (len(exponent) > 6 or abs(int(exponent)) > MAX_DIGITS):
        raise OverflowError
    return Fraction(text)


def _compute(function: Callable[..., Any], arguments: Sequence[_Exact | str], position: int) -> _Exact:
    try:
        return _bounded(function(*arguments))
    except ZeroDivisionError:
        raise ExpressionError(f"Division by zero at character {position + 1}.") from None
    except OverflowError:
        limit = f"Expected numbers of at most {MAX_DIGITS} digits"
        raise ExpressionError(f"{limit}, got more at character {position + 1}.") from None
    except _UndefinedError as error:
        raise ExpressionError(f"{error}, at character {position + 1}.") from None


def _bounded(value: Any) -> _Exact:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        return value
    exact = value if isinstance(value, Fraction) else Fraction(value)
    if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > _MAX_BITS:
        raise OverflowError
    return exact


def _power(base: _Exact, exponent: _Exact) -> Any:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, float):
            return base**exponent.numerator
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        # The power has at least this many bits. Checked first, because computing it could take all memory.
        if (bits - 1) * abs(exponent.numerator) > _MAX_BITS:
            raise OverflowError
        return base**exponent.numerator
    if base < 0:
        raise _UndefinedError("A negative number has no real fractional power")
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    return _square_root(base) if exponent == Fraction(1, 2) else math.pow(base, exponent)


def _square_root(value: _Exact) -> Any:
    if value < 0:
        raise _UndefinedError("A negative number has no real square root")
    if isinstance(value, Fraction):
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
    return math.sqrt(value)


def _round(value: _Exact, digits: _Exact = Fraction(0)) -> Any:
    # Half to even, as Python rounds.
    if not isinstance(digits, Fraction) or digits.denominator != 1 or abs(digits) > MAX_DIGITS:
        raise _UndefinedError(f"round expects a whole number of digits, at most {MAX_DIGITS}")
    return round(value, digits.numerator)


_HINTS = {",": " Write 1000, not 1,000.", "(": " Write * to multiply."}

_OPERATORS: dict[str, tuple[int, Callable[..., Any]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "/": (2, operator.truediv),
    "//": (2, operator.floordiv),
    "%": (2, operator.mod),
}

_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, math.ceil),
    "floor": (1, 1, math.floor),
    "max": (1, MAX_LENGTH, lambda *values: max(values)),
    "min": (1, MAX_LENGTH, lambda *values: min(values)),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _square_root),
}
