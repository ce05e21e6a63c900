"""The interfaces of graders: of one rollout, and of a whole group at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade


class Grader(ABC):
    """Scores a finished rollout. Picklable, because builders hold it."""

    @abstractmethod
    async def grade(self, rollout: Rollout) -> Grade:
        """The grade, which is added to the rollout's step rewards. If it raises, the rollout is recorded as failed."""


class GroupGrade(msgspec.Struct, frozen=True):
    """The grades of a group's members, and data about the group as a whole."""

    grades: Mapping[str, Grade | Exception]
    """By rollout id. An exception says why this member could not be graded; the others keep their grades."""
    reward_data: Mapping[str, Any] = {}
    """Numbers about the group."""
    extra: Mapping[str, Any] = {}
    """Other data about the group, such as the matrix of a tournament."""


Grades = Mapping[str, Grade | Exception] | GroupGrade
"""Grades by rollout id, with or without data about the group."""


class GroupGrader(ABC):
    """Scores the rollouts of a group together. Picklable, because builders hold it."""

    @abstractmethod
    async def grade_group(self, rollouts: Sequence[Rollout]) -> Grades:
        """Grades by rollout id, each added to its rollout's reward. It need not grade failed members."""
