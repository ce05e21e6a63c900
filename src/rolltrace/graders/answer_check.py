"""The answer in a text, and how right it is."""

import re
from collections.abc import Awaitable, Callable, Mapping
from fractions import Fraction
from functools import lru_cache

from rolltrace.graders.math_check import math_score

AnswerCheck = Callable[[str, str], float | Awaitable[float]]
"""Scores an answer against the reference: 1.0 is right, 0.0 is wrong, anything between is kept as it is.

It may be a coroutine function. A `GraderError` says that this answer cannot be judged, which makes it wrong; any other
exception says that the check is broken, and fails the rollout.
"""

# Each pattern starts at a fixed text or at the start of a line, so that no input makes it look twice at the same place.
_ANSWER_LINE = re.compile(r"^[ \t>#*_-]*answer[ \t*_]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_BRACES = re.compile(r"\\boxed[ \t]*\{|\\.|[{}]", re.DOTALL)

_MAX_NUMBER_CHARS = 1000
"""Longer texts are no number, so that none takes long to read; exponents are bounded for the same reason."""
_LARGEST_EXPONENT = 1000
_DECIMAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"([+-]?)(?:\\?\$ *)?([+-]?)({_DECIMAL})(?: */ *({_DECIMAL}))?\.?( *\\?%)?\.?\$?")


def extract_answer(text: str) -> str | None:
    r"""What stands after the last `Answer:` that begins a line, or in the last `\boxed{}`, whichever is later.

    Markdown's stars around the line, the word or the answer are no part of it. None where there is no answer.
    """
    line, box = _last_line(text), _last_box(text)
    found = max((place for place in (line, box) if place is not None), default=None)
    return None if found is None else found[1]


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` whose braces close, or None if the text has no such box."""
    box = _last_box(text)
    return None if box is None else box[1]


def extract_tagged(text: str, tag: str = "answer") -> str | None:
    """What stands between the last `</answer>` and the `<answer>` before it; None where that is nothing."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return None if start < 0 else text[start + len(tag) + 2 : end].strip() or None


def exact_score(answer: str, reference: str) -> float:
    """1.0 where the two are the same text, white space aside."""
    return 1.0 if answer.split() == reference.split() else 0.0


def number_score(answer: str, reference: str) -> float:
    """1.0 where both are numbers and equal, exactly: `0.75`, `3/4`, `75%`, `$1,200.50`, `1.2e3`.

    Where only one of the two has a percent sign, both readings of it are right: `75%` is `0.75` and `75`.
    """
    first, second = _parse(answer), _parse(reference)
    if first is None or second is None:
        return 0.0
    (value, percent), (expected, expected_percent) = first, second
    if value == expected:
        return 1.0
    if percent == expected_percent:
        return 0.0
    return 1.0 if (value == expected * 100 if percent else value * 100 == expected) else 0.0


def auto_score(answer: str, reference: str) -> float:
    """`number_score` if the reference is a number, else `exact_score`."""
    return number_score(answer, reference) if is_number(reference) else exact_score(answer, reference)


def is_number(text: str) -> bool:
    """Whether `number_score` can read it."""
    return _parse(text) is not None


ANSWER_CHECKS: Mapping[str, AnswerCheck] = {"exact": exact_score, "math": math_score, "number": number_score}
"""The checks that an environment's `check` argument names."""


def _last_line(text: str) -> tuple[int, str] | None:
    last = None
    for match in _ANSWER_LINE.finditer(text):
        if answer := match[1].strip(" \t*"):
            last = match.start(), answer
    return last


def _last_box(text: str) -> tuple[int, str] | None:
    """The box that begins last, of those whose braces close."""
    last = None
    still_open: list[tuple[int, int] | None] = []
    for match in _BRACES.finditer(text):
        mark = match[0]
        if mark == "{":
            still_open.append(None)
        elif mark.startswith("\\boxed"):
            still_open.append((match.start(), match.end()))
        elif mark == "}" and still_open:
            box = still_open.pop()
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
    divisor = Fraction(1) if denominator is None else _decimal(denominator)
    if value is None or not divisor or (sign and inner_sign):
        return None
    value /= divisor
    return -value if "-" in (sign, inner_sign) else value, percent is not None


def _decimal(text: str) -> Fraction | None:
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    if not digits.strip(".") or (exponent and abs(int(exponent)) > _LARGEST_EXPONENT):
        return None
    return Fraction(f"{digits}0" if digits.endswith(".") else digits) * Fraction(10) ** int(exponent or 0)
