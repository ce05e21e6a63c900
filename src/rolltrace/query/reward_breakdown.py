"""The terms whose sum is a reward, the numbers behind it, and what regrades said of it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.stop_reasons import StopReason

REGRADE_PREFIX = "regrade/"
"""What the names of scores begin with that `rolltrace regrade` wrote."""
_TOLERANCE = 1e-6
"""The relative error of a loop that adds in 32 bits."""


class RewardTerm(msgspec.Struct, frozen=True):
    """One of the terms whose sum is a reward."""

    name: str
    """`steps`, `grade` or `group grade`; `env` if it ended before the first turn; `limit`, a penalty without a step;
    `clamp`, what a limit removed; `score`, a later score of the total; `unexplained`, the rest.
    """
    value: Float


def reward_terms(rollout: Rollout) -> tuple[RewardTerm, ...]:
    """The terms of a rollout's reward; without a reward, the terms that are known so far."""
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
    """The numbers behind a reward, by name: summed over the steps, and those of the graders.

    A grader's name that is already used gets the prefix `grade.` or `group_grade.`.
    """
    steps: dict[str, float] = {}
    sources = [step.reward_data for step in rollout.steps]
    if rollout.ended_before_first_turn is not None:
        sources.append(rollout.ended_before_first_turn.reward_data)
    for values in sources:
        for name, value in _floats(values):
            steps[name] = steps.get(name, 0.0) + value
    numbers = steps
    grade = {} if rollout.grade is None else rollout.grade.reward_data
    late = rollout.reward_score
    for source, data in (("grade", grade), ("group_grade", {} if late is None else late.data.get("reward_data"))):
        numbers = numbers | {f"{source}.{name}" if name in numbers else name: value for name, value in _floats(data)}
    return numbers


class Regrade(msgspec.Struct, frozen=True):
    """What a rollout was worth before it was graded again, and after."""

    name: str
    """The name of the score: `regrade/GRADER@VERSION`."""
    old: Float | None
    """The reward that it had then."""
    new: Float | None
    """None if the grader failed."""
    is_reward: bool
    """Whether the new value is the reward now."""


def regrades(rollout: Rollout) -> tuple[Regrade, ...]:
    """The latest score of each regrade of a rollout, the latest regrade last."""
    total = rollout.reward_score
    current = None if total is None else total.data.get("regrade")
    latest = {score.name: score for score in rollout.scores if score.name.startswith(REGRADE_PREFIX)}
    return tuple(
        Regrade(name, as_float(score.data.get("old_reward")), score.value, name == current)
        for name, score in sorted(latest.items(), key=lambda item: rollout.scores.index(item[1]))
    )


def same_reward(one: float | None, other: float | None) -> bool:
    """Whether two rewards are equal; NaN is equal to NaN."""
    return one == other or (one != one and other != other)


def _line_terms(rollout: Rollout) -> Iterator[RewardTerm]:
    """The terms in the rollout's line."""
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
    """The difference between a total and the sum of the terms, if there is one."""
    values = [term.value for term in terms]
    rest = total - _sum(values)
    size = max(1.0, abs(total), *map(abs, values))
    if math.isfinite(rest) and math.isfinite(size) and abs(rest) > _TOLERANCE * size:
        yield RewardTerm(name, rest)


def _sum(values: Iterable[float]) -> float:
    """The sum, as exact as possible; never raises."""
    numbers = list(values)
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # too large on the way, or infinities of both signs
        return sum(numbers, 0.0)


def _floats(values: Any) -> Iterator[tuple[str, float]]:
    """The entries of a map that are numbers."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if (number := as_float(value)) is not None:
                yield str(name), number
