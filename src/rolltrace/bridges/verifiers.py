"""Records the rollouts of verifiers environments (its v1 API) while they are played."""

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from rolltrace.bridges.guard import Guard
from rolltrace.bridges.patching import replace_attribute
from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.verifiers_tasks import to_verifiers
from rolltrace.bridges.verifiers_trace import RecordedTrace, failure_fields, load_verifiers
from rolltrace.errors import InputError
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.writer import RunWriter

__all__ = ["PrimeMonitor", "RecordedEnv", "record", "to_verifiers"]


_members: WeakKeyDictionary[RunWriter, dict[tuple[int, str, str], int]] = WeakKeyDictionary()
"""The number of members so far of each iteration, env and group of a run."""


def record(env: Any, run: RunWriter, *, split: str = "train", iteration: int = 0) -> "RecordedEnv":
    """Record each episode that a verifiers environment plays from now on: one rollout for each agent's trace.

    With a class, such as `verifiers.v1.Env`, every environment of that class is recorded, also those that `run_eval`
    makes itself. Set `iteration` of the returned object in a training loop.
    """
    base = load_verifiers().Env
    if not isinstance(env, base) and not (isinstance(env, type) and issubclass(env, base)):
        raise InputError(f"Expected an environment or a class of verifiers.v1.Env, got {type(env).__name__}.")
    require_run(run)
    if hasattr(env.run_episode, "rolltrace_recording"):
        raise InputError("The environment or its class is being recorded: call `undo()` of the first recording before.")
    return RecordedEnv(env, run, split, iteration)


