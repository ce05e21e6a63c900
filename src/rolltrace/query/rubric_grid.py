"""The rubric grid of a group: the score of each member for each criterion, and the grader's words."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.text_transform import hash_text

_MAX_CRITERIA = 200
_MAX_WORDS = 2_000
"""Longer replies of a grader are truncated."""


class RubricCriterion(msgspec.Struct, frozen=True):
    """One criterion of a rubric."""

    name: str
    weight: Float | None = None
    text: str | None = None


class RubricCell(msgspec.Struct, frozen=True):
    """The result for one criterion and one rollout."""

    value: Float | None = None
    words: str | None = None
    """The last reply of the grader about it."""


class RubricGrid(msgspec.Struct, frozen=True):
    """Results by criterion and member."""

    criteria: tuple[RubricCriterion, ...]
    ids: tuple[str, ...]
    """The members, in the order of the comparison."""
    cells: tuple[tuple[RubricCell, ...], ...]
    """A row for each criterion, in it a cell for each member."""


def rubric_grid(rollouts: Sequence[Rollout]) -> RubricGrid | None:
    """The grid of these rollouts; None if no rubric graded any of them."""
    known: dict[str, RubricCriterion] = {}
    for rollout in rollouts:
        for criterion, _ in rubric_scores(rollout):
            if criterion.name not in known and len(known) < _MAX_CRITERIA:
                known[criterion.name] = criterion
    if not known:
        return None
    columns = [_cells(rollout, known) for rollout in rollouts]
    return RubricGrid(
        tuple(known.values()),
        tuple(rollout.id for rollout in rollouts),
        tuple(tuple(cells[name] for cells in columns) for name in known),
    )


def rubric_scores(rollout: Rollout) -> list[tuple[RubricCriterion, RubricCell]]:
    """The criteria that a rollout was graded by, and the result for each; empty without a rubric."""
    if rollout.grade is None or not isinstance(criteria := rollout.grade.extra.get("criteria"), list):
        return []
    words = _words(rollout)
    numbers = rollout.grade.reward_data
    names_by_hash = {hash_text(name): name for name in numbers}
    results: list[tuple[RubricCriterion, RubricCell]] = []
    for one in criteria:
        if not isinstance(one, Mapping) or not isinstance(name := one.get("name"), str):
            continue
        name = names_by_hash.get(name, name)  # in a run without texts, only the names of numbers are plain
        text = one.get("text")
        criterion = RubricCriterion(name, as_float(one.get("weight")), text if isinstance(text, str) else None)
        value = as_float(numbers.get(name, one.get("score")))
        results.append((criterion, RubricCell(value, words.get(name, words.get(hash_text(name))))))
    return results


def _cells(rollout: Rollout, known: Mapping[str, Any]) -> dict[str, RubricCell]:
    """The cell for each criterion; if grading failed it has only the words."""
    words = _words(rollout)
    cells = {name: RubricCell(None, words.get(name)) for name in known}
    return cells | {criterion.name: cell for criterion, cell in rubric_scores(rollout) if criterion.name in known}


def _words(rollout: Rollout) -> dict[str, str]:
    """By criterion, the last reply of a grader about it."""
    return {
        call.about: call.reply.content[:_MAX_WORDS]
        for call in rollout.calls
        if call.about is not None and call.reply is not None and call.step is None
    }
