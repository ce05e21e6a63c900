"""The bridge to tinker-cookbook: `record` what it plays, by one wrapper, and train on our environments: `to_tinker`."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.tinker_envs import to_tinker
from rolltrace.bridges.tinker_group import Group, Place, PlayCounter, Recording, State
from rolltrace.bridges.tinker_package import (
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    chz,
    require_tinker_cookbook,
)
from rolltrace.errors import InputError
from rolltrace.store.writer import RunWriter
from rolltrace.trace.ids import new_id

__all__ = ["record", "to_tinker"]

_group: ContextVar[Group | None] = ContextVar("rolltrace_tinker_group", default=None)


def record(
    what: Any, run: RunWriter, *, split: str | None = None, iteration: int | None = None, group: str | None = None,
    state: State | None = None,
) -> Any:  # fmt: skip
    """Record every rollout of an `RLDatasetBuilder`, an `RLDataset` or an `EnvGroupBuilder`; returns it wrapped.

    Use what it returns in place of `what`. Of a dataset builder, the first dataset has the split `train` and the second
    `test`; a dataset or a group builder has `split`, by default `train`. The iteration of a dataset's batch is its
    number, and that of an evaluation the training loop's. `iteration` and `group` are for a group builder. `state`
    reads the state of an env, if that is not among its attributes.

    The result also has `undo()`, which ends the recording, and `failed`, which counts what could not be recorded.
    """
    require_tinker_cookbook()
    require_run(run)
    if isinstance(what, _Undoable) and what.recording.is_active:
        raise InputError("This is being recorded already: call `undo()` of it first.")
    recording = Recording(run, state)
    if isinstance(what, EnvGroupBuilder):
        place = Place(split or "train", iteration or 0, group or new_id())
        wrapped: Any = RecordedEnvGroupBuilder(what, recording, place)
    elif isinstance(what, RLDataset):
        wrapped = RecordedDataset(what, recording, split or "train")
    elif isinstance(what, RLDatasetBuilder):
        wrapped = RecordedDatasetBuilder(inner=what, recording=recording)
    else:
        raise InputError(f"Expected an RLDatasetBuilder, RLDataset or EnvGroupBuilder, got {type(what).__name__}.")
    recording.start(in_trainer=True)
    return wrapped


class _Undoable:
    """The methods of what `record` returns."""

    recording: Recording

    def undo(self) -> None:
        """End the recording, and restore what was replaced in tinker-cookbook."""
        self.recording.undo()

    @property
    def failed(self) -> int:
        """How often recording failed in this process."""
        return self.recording.guard.failed


@chz.chz
class RecordedDatasetBuilder(RLDatasetBuilder, _Undoable):
    """A dataset builder whose datasets are recorded."""

    inner: Any
    recording: Any

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Build the datasets."""
        train, test = await self.inner()
        return (
            RecordedDataset(train, self.recording, "train"),
            None if test is None else RecordedDataset(test, self.recording, "test"),
        )


class RecordedDataset(RLDataset, _Undoable):
    """A dataset whose groups are recorded."""

    def __init__(self, inner: RLDataset, recording: Recording, split: str) -> None:
        self.inner = inner
        self.recording = recording
        self._split = split

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The builders of a batch."""
        iteration = index if self._split == "train" else None  # evaluations are played again and again
        fetches = self.recording.count_fetch(self._split, index)
        again = f"@{fetches}" if fetches > 1 else ""
        return [
            RecordedEnvGroupBuilder(builder, self.recording, Place(self._split, iteration, f"{index}.{number}{again}"))
            for number, builder in enumerate(self.inner.get_batch(index))
        ]

    def __len__(self) -> int:
        return len(self.inner)


class RecordedEnvGroupBuilder(EnvGroupBuilder, _Undoable):
    """A group builder whose envs are recorded. It may be played several times, also at the same time."""

    def __init__(self, inner: EnvGroupBuilder, recording: Recording, place: Place) -> None:
        self.inner = inner
        self.recording = recording
        self._plays = PlayCounter(place)
        self._open: list[Group] = []
        """The groups that are being played."""
        self._ended: WeakSet[Group] = WeakSet()
        """Those that are recorded, and may not be cleaned up yet."""

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedEnvGroupBuilder, (self.inner, self.recording, self._plays.next())

    def _playing(self) -> Group | None:
        """The group that this task plays; in a task that did not make it, the only one there is."""
        group = _group.get()
        if group in self._open or group in self._ended:
            return group
        return self._open[0] if len(self._open) == 1 else None

    def _settle(self, group: Group) -> None:
        """Forget a group if it has ended."""
        if group.has_ended and group in self._open:
            self._open.remove(group)
            self._ended.add(group)

    async def make_envs(self) -> Sequence[Env]:
        """Make the envs of the group; after a failure, tinker-cookbook makes them again and plays the first."""
        envs = await self.inner.make_envs()
        if self.recording.is_active:
            self.recording.guard(self._watch, envs)
        return envs

    def _watch(self, envs: Sequence[Env]) -> None:
        group = _group.get()
        if group is None or group not in self._open:
            group = Group(self.inner, self.recording, self._plays.next())
            self._open.append(group)
            _group.set(group)
        group.add(envs)

    async def compute_group_rewards(
        self, trajectory_group: list[Any], env_group: Sequence[Env]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """The rewards from the group."""
        group, guard = self._playing(), self.recording.guard
        try:
            rewards = await self.inner.compute_group_rewards(trajectory_group, env_group)
        except BaseException as error:
            if group is not None:
                group.grading_error = error
            raise
        if group is not None:
            guard(group.grade, trajectory_group, env_group, rewards)
            self._settle(group)
        return rewards

    async def cleanup(self) -> None:
        """Clean up; the group is over, on every way that it can end."""
        try:
            await self.inner.cleanup()
        finally:
            if (group := self._playing()) is not None:
                self.recording.guard(group.end)
                self._settle(group)

    def logging_tags(self) -> list[str]:
        """The tags of the group."""
        return self.inner.logging_tags()
