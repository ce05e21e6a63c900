"""Mathematical answers compared by value with math-verify: `1/2` is `0.5`, and `(x+1)^2` is `x^2+2x+1`."""

import functools
import importlib
import importlib.util
import logging

from rolltrace.errors import InputError
from rolltrace.graders.safe_eval import restrict_sympy_eval
from rolltrace.graders.workers import SCORING_POOL

MATH_SECONDS = 5.0
"""How long one answer may be computed on. A tower of powers never ends."""
_MAX_ANSWER_CHARS = 1000
"""Longer texts are wrong without being read."""


def require_math_verify() -> None:
    """An error that says what to install, where math-verify is not."""
    if importlib.util.find_spec("math_verify") is None:
        raise InputError("The check `math` needs math-verify: pip install 'rolltrace[math]'.")


async def math_score(answer: str, reference: str) -> float:
    """1.0 where math-verify holds the two for equal, as LaTeX or plain text.

    It is done in another process. An answer that takes it too long is a `GraderError`, a reference that it cannot read
    an `InputError`.
    """
    require_math_verify()
    if len(answer) > _MAX_ANSWER_CHARS:
        return 0.0
    return float(await SCORING_POOL.ask(_verify, answer, reference, seconds=MATH_SECONDS, prepare=_prepare))


@functools.cache
def _prepare() -> None:
    """Import it, and parse once: the first time takes as long as a hundred others."""
    logging.disable(logging.CRITICAL)  # it warns that time-outs, which need a main thread, are off: ours are on
    restrict_sympy_eval()
    _verify("(x+1)^2", "x^2+2x+1")


def _verify(answer: str, reference: str) -> float:
    math_verify = importlib.import_module("math_verify")
    expected, given = (
        math_verify.parse(f"${text.strip().strip('$')}$", parsing_timeout=None) for text in (reference, answer)
    )
    if not expected:
        raise InputError(f"Expected mathematics as the reference of the check `math`, got {reference!r}.")
    return 1.0 if math_verify.verify(expected, given, timeout_seconds=None) else 0.0
