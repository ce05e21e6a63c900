"""The verdict in a grader's reply, read so that nothing the reply quotes can pass for it."""

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
    """The number from 0 to 1 of the line `Score: X` that the reply ends with."""
    value = parse_last_line(completion, "Score")
    score = _number(value)
    if score is None or not score <= 1:
        raise GraderError(f"the score is no number from 0 to 1: {shorten(completion.message.content)}")
    return score


def read_preference(completion: Completion) -> float:
    """The number from −1 to 1 of the line `Preference: X` that the reply ends with; A, B and tie are numbers too."""
    value = parse_last_line(completion, "Preference")
    side = _SIDES.get(value.lower())
    if side is not None:
        return side
    size = _number(value[1:] if value[:1] in _SIGNS else value)
    if size is None or not size <= 1:
        raise GraderError(f"the preference is no number from -1 to 1: {shorten(completion.message.content)}")
    return _SIGNS.get(value[0], 1.0) * size + 0.0  # so that −0 is 0


def parse_last_line(completion: Completion, label: str) -> str:
    """What the reply's last line `LABEL: X` says as X, without the marks around it; X alone may be the whole reply.

    Raises `GraderError` otherwise, and where the reply did not come to its own end: the last digits may be missing.
    Only the last line counts, and only as a whole: what stands further up may be quoted from what is graded.
    """
    text = completion.message.content.strip()
    if not completion.termination.well_formed:
        cut = completion.termination is Termination.LENGTH
        raise GraderError(f"the reply {'was cut off' if cut else 'is malformed'}: {shorten(text)}")
    if not text:
        raise GraderError("the reply is empty")
    lines = text.splitlines()
    match = _line(label).fullmatch(lines[-1])
    if match is None and len(lines) > 1:
        raise GraderError(f"the last line is no `{label}: X`: {shorten(lines[-1])}")
    return (lines[-1] if match is None else match[1]).lstrip(" \t*_`").rstrip(" \t*_`.")


def shorten(text: str) -> str:
    """The end of a text, which says most about a reply, short enough for an error's message."""
    return repr(text) if len(text) <= _MAX_QUOTE_CHARS else f"…{text[-_MAX_QUOTE_CHARS:]!r}"


@functools.cache
def _line(label: str) -> re.Pattern[str]:
    """Markdown's stars may surround the line, the word or the value; a quote's `>` may not."""
    return re.compile(rf"[ \t#*_-]*{label}[ \t*_]*:([^:]*)", re.IGNORECASE)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
