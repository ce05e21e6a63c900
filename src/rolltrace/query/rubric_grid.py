"""How far each member of a group meets each criterion, in numbers and in the grader's words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.text_transform import hash_text

_MAX_CRITERIA = 200
_MAX_WORDS = 2_000
"""How many characters of what a grader said are kept."""


class RubricCriterion(msgspec.Struct, frozen=True):
    """One thing that was looked for."""

    name: str
    weight: Float | None = None
    text: str | None = None


class RubricCell(msgspec.Struct, frozen=True):
    """What was found of a criterion in one rollout."""

    value: Float | None = None
    words: str | None = None
    """The last that the grader said about it."""


class RubricGrid(msgspec.Struct, frozen=True):
    """Criteria by members."""

    criteria: tuple[RubricCriterion, ...]
    ids: tuple[str, ...]
    """The members, in the order of the comparison."""
    cells: tuple[tuple[RubricCell, ...], ...]
    """A row for each criterion, in it a cell for each member."""


def rubric_grid(rollouts: Sequence[Rollout]) -> RubricGrid | None:
    """What a rubric found in each of these; None where none of them was graded by one."""
    known: dict[str, RubricCriterion] = {}
    for rollout in rollouts:
        for criterion, _ in rubric_scores(rollout):
            if criterion.name not in known and len(known) < _MAX_CRITERIA:
                known[criterion.name] = criterion
    if not known:
        return None
    found = [_cells(rollout, known) for rollout in rollouts]
    return RubricGrid(
        tuple(known.values()),
        tuple(rollout.id for rollout in rollouts),
        tuple(tuple(cells[name] for cells in found) for name in known),
    )


def rubric_scores(rollout: Rollout) -> list[tuple[RubricCriterion, RubricCell]]:
    """The criteria by which a rollout was graded, and what was found of each; empty where there are none."""
    if rollout.grade is None or not isinstance(about := rollout.grade.extra.get("criteria"), list):
        return []
    words = _words(rollout)
    numbers = rollout.grade.reward_data
    kept_names = {hash_text(name): name for name in numbers}
    told: list[tuple[RubricCriterion, RubricCell]] = []
    for one in about:
        if not isinstance(one, Mapping) or not isinstance(name := one.get("name"), str):
            continue
        name = kept_names.get(name, name)  # a run that keeps no text still keeps the names of its numbers
        text = one.get("text")
        criterion = RubricCriterion(name, as_float(one.get("weight")), text if isinstance(text, str) else None)
        value = as_float(numbers.get(name, one.get("score")))
        told.append((criterion, RubricCell(value, words.get(name, words.get(hash_text(name))))))
    return told


def _cells(rollout: Rollout, known: Mapping[str, Any]) -> dict[str, RubricCell]:
    """Its cell for each criterion; where grading failed there are words at most."""
    words = _words(rollout)
    cells = {name: RubricCell(None, words.get(name)) for name in known}
    return cells | {criterion.name: cell for criterion, cell in rubric_scores(rollout) if criterion.name in known}


def _words(rollout: Rollout) -> dict[str, str]:
    """By criterion, what a grader said about it last."""
    return dict(_said(rollout))


def _said(rollout: Rollout) -> Iterator[tuple[str, str]]:
    for call in rollout.calls:
        if call.about is not None and call.reply is not None and call.step is None:
            yield call.about, call.reply.content[:_MAX_WORDS]
