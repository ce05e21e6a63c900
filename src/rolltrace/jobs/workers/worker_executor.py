"""Plays groups in workers: sends each group to a worker with room, and plays the groups of a lost worker again."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable

import msgspec

from rolltrace import errors
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError, RolltraceError, WorkerError
from rolltrace.jobs.workers.group_worker import SentGroup, WorkerSetup
from rolltrace.jobs.workers.interface import Worker, Workers, pickle_for_worker
from rolltrace.jobs.workers.reports import Closed, Ended, Event, Failed, GroupReport, Recorded, Started
from rolltrace.policies.roles import Roles
from rolltrace.rollout.contract import validate_builder
from rolltrace.rollout.runner import EXHAUSTED, GroupNames, Runner, async_next
from rolltrace.store.ledger import Ledger, sum_ledgers
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.rollout import Header
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer

log = logging.getLogger(__name__)

MAX_DEATHS = 3
"""How many workers may die while they play a group before the group is recorded as failed."""
_MAX_SHARED_DEATHS = 2
"""After so many deaths a group is played alone in its worker, so that no other group can be the cause."""
_QUEUED_FRACTION = 0.25
"""How many rollouts wait in a worker, as a fraction of those that it plays, so that it is never idle."""
_START_SECONDS = 10.0
"""How long to wait for the other workers when one has started."""
_CLOSE_SECONDS = 60.0
_CANCEL_SECONDS = 10.0
"""How long workers may take to close, and to cancel and close, before they are killed."""
_END_SECONDS = 1.5
_ENDED_BY_ENV = "was ended by an env, for example with KeyboardInterrupt"


class _Group:
    """A group that has not been recorded yet."""

    def __init__(self, number: int, builder: EnvGroupBuilder, key: GroupKey) -> None:
        self.number = number
        self.builder = builder
        self.key = key
        self.rollouts = builder.episodes * builder.seats
        self.deaths = 0
        """How many workers have died while they played it."""

    @property
    def header(self) -> Header:
        """For the observers of the writer, which follow the iterations: the group as one rollout."""
        return Header(
            id=str(self.number), run="", session="", split=self.key.split, iteration=self.key.iteration,
            env=self.key.env, task=self.builder.task, group=self.key.group, index=0, policy="", started_at=utc_now(),
        )  # fmt: skip


class _WorkerState:
    """A worker, and the groups that it has."""

    def __init__(self, concurrency: int, failed_starts: int = 0) -> None:
        self.worker: Worker | None = None
        self.failed_starts = failed_starts
        """How many workers before this one, which it replaces, died before they had started."""
        self.concurrency = concurrency
        self.session: str | None = None
        """Its session, when it has started."""
        self.played: dict[int, _Group] = {}
        """Groups that have not ended, by number."""
        self.ended: dict[int, _Group] = {}
        """Groups that have ended and may not be on disk."""
        self.rollouts = 0
        self.is_closed = False
        self.was_ended_by_env = False
        """Whether it closed its session although this process did not ask for it."""

    def has_room_for(self, group: _Group | None) -> bool:
        """Whether to send it a group, or with None the next new one."""
        if self.session is None:
            return False
        if not self.played and not self.ended:
            return True
        if group is not None and group.deaths >= _MAX_SHARED_DEATHS:
            return False
        groups = (*self.played.values(), *self.ended.values())
        is_shared = all(other.deaths < _MAX_SHARED_DEATHS for other in groups)
        return is_shared and self.rollouts < self.concurrency * (1 + _QUEUED_FRACTION)


class WorkerExecutor:
    """Plays groups in workers, which stay alive between iterations.

    A worker that dies is replaced. Every session of the job then states that it continues the lost session, so the
    groups that are played again supersede what the lost worker left of them.
    """

    def __init__(self, kind: Workers, setup: WorkerSetup, number: int, roles: Roles) -> None:
        self.roles = roles
        """The policy of each role, and which roles were used; complete when the executor is closed."""
        self.workers_lost = 0
        self.groups_replayed = 0
        """Groups that were played again because their worker was lost."""
        self._kind = kind
        self._setup = setup
        self._writer = setup.writer
        self._workers = [_WorkerState(share) for share in split_concurrency(setup.plan.concurrency, number)]
        self._groups = 0
        self._replays: deque[_Group] = deque()
        self._finished: deque[GroupReport] = deque()
        self._changed = asyncio.Event()
        self._error: RolltraceError | None = None
        self._is_closing = False
        self._ledgers: list[Ledger] = []
        """Of workers that have closed their session."""
        self._lost: set[str] = set()

    def start(self) -> None:
        """Start the workers. Raises `InputError` if something cannot be pickled."""
        for state in self._workers:
            self._start(state)

    async def play(
        self,
        builders: Iterable[EnvGroupBuilder] | AsyncIterable[EnvGroupBuilder],
        *,
        iteration: int = 0,
        split: str = "train",
        finished: Collection[str] = (),
    ) -> AsyncGenerator[GroupReport, None]:
        """Play groups and yield the report of each when it is on disk; see `Runner.play`."""
        draw = _draw_groups(builders, split, iteration, finished)
        is_exhausted = is_done = False
        try:
            if not self._groups:
                await self._wait_for_start()
            while True:
                while not is_exhausted and not self._replays and (state := self._state_with_room(None)) is not None:
                    drawn = await draw()
                    is_exhausted = drawn is None
                    if drawn is not None:
                        self._send(state, self._new_group(*drawn))
                self._send_replays()
                while self._finished:
                    yield self._finished.popleft()
                if is_exhausted and not self._replays and not any(one.played or one.ended for one in self._workers):
                    is_done = not self._finished
                    if is_done:
                        return
                    continue
                await self._wait()
        finally:
            if not is_done:
                await self._stop(lambda worker: worker.cancel(), _CANCEL_SECONDS)

    def record_cancelled(self) -> None:
        """Make every worker record its rollouts in flight as cancelled, and end. Any thread may call it."""
        workers = [one.worker for one in self._workers if one.worker is not None and not one.is_closed]
        for worker in workers:
            worker.end()
        deadline = time.monotonic() + _END_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    async def close(self) -> None:
        """Close the sessions of the workers, and end them."""
        await self._stop(lambda worker: worker.request("close"), _CLOSE_SECONDS)
        for session, ledger in RunReader(self._writer.path).ledgers().items():
            if ledger.job == self._writer.session and not ledger.closed and session not in self._lost:
                self._lose_session(session)

    def ledger(self) -> Ledger:
        """The counts of all sessions together; what a lost worker had in flight is not counted, it was played again."""
        recorded = RunReader(self._writer.path).ledgers() if self._lost else {}
        lost = [_settled(ledger) for session, ledger in recorded.items() if session in self._lost]
        return sum_ledgers([self._writer.ledger, *self._ledgers, *lost])

    # Sending

    def _start(self, state: _WorkerState) -> None:
        plan = msgspec.structs.replace(self._setup.plan, concurrency=state.concurrency)
        setup = dataclasses.replace(self._setup, plan=plan)
        data = pickle_for_worker(self._kind, setup, "the policies")
        state.worker = self._kind.start(data, lambda _, event: self._handle(state, event))

    def _new_group(self, builder: EnvGroupBuilder, key: GroupKey) -> _Group:
        self._groups += 1
        group = _Group(self._groups, builder, key)
        for observer in self._writer.observers:
            observer.rollout_began(group.header)
        return group

    def _state_with_room(self, group: _Group | None) -> _WorkerState | None:
        """The worker with the smallest load, if it has room."""
        free = [one for one in self._workers if one.has_room_for(group)]
        return min(free, key=lambda one: one.rollouts / one.concurrency, default=None)

    def _send_replays(self) -> None:
        while self._replays and (state := self._state_with_room(self._replays[0])) is not None:
            self._send(state, self._replays.popleft())

    def _send(self, state: _WorkerState, group: _Group) -> None:
        what = f"the group builder of {group.key.env}, {type(group.builder).__qualname__},"
        data = pickle_for_worker(self._kind, SentGroup(group.number, group.builder, group.key), what)
        state.played[group.number] = group
        state.rollouts += group.rollouts
        assert state.worker is not None  # noqa: S101 - it has started
        state.worker.request("add", data)

    # Events

    async def _wait_for_start(self) -> None:
        """Wait until all workers have started, so that the first one does not get all groups; but not long."""
        while not any(one.session for one in self._workers):
            await self._wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while not all(one.session or one.is_closed for one in self._workers):
                    await self._wait()

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error

    def _handle(self, state: _WorkerState, event: Event | None) -> None:
        """Handle an event of a worker."""
        self._changed.set()
        match event:
            case Started(session):
                state.session = session
                for lost in self._lost:  # since it was started
                    self._tell_lost(state, lost)
            case Ended(number):
                group = state.ended[number] = state.played.pop(number)
                state.rollouts -= group.rollouts
            case Recorded(reports):
                for number, report in reports.items():
                    self._finish(state.ended.pop(number), report)
            case Failed(kind, message):
                self._error = self._error or _error_of(kind, message)
            case Closed(ledger, used_roles):
                self.roles.used.update(used_roles)
                if self._is_closing:
                    state.is_closed = True
                    self._ledgers.append(ledger)
                else:
                    state.was_ended_by_env = True
            case None if not state.is_closed:
                self._handle_death(state)

    def _finish(self, group: _Group, report: GroupReport) -> None:
        self._finished.append(report)
        for observer in self._writer.observers:
            observer.rollout_ended(group.header)

    def _handle_death(self, state: _WorkerState) -> None:
        state.is_closed = True
        if self._is_closing or self._error is not None:
            return
        assert state.worker is not None  # noqa: S101 - it has started
        why = _ENDED_BY_ENV if state.was_ended_by_env else state.worker.why_lost()
        failed_starts = 0
        if state.session is not None:
            self.workers_lost += 1
            self._lose_session(state.session)
        elif (failed_starts := state.failed_starts + 1) == MAX_DEATHS:
            self._give_up(why)
            return
        lost = [*state.played.values(), *state.ended.values()]
        log.warning("A worker %s; %d groups are played again.", why, len(lost))
        for group in lost:  # also those that have ended: what a group leaves behind may end its worker
            group.deaths += 1
            if group.deaths < MAX_DEATHS:
                self.groups_replayed += 1
                self._replays.append(group)
            else:
                self._record_failure(group, why)
        self._workers[self._workers.index(state)] = replacement = _WorkerState(state.concurrency, failed_starts)
        self._start(replacement)

    def _give_up(self, why: str) -> None:
        """Do not replace a worker that could not start, nor those before it; it is an error if no other is left."""
        message = f"{MAX_DEATHS} workers could not start; the last one {why}."
        if all(one.is_closed for one in self._workers):
            self._error = WorkerError(message)
        else:
            log.warning("%s The others play without it.", message)

    def _lose_session(self, session: str) -> None:
        self._lost.add(session)
        self._writer.continue_session(session)
        for other in self._workers:
            if other.session is not None and other.session != session:
                self._tell_lost(other, session)

    def _tell_lost(self, state: _WorkerState, session: str) -> None:
        if state.worker is not None and not state.is_closed:
            state.worker.request("continue_session", session)

    def _record_failure(self, group: _Group, why: str) -> None:
        plan = self._setup.plan
        runner = Runner(
            self.roles.policy, roles=self.roles.others, sink=self._writer, limits=plan.limits, strategy=plan.strategy
        )
        message = f"{group.deaths} workers died while they played this group; the last one {why}"
        failure = Failure(Layer.RUNNER, WorkerError.__name__, message)
        result = runner.record_failed_group(group.builder, group.key, failure)
        self._finish(group, GroupReport.of(result, with_rollouts=self._setup.return_rollouts))

    # The end

    async def _stop(self, ask: Callable[[Worker], None], seconds: float) -> None:
        """Ask each worker to close, wait for it, and kill those that do not close in time."""
        self._is_closing = True
        for state in self._workers:
            if state.worker is not None and state.session is None:  # it starts, or waits for room in the cluster
                state.worker.kill()
                state.is_closed = True
        open_workers = [one for one in self._workers if one.worker is not None and not one.is_closed]
        for state in open_workers:
            assert state.worker is not None  # noqa: S101 - see above
            ask(state.worker)
        try:
            async with asyncio.timeout(seconds):
                while not all(one.is_closed for one in open_workers):
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            log.warning("A worker did not close within %.0f s, and was killed.", seconds)
        finally:
            for state in open_workers:
                if state.worker is not None and not state.is_closed:
                    state.worker.kill()


def _draw_groups(
    builders: Iterable[EnvGroupBuilder] | AsyncIterable[EnvGroupBuilder],
    split: str,
    iteration: int,
    finished: Collection[str],
) -> Callable[[], Awaitable[tuple[EnvGroupBuilder, GroupKey] | None]]:
    """An async function that returns the next group to play and its key, or None."""
    names = GroupNames()
    next_builder = async_next(builders)

    async def draw() -> tuple[EnvGroupBuilder, GroupKey] | None:
        while (builder := await next_builder()) is not EXHAUSTED:
            validate_builder(builder)
            name = names.name(builder.task)
            if name not in finished:
                return builder, GroupKey(split, iteration, builder.env, name)
        return None

    return draw


def split_concurrency(concurrency: int, workers: int) -> list[int]:
    """The concurrency of each worker. Raises `InputError` if a worker would have none."""
    if workers > concurrency:
        raise InputError(
            f"Expected a concurrency of at least the number of workers, {workers}, got {concurrency}: it is the total "
            "over all workers."
        )
    share, rest = divmod(concurrency, workers)
    return [share + (number < rest) for number in range(workers)]


def _error_of(kind: str, message: str) -> RolltraceError:
    """The error that a worker reported: one of ours as it was, any other as a `WorkerError`."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, RolltraceError):
        return known(message)
    return WorkerError(f"{kind}: {message}")


def _settled(ledger: Ledger) -> Ledger:
    """The ledger of a lost worker without what it had in flight."""
    return msgspec.structs.replace(ledger, dispatched=ledger.dispatched - ledger.in_flight, in_flight=0, closed=True)
