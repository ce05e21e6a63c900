"""Whether a rollout's last response has the form that was asked for."""

import math
from collections.abc import Callable

from rolltrace.errors import GraderError, InputError
from rolltrace.trace.rollout import Rollout

FORMAT_COEF = 0.1
"""What a response of the wrong form costs."""

FormatCheck = Callable[[str], float]
"""Scores the form of a response: 1.0 is as asked for, 0.0 is not."""


def check_format_coef(format_coef: float) -> None:
    """Refuse a coefficient with which no reward is a number."""
    if not math.isfinite(format_coef):
        raise InputError(f"Expected format_coef to be a finite number, got {format_coef}.")


def run_format_check(check: FormatCheck, response: str) -> float:
    """What the check says of a response; a `GraderError` where that is no number to reckon with."""
    form = float(check(response))
    if not math.isfinite(form):
        raise GraderError(f"Expected a finite number from the format check, got {form}.")
    return form


def format_score(rollout: Rollout, check: FormatCheck | None = None) -> float:
    """What the check says of the last response, and 0.0 where that did not end by itself or there is none."""
    if not rollout.steps:
        return 0.0
    last = rollout.steps[-1]
    if last.termination is None or not last.termination.well_formed:
        return 0.0
    return 1.0 if check is None else run_format_check(check, last.trace.policy_response.content)
