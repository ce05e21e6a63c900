"""What a grader is."""

from abc import ABC, abstractmethod

from rolltrace.trace.rollout import Grade, Rollout


class Grader(ABC):
    """Scores a finished rollout. Picklable, because builders hold it."""

    @abstractmethod
    async def grade(self, rollout: Rollout) -> Grade:
        """The grade that is added to the rollout's step rewards. Raising makes the rollout a recorded failure."""
