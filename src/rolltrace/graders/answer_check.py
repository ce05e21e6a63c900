"""Extracts the answer from a text, and scores it against a reference."""

import re
from collections.abc import Awaitable, Callable, Mapping
from fractions import Fraction
from functools import lru_cache

from rolltrace.graders.math_check import math_score

AnswerCheck = Callable[[str, str], float | Awaitable[float]]
"""Scores an answer against the reference, from 0.0 (wrong) to 1.0 (right). It may be async.

If it raises `GraderError`, this answer cannot be judged and counts as wrong. Any other exception fails the rollout.
"""

# Each pattern starts with a fixed text or at the start of a line, so that matching takes linear time.
_ANSWER_LINE = re.compile(r"^[ \t>#*_-]*answer[ \t*_]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_BRACES = re.compile(r"\\boxed[ \t]*\{|\\.|[{}]", re.DOTALL)

_MAX_NUMBER_CHARS = 1000
"""Longer texts are not parsed as numbers, to bound the time; exponents are bounded for the same reason."""
_LARGEST_EXPONENT = 1000
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"([+-]?)(?:\\?\$ *)?([+-]?)({_DECIMAL})(?: */ *({_DECIMAL}))?\.?( *\\?%)?\.?\$?")


def extract_answer(text: str) -> str | None:
    r"""The text after the last `Answer:` at the start of a line, or in the last `\boxed{}`, whichever is later.

    Markdown's asterisks around the line, the word or the answer are removed. None if there is no answer.
    """
    candidates = [match for match in (_last_line(text), _last_box(text)) if match is not None]
    return max(candidates)[1] if candidates else None


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` whose braces close, or None if the text has no such box."""
    box = _last_box(text)
    return None if box is None else box[1]


def extract_tagged(text: str, tag: str = "answer") -> str | None:
    """The text between the last `</answer>` and the `<answer>` before it; None if that is missing or empty."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if start < 0 else text[start + len(tag) + 2 : end].strip() or None


def exact_score(answer: str, reference: str) -> float:
    """1.0 if the two texts are equal, apart from white space."""
    return 1.0 if answer.split() == reference.split() else 0.0


def number_score(answer: str, reference: str) -> float:
    """1.0 if both are numbers and exactly equal: `0.75`, `3/4`, `75%`, `$1,200.50`, `1.2e3`.

    If only one of the two has a percent sign, it may be ignored: `75%` equals both `0.75` and `75`.
    """
    first, second = _parse(answer), _parse(reference)
    if first is None or second is None:
        return 0.0
    (value, percent), (expected, expected_percent) = first, second
    if first == second or value == expected:  # the first is much faster if both texts are the same
        return 1.0
    if percent == expected_percent:
        return 0.0
    return 1.0 if (value == expected * 100 if percent else value * 100 == expected) else 0.0


def auto_score(answer: str, reference: str) -> float:
    """`number_score` if the reference is a number, otherwise `exact_score`."""
    return number_score(answer, reference) if is_number(reference) else exact_score(answer, reference)


def is_number(text: str) -> bool:
    """Whether `number_score` can parse the text."""
    return _parse(text) is not None


ANSWER_CHECKS: Mapping[str, AnswerCheck] = {"exact": exact_score, "math": math_score, "number": number_score}
"""The values of an environment's argument `check`."""


def _last_line(text: str) -> tuple[int, str] | None:
    last = None
    for match in _ANSWER_LINE.finditer(text):
        if answer := match[1].strip(" \t*"):
            last = match.start(), answer
    return last


def _last_box(text: str) -> tuple[int, str] | None:
    """The last box to begin, among those whose braces close."""
    if "\\boxed" not in text:
        return None
    last = None
    open_braces: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text):
        if match[0] == "{":
            open_braces.append(None)
        elif match[0].startswith("\\boxed"):
            open_braces.append((match.start(), match.end()))
        elif match[0] == "}" and open_braces:
            box = open_braces.pop()
            if box is not None and (last is None or box[0] > last[0]) and text[box[1] : match.start()].strip():
                last = box[0], text[box[1] : match.start()].strip()
    return last


def _parse(text: str) -> tuple[Fraction, bool] | None:
    """The number, and whether a percent sign follows it."""
    text = text.strip()
    return None if len(text) > _MAX_NUMBER_CHARS else _parse_short(text)


@lru_cache(maxsize=4096)  # a group gives the same few answers to one reference
def _parse_short(text: str) -> tuple[Fraction, bool] | None:
    text = text.replace("−", "-")
    if (match := _NUMBER.fullmatch(text)) is None:
        return None
    sign, inner_sign, numerator, denominator, percent = match.groups()
    value = _decimal(numerator)
    if value is None or (sign and inner_sign):
        return None
    if denominator is not None:
        if not (divisor := _decimal(denominator)):
            return None
        value /= divisor
    return -value if "-" in (sign, inner_sign) else value, percent is not None


def _decimal(text: str) -> Fraction | None:
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    if not digits.strip(".") or (exponent and abs(int(exponent)) > _LARGEST_EXPONENT):
        return None
    text_or_int = int(digits) if digits.isdecimal() else f"{digits}0" if digits.endswith(".") else digits
    value = Fraction(text_or_int)  # an int is four times faster
    return value * Fraction(10) ** int(exponent) if exponent else value
