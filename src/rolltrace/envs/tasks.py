"""The tasks of an environment, by number, and the order in which a run walks them."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.seeds import derive_seed


class Tasks(ABC):
    """What an environment's name stands for once its arguments are known: a source of env group builders."""

    env: str
    """The environment's name."""
    count: int | None = None
    """How many tasks there are; None where they are generated without end."""

    @abstractmethod
    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number` in so many episodes. Generated tasks also depend on the seed."""


def walk(tasks: Tasks, *, iteration: int, groups: int, episodes: int, seed: int) -> Iterator[EnvGroupBuilder]:
    """The groups of one iteration: every task comes once before any comes again, in an order drawn from the seed."""
    for place in range(iteration * groups, (iteration + 1) * groups):
        yield tasks.builder(_number(tasks.count, place, seed), episodes=episodes, seed=seed)


def _number(count: int | None, place: int, seed: int) -> int:
    if count is None:
        return place
    lap, offset = divmod(place, count)
    order = list(range(count))
    random.Random(derive_seed("task order", seed, lap)).shuffle(order)  # noqa: S311 - not for secrets
    return order[offset]
