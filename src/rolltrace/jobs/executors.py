"""Where groups are played: in this process, or in worker processes of this machine."""

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.jobs.plan import make_runner
from rolltrace.jobs.workers.group_worker import WorkerSetup
from rolltrace.jobs.workers.local_worker import LocalWorker
from rolltrace.jobs.workers.worker_executor import WorkerExecutor, pickle_for_worker, split_concurrency
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
    """The number of worker processes; None: this process plays."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"Expected workers of 1 or more, got {self.workers}.")

    def check(
        self,
        concurrency: int,
        policies: Mapping[str, str | Policy],
        recording: Recording,
        builder: EnvGroupBuilder | None,
    ) -> None:
        """Raise `InputError` for what cannot be sent to workers, before a run exists. `policies` are by role."""
        if self.workers is None:
            return
        split_concurrency(concurrency, self.workers)
        for role, spec in policies.items():
            if isinstance(spec, str) and _HUMAN.match(spec):
                raise InputError(f"Expected a {role} without a person for workers, got {spec}: play without workers.")
            pickle_for_worker(spec, f"the {role}")
        pickle_for_worker(recording, "the redaction function")
        if builder is not None:
            pickle_for_worker(builder, f"the group builder {type(builder).__qualname__}")

    @contextlib.asynccontextmanager
    async def open(self, setup: WorkerSetup, roles: Roles) -> AsyncIterator[Executor]:
        """Open the executor, and close its workers at the end. Workers make their own policies from the setup."""
        if self.workers is None:
            yield make_runner(setup.plan, roles.policy, roles.others, setup.writer)
            return
        executor = WorkerExecutor(LocalWorker, setup, self.workers, roles)
        try:
            executor.start()
            yield executor
        finally:
            await executor.close()
