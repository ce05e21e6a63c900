"""The groups that a job plays, iteration by iteration."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.tasks import Tasks, walk
from rolltrace.jobs.plan import Plan
from rolltrace.rollout.contract import check_builder


class Round(NamedTuple):
    """The groups of one iteration."""

    iteration: int
    builders: Iterable[EnvGroupBuilder]
    finished: frozenset[str] = frozenset()
    """The names of those that are not to be played again."""


def round_of(tasks: Tasks, plan: Plan, iteration: int) -> Round:
    """All groups of an iteration, made when they are drawn."""
    groups = walk(tasks, iteration=iteration, groups=plan.groups, episodes=plan.group_size, seed=plan.seed)
    return Round(iteration, groups)


async def rounds_of(tasks: Tasks, plan: Plan) -> list[Round]:
    """All rounds of a plan. The first group is made now, so that a task that cannot be made leaves no run behind."""
    first, *others = (round_of(tasks, plan, iteration) for iteration in range(plan.iterations))
    groups = iter(first.builders)
    builder = await asyncio.to_thread(next, groups) if tasks.builds_slowly else next(groups)
    check_builder(builder)
    return [first._replace(builders=itertools.chain([builder], groups)), *others]
