"""Parses the score or preference in a grader's reply, but not one that the reply only quotes."""

import functools
import re

from rolltrace.errors import GraderError
from rolltrace.policies.policy import Completion
from rolltrace.trace.stop_reasons import Termination

_NUMBER = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_SIGNS = {"+": 1.0, "-": -1.0, "−": -1.0}
_SIDES = {"a": 1.0, "b": -1.0, "tie": 0.0}
_MAX_QUOTE_CHARS = 200


def read_score(completion: Completion) -> float:
    """The number from 0 to 1 in the last line, `Score: X`."""
    value = parse_last_line(completion, "Score")
    score = _number(value)
    if score is None or not score <= 1:
        raise GraderError(f"the score is not a number from 0 to 1: {shorten(completion.message.content)}")
    return score


def read_preference(completion: Completion) -> float:
    """The number from −1 to 1 in the last line, `Preference: X`; A, B and tie are 1, -1 and 0."""
    value = parse_last_line(completion, "Preference")
    side = _SIDES.get(value.lower())
    if side is not None:
        return side
    size = _number(value[1:] if value[:1] in _SIGNS else value)
    if size is None or not size <= 1:
        raise GraderError(f"the preference is not a number from -1 to 1: {shorten(completion.message.content)}")
    return _SIGNS.get(value[0], 1.0) * size + 0.0  # turns −0.0 into 0.0


def parse_last_line(completion: Completion, label: str) -> str:
    """The X of the reply's last line `LABEL: X`, or of a reply that is only X, without Markdown around it.

    Raises `GraderError` otherwise, and if the reply is truncated, because the last digits may be missing. Earlier
    lines do not count, because they may be quoted from the conversation that is graded.
    """
    text = completion.message.content.strip()
    if not completion.termination.well_formed:
        is_truncated = completion.termination is Termination.LENGTH
        raise GraderError(f"the reply {'was cut off' if is_truncated else 'is malformed'}: {shorten(text)}")
    if not text:
        raise GraderError("the reply is empty")
    lines = text.splitlines()
    match = _line(label).fullmatch(lines[-1])
    if match is None and len(lines) > 1:
        raise GraderError(f"the last line is not `{label}: X`: {shorten(lines[-1])}")
    return (lines[-1] if match is None else match[1]).lstrip(" \t*_`").rstrip(" \t*_`.")


def shorten(text: str) -> str:
    """The end of a text, short enough for an error message."""
    return repr(text) if len(text) <= _MAX_QUOTE_CHARS else f"…{text[-_MAX_QUOTE_CHARS:]!r}"


@functools.cache
def _line(label: str) -> re.Pattern[str]:
    """Markdown's asterisks may surround the line, the label or the value. A quotation mark `>` may not precede it."""
    return re.compile(rf"[ \t#*_-]*{label}[ \t*_]*:([^:]*)", re.IGNORECASE)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
