"""Where groups are played: in this process, in worker processes of this machine, or in a Ray cluster."""

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.jobs.plan import make_runner
from rolltrace.jobs.workers.group_worker import WorkerSetup
from rolltrace.jobs.workers.local_worker import LocalWorkers
from rolltrace.jobs.workers.ray_worker import RayWorkers, connected, default_workers, require_ray
from rolltrace.jobs.workers.worker_executor import (
    WorkerExecutor,
    Workers,
    pickle_for_worker,
    split_concurrency,
)
from rolltrace.policies.policy import Policy
from rolltrace.policies.roles import Roles
from rolltrace.store.recording import Recording

_HUMAN = re.compile(r"human(?![^:,])")


class Executor(Protocol):
    """Plays groups: a `Runner` in this process, or a `WorkerExecutor` in others."""

    @property
    def roles(self) -> Roles:
        """The policy of each role, and which roles were used."""
        ...

    def play(
        self,
        builders: Iterable[EnvGroupBuilder] | AsyncIterable[EnvGroupBuilder],
        *,
        iteration: int,
        split: str,
        finished: Collection[str],
    ) -> AsyncGenerator[Any, None]:
        """Play groups and yield each as it finishes, as a `GroupResult` or a `GroupReport`; see `Runner.play`."""
        ...

    def record_cancelled(self) -> None:
        """Record every rollout in flight as cancelled, without waiting for its env. Any thread may call it."""
        ...


class ExecutorSettings(msgspec.Struct, frozen=True):
    """Where to play."""

    workers: int | None = None
    """The number of workers; None: this process plays, or with Ray as many workers as the cluster has processors."""
    ray: bool | str | None = None
    """The address of a Ray cluster, or True for the one that Ray finds or starts; None or False: without Ray."""
    ray_options: Mapping[str, Any] = {}
    """Options of the actors, such as `num_cpus`."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"Expected workers of 1 or more, got {self.workers}.")
        if self.ray_options and not self.ray:
            raise InputError("Expected ray_options only with ray=.")
        if self.ray:
            require_ray()

    @property
    def uses_workers(self) -> bool:
        """Whether other processes play."""
        return bool(self.ray) or self.workers is not None

    def check(
        self,
        concurrency: int,
        policies: Mapping[str, str | Policy],
        recording: Recording,
        builder: EnvGroupBuilder,
    ) -> None:
        """Raise `InputError` for what cannot be sent to workers, before a run exists. `policies` are by role."""
        if self.workers is not None:
            split_concurrency(concurrency, self.workers)
        kind = self._kind()
        for role, spec in policies.items():
            if isinstance(spec, str) and _HUMAN.match(spec):
                raise InputError(f"Expected a {role} without a person for workers, got {spec}: play without workers.")
            pickle_for_worker(kind, spec, f"the {role}")
        pickle_for_worker(kind, recording, "the redaction function")
        pickle_for_worker(kind, builder, f"the group builder {type(builder).__qualname__}")

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the Ray cluster, if there is to be one."""
        with connected(self.ray if isinstance(self.ray, str) else None) if self.ray else contextlib.nullcontext():
            yield

    @contextlib.asynccontextmanager
    async def open(self, setup: WorkerSetup, roles: Roles) -> AsyncIterator[Executor]:
        """Open the executor, and close its workers at the end. Workers make their own policies from the setup."""
        if not self.uses_workers:
            yield make_runner(setup.plan, roles.policy, roles.others, setup.writer)
            return
        number = self.workers or min(setup.plan.concurrency, default_workers(self.ray_options))
        executor = WorkerExecutor(self._kind(), setup, number, roles)
        try:
            executor.start()
            yield executor
        finally:
            await executor.close()

    def _kind(self) -> Workers:
        return RayWorkers(self.ray_options) if self.ray else LocalWorkers()
