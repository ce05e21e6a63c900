"""What a reward is the sum of, and the numbers behind it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.stop_reasons import StopReason

_TOLERANCE = 1e-6
"""Relative to the size of the terms: what a loop that adds in 32 bits may be off by."""


class RewardTerm(msgspec.Struct, frozen=True):
    """One of the numbers that a reward is the sum of."""

    name: str
    """`steps`, `grade`, `group grade`; `env` where it was over before the first turn; `limit`, its charge where there
    was no step, and `clamp`, what it took; `score`, a later one that says the whole; `unexplained`, what is left over.
    """
    value: Float


def reward_terms(rollout: Rollout) -> tuple[RewardTerm, ...]:
    """What a rollout's reward is the sum of; if it has none, what is known of it so far."""
    reward, late, grade = rollout.reward, rollout.reward_score, rollout.group_grade
    if late is not None and reward is not None and grade is None:
        return (RewardTerm("score", reward),)
    terms = list(_line_terms(rollout))
    if grade is not None:
        terms.append(RewardTerm("group grade", grade.reward))
    if reward is None:
        return tuple(terms)
    before = rollout.unclamped_reward if late is None else as_float(late.data.get("unclamped_reward"))
    terms.extend(_rest("unexplained", reward if before is None else before, terms))
    if before is not None:
        terms.append(RewardTerm("clamp", reward - before))
    return tuple(terms)


def reward_components(rollout: Rollout) -> dict[str, float]:
    """The numbers behind a reward, by name: the sum over the steps, and what the graders say.

    A name that an earlier source has used has its source before it: `grade.` or `group_grade.`.
    """
    steps: dict[str, float] = {}
    told = [step.reward_data for step in rollout.steps]
    if rollout.ended_before_first_turn is not None:
        told.append(rollout.ended_before_first_turn.reward_data)
    for values in told:
        for name, value in _floats(values):
            steps[name] = steps.get(name, 0.0) + value
    numbers = steps
    grade = {} if rollout.grade is None else rollout.grade.reward_data
    late = rollout.reward_score
    for source, given in (("grade", grade), ("group_grade", {} if late is None else late.data.get("reward_data"))):
        fresh = {f"{source}.{name}" if name in numbers else name: value for name, value in _floats(given)}
        numbers = numbers | fresh
    return numbers


def same_reward(one: float | None, other: float | None) -> bool:
    """Whether two rewards are one; NaN is the same as NaN."""
    return one == other or (one != one and other != other)


def _line_terms(rollout: Rollout) -> Iterator[RewardTerm]:
    """What the line says, whoever wrote it."""
    terms: list[RewardTerm] = []
    if rollout.steps:
        terms.append(RewardTerm("steps", _sum(step.reward for step in rollout.steps)))
    if rollout.ended_before_first_turn is not None:
        terms.append(RewardTerm("env", rollout.ended_before_first_turn.reward))
    if rollout.grade is not None:
        terms.append(RewardTerm("grade", rollout.grade.reward))
    if not rollout.steps and rollout.stop_reason == StopReason.CONTEXT_OVERFLOW:
        terms.extend(_rest("limit", rollout.reward_so_far, terms))
    yield from terms


def _rest(name: str, total: float, terms: list[RewardTerm]) -> Iterator[RewardTerm]:
    """What is missing for a total, where the terms do not come to it."""
    values = [term.value for term in terms]
    rest = total - _sum(values)
    size = max(1.0, abs(total), *map(abs, values))
    if math.isfinite(rest) and math.isfinite(size) and abs(rest) > _TOLERANCE * size:
        yield RewardTerm(name, rest)


def _sum(values: Iterable[float]) -> float:
    """A sum that is as exact as can be, and never raises."""
    listed = list(values)
    try:
        return math.fsum(listed)
    except (OverflowError, ValueError):  # too large on the way, or infinities of both signs
        return sum(listed, 0.0)


def _floats(values: Any) -> Iterator[tuple[str, float]]:
    """The entries of a map that are numbers, and no others."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if (number := as_float(value)) is not None:
                yield str(name), number
