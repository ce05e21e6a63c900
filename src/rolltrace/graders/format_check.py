"""Checks the format of a rollout's last response."""

import math
from collections.abc import Callable

from rolltrace.errors import GraderError, InputError
from rolltrace.trace.rollout import Rollout

FORMAT_COEF = 0.1
"""The penalty for a response in the wrong format."""

FormatCheck = Callable[[str], float]
"""Scores the format of a response, from 0.0 (wrong) to 1.0 (right)."""


def check_format_coef(format_coef: float) -> None:
    """Raise `InputError` unless the coefficient is finite."""
    if not math.isfinite(format_coef):
        raise InputError(f"Expected format_coef to be a finite number, got {format_coef}.")


def reward_range_with_format(format_coef: float) -> tuple[float, float]:
    """The range of `format_coef * (format − 1) + correct`, if both scores are from 0 to 1."""
    return min(0.0, -format_coef), 1.0 + max(0.0, -format_coef)


def run_format_check(check: FormatCheck, response: str) -> float:
    """The format score of a response. Raises `GraderError` unless it is a finite number."""
    score = float(check(response))
    if not math.isfinite(score):
        raise GraderError(f"Expected a finite number from the format check, got {score}.")
    return score


def format_score(rollout: Rollout, check: FormatCheck | None = None) -> float:
    """The format score of the last response; 0.0 if it is truncated, malformed or missing."""
    if not rollout.steps:
        return 0.0
    last = rollout.steps[-1]
    if last.termination is None or not last.termination.well_formed:
        return 0.0
    return 1.0 if check is None else run_format_check(check, last.trace.policy_response.content)
