"""What a grader is: of one rollout, or of a whole group at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.rollout import Grade, Rollout


class Grader(ABC):
    """Scores a finished rollout. Picklable, because builders hold it."""

    @abstractmethod
    async def grade(self, rollout: Rollout) -> Grade:
        """The grade that is added to the rollout's step rewards. Raising makes the rollout a recorded failure."""


class GroupGrade(msgspec.Struct, frozen=True):
    """What a group's grader says: of each member, and of the group as a whole."""

    grades: Mapping[str, Grade | Exception]
    """By rollout id. An exception says that this member could not be graded, and why; the others keep their grades."""
    reward_data: Mapping[str, Any] = {}
    """Numbers about the group."""
    extra: Mapping[str, Any] = {}
    """What else there is to say of the group, such as the matrix of a tournament."""


Grades = Mapping[str, Grade | Exception] | GroupGrade
"""Grades by rollout id, with or without something about the group."""


class GroupGrader(ABC):
    """Scores the rollouts of a group together. Picklable, because builders hold it."""

    @abstractmethod
    async def grade_group(self, rollouts: Sequence[Rollout]) -> Grades:
        """Grades by rollout id, each added to its rollout's reward. It sees failed members, and need not grade them."""