class RecordedEnv:
    """An environment, or a class of environments, that is being recorded."""

    def __init__(self, env: Any, run: RunWriter, split: str, iteration: int) -> None:
        self.split = split
        self.iteration = iteration
        """The iteration of the episodes that start from now on, with their retries."""
        self.run = run
        self.guard = Guard("a rollout of verifiers", "RecordedEnv.failed")
        self._slot: ContextVar[_Slot | None] = ContextVar("rolltrace_verifiers_slot", default=None)
        self._members = _members.setdefault(run, {})
        self._is_undone = False
        self._undo = [_replace(env, "run_slot", self._run_slot), _replace(env, "run_episode", self._run_episode)]

    @property
    def failed(self) -> int:
        """How often something could not be recorded."""
        return self.guard.failed

    def undo(self) -> None:
        """Stop recording, and restore the methods that were replaced. One that was replaced again since is left."""
        self._is_undone = True
        while self._undo:
            self._undo.pop()()

    async def _run_slot(self, env: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        token = self._slot.set(_Slot(self.iteration))
        try:
            return await original(*args, **kwargs)
        finally:
            self._slot.reset(token)

    async def _run_episode(
        self,
        env: Any,
        original: Callable[..., Any],
        task: Any,
        *args: Any,
        on_trace: Callable[[Any], None] | None = None,
        on_discard: Callable[[Any], None] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self._is_undone:
            return await original(task, *args, on_trace=on_trace, on_discard=on_discard, **kwargs)
        recorded = _RecordedEpisode(self, env, self._slot.get() or _Slot(self.iteration))

        def minted(trace: Any) -> None:
            if on_trace is not None:
                on_trace(trace)
            self.guard(recorded.begin, trace)

        def discarded(trace: Any) -> None:
            if on_discard is not None:
                on_discard(trace)
            self.guard(recorded.discard, trace)

        try:
            episode = await original(task, *args, on_trace=minted, on_discard=discarded, **kwargs)
        except BaseException as error:
            self.guard(recorded.fail, error)
            raise
        self.guard(recorded.finish, episode)
        return episode

    def next_index(self, iteration: int, env: str, group: str) -> int:
        """The number of the group's next member."""
        key = (iteration, env, group)
        self._members[key] = self._members.get(key, -1) + 1
        return self._members[key]


def _replace(target: Any, name: str, hook: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of an env or class by `hook(env, original, …)`; the returned function restores it."""
    original = getattr(target, name)
    if isinstance(target, type):

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return hook(self, functools.partial(original, self), *args, **kwargs)
    else:

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            return hook(target, original, *args, **kwargs)

    method.rolltrace_recording = True  # type: ignore[attr-defined]
    return replace_attribute(target, name, method)


class _Slot:
    """One planned episode; its attempts have the same places in the group."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.places: list[int] = []
        """The index of each rollout of an attempt, in the order in which they start."""
        self.attempts: dict[int, int] = {}
        """The number of attempts so far at each index."""


class _RecordedEpisode:
    """One attempt at an episode: the rollouts of its agents."""

    def __init__(self, recording: RecordedEnv, env: Any, slot: _Slot) -> None:
        self._recording = recording
        self._env = env
        self._slot = slot
        self._started = 0
        self._freed: list[int] = []
        """Places of discarded traces, for those that replace them."""
        self._open: dict[str, RecordedTrace] = {}

    def begin(self, trace: Any) -> None:
        """An agent starts."""
        names = list(import_module("verifiers.v1.configs.agent").agent_config_fields(self._env.config))
        is_one_of_several = len(names) > 1 and trace.agent.name in names
        index = self._freed.pop() if self._freed else self._place(trace.task)
        recorder = self._rollout(
            trace.task,
            index,
            **_trace_fields(trace),
            seat=names.index(trace.agent.name) if is_one_of_several else None,
            tags=(trace.agent.name,) if is_one_of_several else (),
        )
        recorded = self._open[trace.id] = RecordedTrace(recorder, trace, index)
        # verifiers has one callback per trace, which a server may have taken before.
        before = getattr(trace, "_on_change", None)

        def changed(current: Any) -> None:
            if before is not None:
                before(current)
            self._recording.guard(recorded.update)

        trace.watch(changed)

    def _place(self, task: Any) -> int:
        if self._started == len(self._slot.places):
            index = self._recording.next_index(self._slot.iteration, self._env.config.env_id, _group(task))
            self._slot.places.append(index)
        self._started += 1
        return self._slot.places[self._started - 1]

    def _rollout(self, task: Any, index: int, **fields: Any) -> RolloutRecorder:
        config = self._env.config
        attempt = self._slot.attempts[index] = self._slot.attempts.get(index, -1) + 1
        return self._recording.run.rollout(
            env=config.env_id,
            **_task_fields(task),
            index=index,
            attempt=attempt,
            split=self._recording.split,
            iteration=self._slot.iteration,
            env_args={"taskset": config.taskset.model_dump(mode="json", exclude_none=True)},
            **fields,
        )

    def discard(self, trace: Any) -> None:
        """An agent's attempt failed, and another follows."""
        if (recorded := self._open.pop(trace.id, None)) is not None:
            self._freed.append(recorded.index)
            recorded.end(None)

    def fail(self, error: BaseException) -> None:
        """The episode raised, or was cancelled."""
        for recorded in self._open.values():
            self._recording.guard(recorded.end, error)

    def finish(self, episode: Any) -> None:
        """The episode is over, with all rewards."""
        failure = _episode_failure(episode)
        if failure is not None and not self._started:
            self._rollout(episode.task, self._place(episode.task)).end(error=failure)
        for recorded in self._open.values():
            self._recording.guard(recorded.end, failure)


def _group(task: Any) -> str:
    """The identity of a task, as a trace states it."""
    return str(task.key or task.hash)


def _task_fields(task: Any) -> dict[str, Any]:
    return {
        "task": task.data.id or task.data.name or _group(task),
        "group": _group(task),
        "task_data": task.data.model_dump(mode="json", exclude_unset=True, exclude_none=True),
    }


def _trace_fields(trace: Any) -> dict[str, Any]:
    return {
        "id": trace.id,
        "policy": trace.agent.config.model or "",
        "started_at": datetime.fromtimestamp(trace.timing.start, UTC),
    }


def _episode_failure(episode: Any) -> dict[str, Any] | None:
    return failure_fields(episode.errors[-1]) if episode.errors and not episode.ok else None


class PrimeMonitor:
    """Records the episodes that prime-rl logs: add one to `prime_rl.monitors.MONITORS`.

    It was written from prime-rl's documents and tested without prime-rl, which is not in the package registry.
    """

    def __init__(self, run: RunWriter) -> None:
        self._run = run
        self._guard = Guard("an episode of prime-rl", "PrimeMonitor.failed")

    @property
    def failed(self) -> int:
        """How often something could not be recorded."""
        return self._guard.failed

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        """Metrics are not recorded: they can be computed from the rollouts."""

    def log_episodes(self, episodes: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        """Record episodes, with what the trainer has added to their tokens."""
        for episode in episodes:
            self._guard(self._record, episode)

    def _record(self, episode: Any) -> None:
        work = getattr(episode.run, "work", None)
        for trace in episode.traces:
            fields = {**_task_fields(trace.task), **_trace_fields(trace), "index": None}
            if episode.group is not None:
                fields["group"] = episode.group.id
            if work is not None:
                fields |= {"split": work.type, "iteration": work.step}
            recorded = RecordedTrace(self._run.rollout(env=episode.env.id, **fields), trace, 0)
            recorded.end(_episode_failure(episode))
            recorded.score_tokens(self._run)
