"""Compares mathematical answers by value with math-verify: `1/2` is `0.5`, and `(x+1)^2` is `x^2+2x+1`."""

import functools
import importlib
import importlib.util
import logging

from rolltrace.errors import InputError
from rolltrace.graders.safe_eval import restrict_sympy_eval
from rolltrace.graders.scoring_pool import run_scorer

MATH_SECONDS = 5.0
"""Limit of the CPU time for one answer, because some answers, such as towers of powers, take hours."""
_MAX_ANSWER_CHARS = 1000
"""A longer answer is wrong, and is not parsed."""


def require_math_verify() -> None:
    """Raise `InputError`, with what to install, if math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise InputError("The check `math` needs math-verify: pip install 'rolltrace[math]'.")


async def math_score(answer: str, reference: str) -> float:
    """1.0 if math-verify finds the two equal, as LaTeX or plain text.

    It runs in a worker process. An answer that takes too long raises `GraderError`, and a reference that cannot be
    parsed raises `InputError`.
    """
    require_math_verify()
    if len(answer) > _MAX_ANSWER_CHARS:
        return 0.0
    return float(await run_scorer(_verify, answer, reference, cpu_seconds=MATH_SECONDS, prepare=_prepare))


@functools.cache
def _prepare() -> None:
    """Import math-verify and parse once, because the first parse takes as long as a hundred others."""
    logging.disable(logging.CRITICAL)  # it warns that its time-outs are off, but we have our own
    restrict_sympy_eval()
    _verify("(x+1)^2", "x^2+2x+1")


def _verify(answer: str, reference: str) -> float:
    math_verify = importlib.import_module("math_verify")
    expected, parsed = (
        math_verify.parse(f"${text.strip().strip('$')}$", parsing_timeout=None) for text in (reference, answer)
    )
    if not expected:
        raise InputError(f"Expected mathematics as the reference of the check `math`, got {reference!r}.")
    return 1.0 if math_verify.verify(expected, parsed, timeout_seconds=None) else 0.0
