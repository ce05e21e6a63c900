"""The tasks of an environment, and the order in which a run plays them."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import EnvError, InputError, RolltraceError
from rolltrace.seeds import derive_seed


class Tasks(ABC):
    """An environment with its arguments: makes an env group builder for each task."""

    env: str
    """The environment's name."""
    count: int | None = None
    """The number of tasks; None if they are generated without a limit."""
    build_in_thread: bool = False
    """Whether `builder` is slow and should be called in a thread."""

    @abstractmethod
    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The builder of task `number`. Generated tasks also depend on the seed."""


def iterate_groups(tasks: Tasks, *, iteration: int, groups: int, episodes: int, seed: int) -> Iterator[EnvGroupBuilder]:
    """The groups of one iteration: every task comes once before any comes again, in an order drawn from the seed."""
    for number in _numbers(tasks, iteration * groups, (iteration + 1) * groups, seed):
        yield make_builder(tasks, number, episodes=episodes, seed=seed)


def make_builder(tasks: Tasks, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
    """The builder of one task; an exception of `Tasks.builder` becomes an `EnvError` that names the task."""
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
