"""The score in a grader's reply, read so that nothing the reply quotes can pass for it."""

import re

from rolltrace.errors import GraderError
from rolltrace.policies.base import Completion
from rolltrace.trace.outcome import Termination

# Markdown's stars may surround the line, the word or the number; a quote's `>` may not.
_SCORE_LINE = re.compile(r"[ \t#*_-]*score[ \t*_]*:([^:]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:[0-9]{1,40}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?")
_LONGEST_QUOTE = 200


def read_verdict(completion: Completion) -> float:
    """The score of a reply that came to its own end; of one that was cut, the last digits may be missing."""
    if not completion.termination.well_formed:
        cut = completion.termination is Termination.LENGTH
        raise GraderError(f"the reply {'was cut off' if cut else 'is malformed'}: {quote(completion.message.content)}")
    return read_score(completion.message.content)


def read_score(text: str) -> float:
    """The number in [0, 1] of the line `Score: X` that the reply ends with, or that is the whole reply.

    Only the last line counts, and only as a whole: a score further up may be quoted from what is graded, and
    `Score: 1 of 10` is no 1.
    """
    text = text.strip()
    if not text:
        raise GraderError("the reply is empty")
    lines = text.splitlines()
    line = _SCORE_LINE.fullmatch(lines[-1])
    if line is None and len(lines) > 1:
        raise GraderError(f"the last line is no `Score: X`: {quote(lines[-1])}")
    number = (lines[-1] if line is None else line[1]).lstrip(" \t*_`").rstrip(" \t*_`.")
    if _NUMBER.fullmatch(number) is None or not (score := float(number)) <= 1:
        raise GraderError(f"the score is no number from 0 to 1: {quote(lines[-1])}")
    return score


def quote(text: str) -> str:
    """The end of a text, which says most about a reply, short enough for an error's message."""
    return repr(text) if len(text) <= _LONGEST_QUOTE else f"…{text[-_LONGEST_QUOTE:]!r}"
