"""The plan of a run: how much to play, with which settings, and the groups of each iteration."""

import asyncio
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

import msgspec

from rolltrace.arguments import call_with_arguments
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.tasks import Tasks, iterate_groups
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.rollout.contract import validate_builder
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.rollout.strategies import KeepViable, Strategy
from rolltrace.trace.message import Sampling, decode_hook
from rolltrace.trace.sink import Sink


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to play, and with which settings. It is stored in the run's config."""

    groups: int = 1
    """Groups in each iteration."""
    group_size: int = 4
    """Episodes in each group."""
    iterations: int = 1
    seed: int = 0
    concurrency: int = 64
    """Policy requests in flight, in total over all workers."""
    limits: Limits = Limits()
    strategy: Strategy = KeepViable()
    retries: int = 0
    """How often an episode is retried after a failure of the policy or the environment."""
    split: str = "train"
    """The split that the rollouts are recorded under."""
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "iterations", "concurrency"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of 1 or more, got {getattr(self, name)}.")
        if self.retries < 0:
            raise InputError(f"Expected retries of 0 or more, got {self.retries}.")
        if not self.split:
            raise InputError("Expected the name of a split, such as train or test, got an empty one.")

    @property
    def planned_episodes(self) -> int:
        """The number of episodes in the finished run."""
        return self.groups * self.group_size * self.iterations


def make_runner(plan: Plan, policy: Policy, roles: Mapping[str, Policy], sink: Sink) -> Runner:
    """A runner with the settings of a plan."""
    return Runner(
        policy,
        roles=roles,
        sink=sink,
        limits=plan.limits,
        strategy=plan.strategy,
        retries=plan.retries,
        sampling=plan.sampling,
        concurrency=plan.concurrency,
        seed=plan.seed,
    )


class PlanFields(TypedDict, total=False):
    """The fields of `Plan`, as arguments."""

    groups: int
    group_size: int
    iterations: int
    seed: int
    concurrency: int
    limits: Limits
    strategy: Strategy
    retries: int
    split: str
    sampling: Sampling


def plan_from_config(config: Mapping[str, Any]) -> Plan:
    """Read the plan from a run's config. Raises `ValueError` if a setting is wrong."""
    return msgspec.convert(config, Plan, dec_hook=decode_hook)


def as_sampling(settings: Mapping[str, Any]) -> Sampling:
    """Convert settings, which may be text from a command line, to `Sampling`."""
    sampling: Sampling = call_with_arguments(Sampling, settings, "sampling")
    for name, minimum in (("temperature", 0), ("top_p", 0), ("min_p", 0), ("top_k", 0), ("max_tokens", 1)):
        value = getattr(sampling, name)
        if value is not None and not minimum <= value < math.inf:
            raise InputError(f"Expected {name} of {minimum} or more in sampling, got {value}.")
    return sampling


class IterationGroups(NamedTuple):
    """The groups of one iteration."""

    iteration: int
    builders: Iterable[EnvGroupBuilder]
    finished: frozenset[str] = frozenset()
    """The names of the groups that are finished and not played again."""


def groups_of_iteration(tasks: Tasks, plan: Plan, iteration: int) -> IterationGroups:
    """All groups of an iteration. Each builder is made when it is drawn."""
    groups = iterate_groups(tasks, iteration=iteration, groups=plan.groups, episodes=plan.group_size, seed=plan.seed)
    return IterationGroups(iteration, groups)


async def all_iterations(tasks: Tasks, plan: Plan) -> list[IterationGroups]:
    """All iterations of a plan. The first builder is made now, so that its error is raised before a run exists."""
    first, *others = (groups_of_iteration(tasks, plan, iteration) for iteration in range(plan.iterations))
    groups = iter(first.builders)
    builder = await asyncio.to_thread(next, groups) if tasks.build_in_thread else next(groups)
    validate_builder(builder)
    return [first._replace(builders=itertools.chain([builder], groups)), *others]
