"""The groups that a job plays, iteration by iteration."""

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.tasks import Tasks, iterate_groups
from rolltrace.jobs.plan import Plan
from rolltrace.rollout.contract import validate_builder


class IterationGroups(NamedTuple):
    """The groups of one iteration."""

    iteration: int
    builders: Iterable[EnvGroupBuilder]
    finished: frozenset[str] = frozenset()
    """The names of those that are not to be played again."""


def groups_of_iteration(tasks: Tasks, plan: Plan, iteration: int) -> IterationGroups:
    """All groups of an iteration, made when they are drawn."""
    groups = iterate_groups(tasks, iteration=iteration, groups=plan.groups, episodes=plan.group_size, seed=plan.seed)
    return IterationGroups(iteration, groups)


async def all_iterations(tasks: Tasks, plan: Plan) -> list[IterationGroups]:
    """All rounds of a plan. The first group is made now, so that a task that cannot be made leaves no run behind."""
    first, *others = (groups_of_iteration(tasks, plan, iteration) for iteration in range(plan.iterations))
    groups = iter(first.builders)
    builder = await asyncio.to_thread(next, groups) if tasks.build_in_thread else next(groups)
    validate_builder(builder)
    return [first._replace(builders=itertools.chain([builder], groups)), *others]
