"""Where groups are played: in this process, in worker processes of this machine, or in a Ray cluster."""

import contextlib
import multiprocessing
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError, PolicyError
from rolltrace.jobs.plan import make_runner
from rolltrace.jobs.workers.group_worker import WorkerSetup
from rolltrace.jobs.workers.interface import Workers, pickle_for_worker
from rolltrace.jobs.workers.local_worker import LocalWorkers
from rolltrace.jobs.workers.ray_worker import RayWorkers, connected, default_workers, require_ray
from rolltrace.jobs.workers.worker_executor import WorkerExecutor, split_concurrency
from rolltrace.policies.llama.llama_server import SERVERS
from rolltrace.policies.llama.server_settings import ServerSettings
from rolltrace.policies.policy import Policy
from rolltrace.policies.roles import Roles
from rolltrace.store.recording import Recording

_MODEL_SECONDS = 1.0
"""How often to look whether the servers of embedded models run."""
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
    return_rollouts: bool = False
    """Whether workers send the rollouts back, too."""

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
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
            raise InputError(
                "Expected play(workers=…) inside `if __name__ == '__main__':`, because workers import the program."
            )
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
        with contextlib.nullcontext() if self.ray else _served_models(setup.writer.session, roles):
            try:
                executor.start()
                yield executor
            finally:
                await executor.close()

    def _kind(self) -> Workers:
        return RayWorkers(self.ray_options) if self.ray else LocalWorkers()


@contextlib.contextmanager
def _served_models(job: str, roles: Roles) -> Iterator[None]:
    """Serve the embedded models to the workers of this machine, and start one again that has ended.

    This process does it, because it outlives every worker. In a Ray cluster, a worker of each node does.
    """
    policies = (roles.policy, *roles.others.values())
    models = [settings for one in policies if isinstance(settings := getattr(one, "settings", None), ServerSettings)]
    if not models:
        yield
        return
    SERVERS.share(job)
    is_over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(PolicyError):  # the workers try themselves, and record the error
            while not is_over.is_set():
                for settings in models:
                    SERVERS.get(settings).result()
                is_over.wait(_MODEL_SECONDS)

    threading.Thread(target=serve, name="rolltrace-models", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        SERVERS.stop_sharing()
