"""How much to play and how: as arguments, and as a run's config holds it."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.strategies import FailFast, KeepViable, Strategy
from rolltrace.trace.message import Sampling, decode_hook

CONCURRENCY = 64
_COUNTS = ("groups", "group_size", "iterations", "seed", "concurrency", "retries")
_STRATEGIES: dict[str, type[Strategy]] = {kind.__name__: kind for kind in (FailFast, KeepViable)}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to play, and how; the run's config holds it."""

    groups: int = 1
    """Groups in each iteration."""
    group_size: int = 4
    """Episodes in each group."""
    iterations: int = 1
    seed: int = 0
    concurrency: int = CONCURRENCY
    """Policy requests in flight."""
    limits: Limits = Limits()
    strategy: Strategy = KeepViable()
    retries: int = 0
    """How often an episode is played again after the policy or the environment failed."""
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
        """How many episodes the run is to have."""
        return self.groups * self.group_size * self.iterations

    def as_config(self) -> dict[str, Any]:
        """The plan as a run's config holds it."""
        return {**msgspec.structs.asdict(self), "strategy": describe_strategy(self.strategy)}


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
    """The plan that a run's config holds; a `KeyError`, `ValueError` or `TypeError` says that it holds none."""
    counts = {name: msgspec.convert(config[name], int) for name in _COUNTS}
    strategy = dict(config["strategy"])
    return Plan(
        **counts,
        limits=msgspec.convert(config["limits"], Limits),
        strategy=_STRATEGIES[strategy.pop("name")](**strategy),
        split=msgspec.convert(config["split"], str),
        sampling=msgspec.convert(config["sampling"], Sampling, dec_hook=decode_hook),
    )


def as_sampling(settings: Mapping[str, Any]) -> Sampling:
    """Settings, perhaps as text from a command line, as they are recorded."""
    sampling: Sampling = call_with_arguments(Sampling, settings, "sampling")
    for name, least in (("temperature", 0), ("top_p", 0), ("min_p", 0), ("top_k", 0), ("max_tokens", 1)):
        value = getattr(sampling, name)
        if value is not None and not least <= value < math.inf:
            raise InputError(f"Expected {name} of {least} or more in sampling, got {value}.")
    return sampling


def describe_strategy(strategy: Strategy) -> dict[str, Any]:
    """A strategy as plain data, with its name."""
    return {"name": type(strategy).__name__, **msgspec.structs.asdict(strategy)}
