"""The tasks of an environment, by number, and the order in which a run walks them."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import EnvError, InputError, RolltraceError
from rolltrace.seeds import derive_seed


class Tasks(ABC):
    """What an environment's name stands for once its arguments are known: a source of env group builders."""

    env: str
    """The environment's name."""
    count: int | None = None
    """How many tasks there are; None where they are generated without end."""
    build_in_thread: bool = False
    """Whether making a builder takes so long that it is to be done in a thread, beside the groups that are played."""

    @abstractmethod
    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number` in so many episodes. Generated tasks also depend on the seed."""


def iterate_groups(tasks: Tasks, *, iteration: int, groups: int, episodes: int, seed: int) -> Iterator[EnvGroupBuilder]:
    """The groups of one iteration: every task comes once before any comes again, in an order drawn from the seed."""
    for number in _numbers(tasks, iteration * groups, (iteration + 1) * groups, seed):
        yield make_builder(tasks, number, episodes=episodes, seed=seed)


def make_builder(tasks: Tasks, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
    """The builder of one task; what `Tasks.builder` raises becomes an `EnvError` that names the task."""
    try:
        return tasks.builder(number, episodes=episodes, seed=seed)
    except RolltraceError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise EnvError(f"{type(tasks).__name__}.builder could not make task {number} of {tasks.env}: {what}") from error


def _numbers(tasks: Tasks, first: int, last: int, seed: int) -> Iterator[int]:
    if tasks.count is None:
        yield from range(first, last)
        return
    if tasks.count < 1:
        raise InputError(f"Expected {tasks.env} to have at least one task, it has {tasks.count}.")
    order_of: int | None = None
    order: list[int] = []
    for place in range(first, last):
        lap, offset = divmod(place, tasks.count)
        if lap != order_of:
            order_of, order = lap, list(range(tasks.count))
            random.Random(derive_seed("task order", seed, lap)).shuffle(order)  # noqa: S311 - not for secrets
        yield order[offset]
