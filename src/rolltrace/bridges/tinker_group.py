"""Records groups of tinker-cookbook, and what its training loop makes of them: rewards and advantages."""

import functools
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from rolltrace.bridges.guard import Guard
from rolltrace.bridges.patching import replace_attribute
from rolltrace.bridges.recorded_run import score_tokens
from rolltrace.bridges.tinker_package import PARSE_ERROR_MASKED_METRIC_KEY, Env, EnvGroupBuilder, rollouts
from rolltrace.bridges.tinker_renderers import unwatch_renderers, watch_renderers
from rolltrace.bridges.tinker_rollout import REF_ATTRIBUTE, EnvRecording, RolloutRef, recording_of
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.writer import RunWriter

PRODUCER = "tinker-cookbook"
State = Callable[[Any], Mapping[str, Any]]
"""Reads the state of an env; a function at the top of a module, so that it can be pickled."""


class Place(NamedTuple):
    """Where a group stands in the run."""

    split: str
    iteration: int | None
    """None: that of the evaluation."""
    group: str


class PlayCounter:
    """Gives each play of a group builder a place of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._counts: dict[int | None, int] = {}

    def next(self) -> Place:
        """The place of the next play, here or in the process that gets a copy of the builder."""
        iteration = trainer.evaluation if self._place.iteration is None else self._place.iteration
        count = self._counts[iteration] = self._counts.get(iteration, 0) + 1
        if iteration is None:  # an evaluation by hand
            return self._place._replace(iteration=count - 1)
        group = self._place.group if count == 1 else f"{self._place.group}#{count}"
        return self._place._replace(iteration=iteration, group=group)


class Recording:
    """What all wrappers that one call of `record` makes share."""

    def __init__(self, run: RunWriter, state: State | None) -> None:
        self.run = run
        self.state = state
        self.guard = Guard("a rollout of tinker-cookbook", "`failed` of what record() returned")
        self.is_active = False
        self._fetches: dict[tuple[str, int], int] = {}

    def count_fetch(self, split: str, batch: int) -> int:
        """How often this batch was fetched: more than once if there are several trainings."""
        self._fetches[split, batch] = self._fetches.get((split, batch), 0) + 1
        return self._fetches[split, batch]

    def start(self, *, in_trainer: bool) -> None:
        """Replace the functions of tinker-cookbook that say how rollouts end, and in the trainer those that train."""
        with _lock:
            self.is_active = True
            _active.append(self)
            self.guard(_install)
            if in_trainer:
                self.guard(_install_in_trainer)

    def undo(self) -> None:
        """End the recording; groups that are being played are recorded to their end."""
        with _lock:
            if self in _active:
                _active.remove(self)
            self.is_active = False
            if not _active:
                _uninstall()
                unwatch_renderers()

    def to_dict(self) -> dict[str, str]:
        """What a log of the configuration shows."""
        return {"run": str(self.run.path)}

    def __deepcopy__(self, memo: Any) -> "Recording":
        return self  # a copy of the configuration, for a log, records into the same run

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.run, self.state, self.is_active)


def _unpickled(run: RunWriter, state: State | None, is_active: bool) -> Recording:
    """The recording in another process: one for each run."""
    recording = next((one for one in _active if one.run is run), None)
    if recording is None:
        recording = Recording(run, state)
        if is_active:
            recording.start(in_trainer=False)
    return recording


class Group:
    """One play of a group."""

    def __init__(self, builder: EnvGroupBuilder, recording: Recording, place: Place) -> None:
        self.grading_error: BaseException | None = None
        self.has_ended = False
        self._builder = builder
        self._recording = recording
        self._place = place
        self._tags = tuple(map(str, builder.logging_tags()))
        self._members: list[EnvRecording] = []
        self._positions: dict[int, tuple[int | None, int]] = {}
        """For each member, its index and attempt."""
        self._to_replace: deque[EnvRecording] = deque()
        """Members that failed, in this order, and that no other attempt has replaced."""
        self._is_graded = False

    def add(self, envs: Sequence[Env]) -> None:
        """Record these envs: the whole group, or those for another attempt."""
        run, guard = self._recording.run, self._recording.guard
        is_first = not self._members
        if len(set(map(id, envs))) < len(envs):
            raise ValueError("a group with the same env twice, whose rollouts cannot be told apart")
        watch_renderers(self._builder, *envs)
        for index, env in enumerate(envs):
            member = EnvRecording(env, self._begin, self._on_over, run, guard, self._recording.state)
            if is_first:
                self._positions[id(member)] = (index, 0)
            self._members.append(member)

    def _begin(self, member: EnvRecording, task_data: Mapping[str, Any]) -> RolloutRecorder:
        if id(member) not in self._positions:
            replaced = self._to_replace.popleft() if self._to_replace else None
            index, attempt = (None, -1) if replaced is None else self._positions[id(replaced)]
            self._positions[id(member)] = (index, attempt + 1)
            if replaced is not None:
                replaced.end(is_timeout=True)
        index, attempt = self._positions[id(member)]
        played = getattr(member.env, "message_env", member.env)
        example = getattr(member.env, "example_id", None)
        return self._recording.run.rollout(
            env=type(played).__name__, task=example if isinstance(example, str) else self._place.group,
            group=self._place.group, index=index, attempt=attempt, split=self._place.split,
            iteration=self._place.iteration or 0, tags=self._tags, task_data=task_data,
        )  # fmt: skip

    def _on_over(self, member: EnvRecording) -> None:
        if member.error is not None:
            self._to_replace.append(member)
        if self.has_ended:
            member.end()

    def grade(self, trajectories: Sequence[Any], envs: Sequence[Env], rewards: Sequence[tuple[float, Any]]) -> None:
        """Give those that came through their reward from the group."""
        self._is_graded = True
        for trajectory, env, reward in zip(trajectories, envs, rewards, strict=True):
            member = next((one for one in self._members if one.env is env), None)
            if member is not None:
                member.grade = reward
                member.finish(trajectory)
        if all(member.is_over or not member.is_watched for member in self._members):
            self.end()  # a loop of one's own may not call `cleanup`

    def end(self) -> None:
        """Write the records of all that are over; those still being played follow when they are."""
        self.has_ended = True
        for member in self._members:
            if member.is_over or not member.is_watched:
                member.end(self.grading_error, is_timeout=self._is_graded)


# The functions of tinker-cookbook that are replaced

_lock = threading.RLock()
_active: list[Recording] = []
_restore: dict[tuple[Any, str], Callable[[], None]] = {}
"""By module and name, what restores a function that is replaced."""


class _Trainer:
    """What the training loop is doing."""

    evaluation: int | None = None
    """The iteration of the evaluation that is running."""
    is_printing = False
    data: ClassVar[dict[int, Any]] = {}
    """By the id of a datum that is trained on, its trajectory."""


trainer = _Trainer()


def _replace(module: Any, name: str, recorded: Callable[..., Any]) -> None:
    if (module, name) not in _restore:
        original = getattr(module, name)
        replacement = functools.wraps(original)(functools.partial(recorded, original))
        _restore[module, name] = replace_attribute(module, name, replacement)


def _install() -> None:
    _replace(rollouts, "do_single_rollout", _recorded_rollout)
    _replace(rollouts, "do_group_rollout", _recorded_group)


def _install_in_trainer() -> None:
    from tinker_cookbook.rl import train  # takes seconds, and only the trainer needs it

    _replace(train, "compute_advantages", _recorded_advantages)
    _replace(train, "assemble_training_data", _recorded_data)
    _replace(train, "compute_kl_sample_train", _recorded_logprobs)
    _replace(train, "print_group", _recorded_print)
    _replace(train, "run_evaluations_parallel", _recorded_evaluations)


def _uninstall() -> None:
    for restore in _restore.values():
        restore()
    _restore.clear()


async def _recorded_rollout(original: Callable[..., Awaitable[Any]], policy: Any, env: Env) -> Any:
    # An env of `to_tinker` records itself. The method has the prefix because any env is asked for it.
    recording = env if hasattr(env, "rolltrace_play") else recording_of(env)
    return await (original(policy, env) if recording is None else recording.rolltrace_play(original, policy))


async def _recorded_group(original: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """A group whose rewards may change after its grader has given them."""
    group = await original(*args, **kwargs)
    _guarded(_score_totals, group)
    return group


def _score_totals(group: Any) -> None:
    rewards = zip(group.get_total_rewards(), group.final_rewards_G, group.metrics_G, strict=True)
    for trajectory, (total, reward, metrics) in zip(group.trajectories_G, rewards, strict=True):
        ref: RolloutRef | None = getattr(trajectory, REF_ATTRIBUTE, None)
        if ref is not None and ref.total != total:
            _score(ref, "reward", total, {"group_grade": reward, "reward_data": dict(metrics)})
            ref.total = total


def _recorded_advantages(original: Callable[..., Any], trajectory_groups: Any, *args: Any, **kwargs: Any) -> Any:
    advantages = original(trajectory_groups, *args, **kwargs)
    if not trainer.is_printing:
        _guarded(_score_advantages, trajectory_groups, advantages)
    return advantages


def _score_advantages(groups: Sequence[Any], advantages: Sequence[Any]) -> None:
    for group, values in zip(groups, advantages, strict=True):
        for trajectory, value in zip(group.trajectories_G, values, strict=True):
            if (ref := getattr(trajectory, REF_ATTRIBUTE, None)) is not None:
                _score(ref, "advantage", float(value))


def _recorded_data(original: Callable[..., Any], trajectory_groups: Any, *args: Any, **kwargs: Any) -> Any:
    data, places = original(trajectory_groups, *args, **kwargs)
    if not trainer.is_printing:
        _guarded(_remember_data, trajectory_groups, data, places)
    return data, places


def _remember_data(groups: Sequence[Any], data: Sequence[Any], places: Sequence[Mapping[str, int]]) -> None:
    for datum, place in zip(data, places, strict=True):
        trajectory = groups[place["group_idx"]].trajectories_G[place["traj_idx"]]
        recording = _recording_of(getattr(trajectory, REF_ATTRIBUTE, None))
        if recording is not None and recording.run.recording.tokens:
            trainer.data[id(datum)] = trajectory
            weakref.finalize(datum, trainer.data.pop, id(datum), None).atexit = False


def _recorded_logprobs(original: Callable[..., Any], data: Any, logprobs: Any, *args: Any, **kwargs: Any) -> Any:
    _guarded(_score_logprobs, data, logprobs)
    return original(data, logprobs, *args, **kwargs)


def _score_logprobs(data: Sequence[Any], logprobs: Sequence[Any]) -> None:
    """Record the trainer's log-probabilities of the tokens that were trained on, step by step."""
    by_trajectory: dict[int, tuple[Any, list[float]]] = {}
    for datum, values in zip(data, logprobs, strict=True):
        trajectory = trainer.data.pop(id(datum), None)
        if trajectory is not None:
            is_trained = datum.loss_fn_inputs["mask"].to_torch() > 0
            by_trajectory.setdefault(id(trajectory), (trajectory, []))[1].extend(values[is_trained].tolist())
    for trajectory, values in by_trajectory.values():
        rest = iter(values)
        played = [one for one in trajectory.transitions if one.ac.tokens]
        masked = [bool(one.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY)) for one in played]
        tokens = [
            None if skip else [*islice(rest, len(one.ac.tokens))] for one, skip in zip(played, masked, strict=True)
        ]
        ref: RolloutRef = getattr(trajectory, REF_ATTRIBUTE)
        if (recording := _recording_of(ref)) is not None:
            score_tokens(recording.run, ref.rollout, "trainer_logprobs", tokens, PRODUCER)


def _guarded(action: Callable[..., None], *args: Any) -> None:
    for recording in _active[:1]:
        recording.guard(action, *args)


def _score(ref: RolloutRef, name: str, value: float, data: dict[str, Any] | None = None) -> None:
    if (recording := _recording_of(ref)) is not None:
        recording.run.score(ref.rollout, name, value, data=data, producer=PRODUCER)


def _recording_of(ref: RolloutRef | None) -> Recording | None:
    return next((one for one in _active if ref is not None and one.run.run == ref.run), None)


def _recorded_print(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Printing computes advantages, too, of some members of a group."""
    trainer.is_printing = True
    try:
        return original(*args, **kwargs)
    finally:
        trainer.is_printing = False


async def _recorded_evaluations(
    original: Callable[..., Awaitable[Any]], evaluators: Any, sampling_client: Any, config: Any, i_batch: int,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    trainer.evaluation = i_batch
    try:
        return await original(evaluators, sampling_client, config, i_batch, *args, **kwargs)
    finally:
        trainer.evaluation = None
