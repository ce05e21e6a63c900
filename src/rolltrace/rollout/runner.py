"""Plays many groups concurrently and yields each as it finishes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.roles import Roles
from rolltrace.rollout.contract import validate_builder
from rolltrace.rollout.group_runner import GroupResult, GroupRunner
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.rollout_end import CANCELLED
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.rollout.strategies import KeepViable, Strategy
from rolltrace.trace.failure import Failure
from rolltrace.trace.freeform import clean_text
from rolltrace.trace.message import Sampling
from rolltrace.trace.score import GroupKey
from rolltrace.trace.sink import Sink

EXHAUSTED: Any = object()
"""What `async_next` returns after the last builder."""
_MAX_NAMED_ITERATIONS = 64
"""The number of iterations whose group names a runner remembers."""


class Runner:
    """Plays env groups with a policy, and writes a trace of every rollout to its sink.

    `roles` are the policies of an env's other roles, such as `grader`, `answerer` or `opponent`, and of the seats of a
    game, such as `seat1`. The policy itself plays all other roles.

    An episode in which the policy or the env failed is retried up to `retries` times, each time as a new episode with
    its own records. `strategy` says what a failure of the last attempt means to the group.

    Concurrency bounds the policy requests in flight. Groups are started while fewer rollouts than that are being
    played, and the seats of an episode always start together, so a low bound cannot deadlock a game.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        roles: Mapping[str, Policy] | None = None,
        sink: Sink,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        hooks: Hooks = Hooks(),  # noqa: B008 - frozen
        strategy: Strategy = KeepViable(),  # noqa: B008 - frozen
        retries: int = 0,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        concurrency: int = 64,
        seed: int = 0,
    ) -> None:
        if concurrency < 1:
            raise InputError(f"Expected a concurrency of 1 or more, got {concurrency}.")
        if retries < 0:
            raise InputError(f"Expected retries of 0 or more, got {retries}.")
        self.concurrency = concurrency
        self._settings = RunnerSettings(
            roles=Roles(policy, dict(roles or {})),
            sink=sink,
            limits=limits,
            hooks=hooks,
            strategy=strategy,
            retries=retries,
            sampling=sampling,
            seed=seed,
            request_slots=asyncio.Semaphore(concurrency),
            in_flight=set(),
            open_groups=set(),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._names: dict[tuple[str, int], GroupNames] = {}

    @property
    def roles(self) -> Roles:
        """The policy of each role, and which roles were used."""
        return self._settings.roles

    def record_cancelled(self) -> None:
        """Record every rollout in flight as cancelled, with its steps so far, without waiting for its env.

        Those that wait for their group's grade are recorded as not graded. It is for a process that has to end while
        envs or graders block or swallow their cancellation.
        """
        for task in tuple(self._settings.in_flight):
            if task.rollout_builder.header.session == self._settings.sink.session:  # not one of the parent process
                task.record(CANCELLED)
        for group in tuple(self._settings.open_groups):
            if group.session == self._settings.sink.session:
                group.record_interrupted("the end of the process")

    async def play(
        self,
        builders: Iterable[EnvGroupBuilder] | AsyncIterable[EnvGroupBuilder],
        *,
        iteration: int = 0,
        split: str = "train",
        finished: Collection[str] = (),
    ) -> AsyncGenerator[GroupResult, None]:
        """Play groups and yield each as it finishes. Builders are drawn when there is room for them.

        The groups named in `finished` are not played, but their builders are drawn, because the names of later groups
        depend on them.

        When the caller is cancelled, or closes the generator early (`contextlib.aclosing`), the rollouts in flight are
        cancelled, recorded and awaited.
        """
        pool = _TaskPool(self.concurrency)
        settings = self._start()
        draw = async_next(builders)
        try:
            while True:
                while pool.has_room and (builder := await draw()) is not EXHAUSTED:
                    validate_builder(builder)
                    name = self._name(builder.task, split, iteration)
                    if name not in finished:
                        pool.start(builder, GroupKey(split, iteration, builder.env, name), settings)
                if not pool.running:
                    return
                if (result := await pool.next_finished()) is not None:
                    yield result
        finally:
            await pool.cancel_all()

    async def play_group(
        self, builder: EnvGroupBuilder, key: GroupKey, on_episode_end: Callable[[int], None] = lambda _: None
    ) -> GroupResult:
        """Play one group under a name that the caller chose. `on_episode_end` gets the seats of each episode."""
        settings = self._start()
        validate_builder(builder)
        return await GroupRunner(builder, key, settings, on_episode_end).play()

    def record_failed_group(self, builder: EnvGroupBuilder, key: GroupKey, failure: Failure) -> GroupResult:
        """Record every member of a group as failed, without playing it."""
        return GroupRunner(builder, key, self._settings, on_episode_end=lambda _: None).record_failed(failure)

    def _start(self) -> RunnerSettings:
        """The settings with a semaphore for the running event loop, because a semaphore belongs to one loop."""
        register_open = getattr(self._settings.sink, "register_open", None)
        if register_open is not None:
            register_open(self)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._settings = msgspec.structs.replace(self._settings, request_slots=asyncio.Semaphore(self.concurrency))
        return self._settings

    def _name(self, task: str, split: str, iteration: int) -> str:
        names = self._names.setdefault((split, iteration), GroupNames())
        if len(self._names) > _MAX_NAMED_ITERATIONS:
            del self._names[next(iter(self._names))]
        return names.name(task)


class GroupNames:
    """Names the groups of one iteration after their tasks, in the order in which they are drawn."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def name(self, task: str) -> str:
        """The task's name, with a number if the iteration has drawn it before."""
        counts = self._counts
        name = task = clean_text(task, "", [])  # before counting, because cleaning could make two names equal
        while name in counts:
            counts[task] += 1
            name = f"{task}~{counts[task]}"
        counts[name] = 1
        return name


def async_next(builders: Iterable[Any] | AsyncIterable[Any]) -> Callable[[], Awaitable[Any]]:
    """An async function that returns the next builder, or `EXHAUSTED`."""
    if isinstance(builders, AsyncIterable):
        async_iterator = aiter(builders)

        async def async_draw() -> Any:
            return await anext(async_iterator, EXHAUSTED)

        return async_draw
    iterator = iter(builders)

    async def draw() -> Any:
        return next(iterator, EXHAUSTED)

    return draw


class _TaskPool:
    """Starts groups as tasks, returns each that ends, and cancels the rest at the end."""

    def __init__(self, concurrency: int) -> None:
        self.running: set[asyncio.Task[GroupResult]] = set()
        self._concurrency = concurrency
        self._rollouts = 0
        self._finished: asyncio.Queue[asyncio.Task[GroupResult] | None] = asyncio.Queue()
        """Each group that has ended, and None for each episode whose end makes room for another group."""

    @property
    def has_room(self) -> bool:
        return self._rollouts < self._concurrency or not self.running

    def start(self, builder: EnvGroupBuilder, key: GroupKey, settings: RunnerSettings) -> None:
        self._rollouts += builder.episodes * builder.seats
        group = GroupRunner(builder, key, settings, on_episode_end=self._episode_ended)
        task = asyncio.create_task(group.play())
        task.add_done_callback(self._finished.put_nowait)
        self.running.add(task)

    def _episode_ended(self, seats: int) -> None:
        had_room = self.has_room
        self._rollouts -= seats
        if self.has_room and not had_room:
            self._finished.put_nowait(None)

    async def next_finished(self) -> GroupResult | None:
        task = await self._finished.get()
        if task is None:
            return None
        self.running.discard(task)
        return task.result()

    async def cancel_all(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
