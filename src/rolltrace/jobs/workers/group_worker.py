"""Plays groups inside a worker: many at once, recorded in a session of its own."""

import asyncio
import contextlib
import pickle
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError, RolltraceError
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import Plan, make_runner
from rolltrace.jobs.workers.reports import Closed, Ended, Event, Failed, GroupReport, Recorded, Started, failed
from rolltrace.policies.llama.llama_server import SERVERS
from rolltrace.policies.policy import Policy
from rolltrace.policies.policy_specs import close_policy
from rolltrace.store.object_address import is_address
from rolltrace.store.reader import RunReader
from rolltrace.store.writer import RunWriter
from rolltrace.trace.score import GroupKey

_FLUSH_SECONDS = 0.05
"""The least time between two flushes, so that groups that end together are flushed together."""
_UPLOAD_SECONDS = 1.0
"""The same for a run in an object store, where each flush makes requests."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to play; it is pickled."""

    writer: RunWriter
    """Unpickles as the worker's own writer, with a session of the same job."""
    policy: str | Policy
    roles: Mapping[str, str | Policy]
    plan: Plan
    """With the worker's part of the concurrency."""
    return_rollouts: bool = False
    """Whether the reports of groups have the rollouts."""


class SentGroup(NamedTuple):
    """A group as it is sent to a worker."""

    number: int
    """Which group of the play."""
    builder: EnvGroupBuilder
    key: GroupKey


class GroupWorker:
    """Plays the groups that it gets, and emits what happens. All methods are for the thread of its event loop."""

    def __init__(self, setup: WorkerSetup, emit: Callable[[Event], None]) -> None:
        self.writer = setup.writer
        self.writer.is_unpickled = False  # so that closing closes it
        self._emit = emit
        self._setup = setup
        SERVERS.share(self.writer.job)  # one server of the embedded model for all workers of this machine
        policy = open_policy(setup.policy)
        self.runner = make_runner(
            setup.plan, policy, {role: open_policy(spec) for role, spec in setup.roles.items()}, self.writer
        )
        self._waiting: deque[SentGroup] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rollouts = 0
        """Rollouts being played."""
        self._unrecorded: dict[int, GroupReport] = {}
        """Groups that have ended since the last flush."""
        self._must_flush = asyncio.Event()
        self._closing = asyncio.Event()
        self._flush_thread = ThreadPoolExecutor(1, "rolltrace-flush")  # not one of those that envs use

    async def run(self) -> None:
        """Play until `close` is called, or until this is cancelled; then close the session."""
        flushing = asyncio.create_task(self._flush_when_needed())
        try:
            self._require_same_run()
            await self._flush()  # so that the job of this session is known even if this process is killed
            self._emit(Started(self.writer.session))
            with raised_gc_threshold():
                await self._closing.wait()
        finally:
            await _cancel(self._tasks)
            await _cancel({flushing})
            with contextlib.suppress(Exception):
                await self._close_policies()
            SERVERS.stop_sharing()
            self.writer.close_always()
            self._flush_thread.shutdown(wait=False)
            self._emit(Closed(self.writer.ledger, sorted(self.runner.roles.used)))

    def add(self, pickled: bytes) -> None:
        """Play a group as soon as there is room."""
        try:
            group = pickle.loads(pickled)  # noqa: S301 - from the process that plays
        except Exception as error:  # noqa: BLE001 - any exception of a class that cannot be imported here
            self._emit(Failed(InputError.__name__, f"A worker cannot load a group: {type(error).__name__}: {error}"))
            return
        self._waiting.append(group)
        self._start_waiting()

    def continue_session(self, session: str) -> None:
        """Replace what a worker that has died recorded, where this one plays the same groups."""
        self.writer.continue_session(session)
        self._must_flush.set()

    def close(self) -> None:
        """End `run`. Groups in flight are cancelled."""
        self._closing.set()

    def _start_waiting(self) -> None:
        while self._waiting and (self._rollouts < self.runner.concurrency or not self._tasks):
            group = self._waiting.popleft()
            self._rollouts += group.builder.episodes * group.builder.seats
            task = asyncio.create_task(self._play(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _episode_ended(self, seats: int) -> None:
        self._rollouts -= seats
        self._start_waiting()

    async def _play(self, group: SentGroup) -> None:
        try:
            result = await self.runner.play_group(group.builder, group.key, self._episode_ended)
            report = GroupReport.of(result, with_rollouts=self._setup.return_rollouts)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise  # this process ends
        except BaseException as error:  # noqa: BLE001 - the process that plays raises it
            self._emit(failed(error))
            return
        self._unrecorded[group.number] = report
        self._must_flush.set()
        self._emit(Ended(group.number))
        asyncio.get_running_loop().call_soon(self._start_waiting)  # when this task is done

    async def _flush_when_needed(self) -> None:
        pause = _UPLOAD_SECONDS if is_address(self.writer.path) else _FLUSH_SECONDS
        while await self._must_flush.wait():
            self._must_flush.clear()
            reports, self._unrecorded = self._unrecorded, {}
            await self._flush()
            if reports:
                self._emit(Recorded(reports))
            await asyncio.sleep(pause)

    async def _flush(self) -> None:
        if self.writer.records:
            await asyncio.get_running_loop().run_in_executor(self._flush_thread, self.writer.flush)

    def _require_same_run(self) -> None:
        """Raise `InputError` if this machine does not see the run's directory: the file system is not shared."""
        path = self.writer.path
        try:
            run = RunReader(path).info.id
        except RolltraceError as error:
            raise InputError(f"A worker cannot read the run at {path}; every machine has to see it: {error}") from error
        if run != self.writer.run:
            raise InputError(f"A worker found another run at {path}: every machine has to see the same directory.")

    async def _close_policies(self) -> None:
        roles = self.runner.roles
        if isinstance(self._setup.policy, str):
            await close_policy(roles.policy)
        for role, spec in self._setup.roles.items():
            if isinstance(spec, str):
                await close_policy(roles.others[role])


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tuple(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
