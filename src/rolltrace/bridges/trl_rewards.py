"""Records the completions of a TRL trainer through its reward functions alone, without private methods."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolltrace.bridges.guard import Guard, copied
from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.trl_batch import (
    BatchPosition,
    GroupNumbers,
    Settings,
    TrlCompletion,
    unique_names,
    write_rollout,
)
from rolltrace.errors import InputError
from rolltrace.store.writer import RunWriter
from rolltrace.trace.failure import Failure, failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.stop_reasons import Layer

RewardFunction = Callable[..., Any]
_NOT_COLUMNS = {
    "prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"
}  # fmt: skip


def record_rewards(reward_funcs: Any, run: RunWriter, args: Any, env: str = "trl") -> "RecordedRewards":
    """Return these reward functions for the trainer, recording what they are called with and what they return.

    `args` is the trainer's config, for `num_generations` and `reward_weights`. Reward functions do not see advantages,
    token ids of prompts and turns, log-probabilities, tools, and whether the trainer evaluates: rows of an evaluation
    count as training unless they have a column `split`.
    """
    functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    for function in functions:
        if not callable(function) or hasattr(function, "parameters"):
            raise InputError(f"Expected reward functions, got {describe(function)}: record a reward model with record.")
    if not functions:
        raise InputError("Expected at least one reward function, got none.")
    require_run(run)
    if not isinstance(getattr(args, "num_generations", None), int):
        raise InputError(f"Expected the trainer's config, such as a GRPOConfig, as args, got {describe(args)}.")
    weights = getattr(args, "reward_weights", None)
    if weights and len(weights) != len(functions):
        raise InputError(
            f"Expected a reward weight for each of the {len(functions)} functions, got {len(weights)} in args: record "
            "all reward functions together, and a trainer with reward models with record."
        )
    return RecordedRewards(functions, run, args, env)


class RecordedRewards(list[RewardFunction]):
    """The reward functions, for `reward_funcs=` of the trainer."""

    def __init__(self, functions: Sequence[RewardFunction], run: RunWriter, args: Any, env: str) -> None:
        super().__init__(self._recorded(number, function) for number, function in enumerate(functions))
        weights = getattr(args, "reward_weights", None) or [1.0] * len(functions)
        names = unique_names([function.__name__ for function in self])
        self._settings = Settings(reward_names=names, reward_weights=[float(weight) for weight in weights])
        self._run = run
        self._args = args
        self._env = env
        self._numbers = GroupNumbers.of_run(run)
        self._batch: _ScoredBatch | None = None
        """The last batch that a function was called with."""
        self._guard = Guard("the completions of a reward function", "RecordedRewards.failed")

    @property
    def failed(self) -> int:
        """How many times recording something failed."""
        return self._guard.failed

    def _recorded(self, number: int, function: RewardFunction) -> RewardFunction:
        named = function
        while isinstance(named, functools.partial):
            named = named.func
        is_async = inspect.iscoroutinefunction(named) or inspect.iscoroutinefunction(getattr(named, "__call__", None))  # noqa: B004 - not whether it is callable

        def recorded(**kwargs: Any) -> Any:
            batch = self._guard(self._batch_of, kwargs)
            try:
                values = function(**kwargs)
            except BaseException as error:
                self._guard(self._write_failed, batch, error)
                raise
            self._guard(self._add, number, batch, values)
            return values

        async def recorded_async(**kwargs: Any) -> Any:
            batch = self._guard(self._batch_of, kwargs)
            try:
                values = await function(**kwargs)
            except BaseException as error:
                self._guard(self._write_failed, batch, error)
                raise
            self._guard(self._add, number, batch, values)
            return values

        chosen = recorded_async if is_async else recorded
        chosen.__name__ = getattr(named, "__name__", type(named).__name__)
        chosen.__doc__ = function.__doc__
        return chosen

    def _add(self, number: int, batch: "_ScoredBatch | None", values: Sequence[float | None]) -> None:
        """Note what a function returned; when all have, the batch is recorded."""
        if batch is None:
            return
        for rewards, value in zip(batch.rewards, values, strict=True):
            rewards[number] = math.nan if value is None else float(value)
        batch.awaited -= 1
        if not batch.awaited:
            self._write(batch, None)

    def _write_failed(self, batch: "_ScoredBatch | None", error: BaseException) -> None:
        if batch is not None:
            self._write(batch, failure_of(Layer.GRADER, error) if isinstance(error, Exception) else error)

    def _batch_of(self, kwargs: Mapping[str, Any]) -> "_ScoredBatch":
        """The batch with these completions: TRL calls all functions with the same list."""
        last = self._batch
        if last is not None and last.called_with is kwargs["completions"]:
            return last
        if last is not None:
            self._write(last, None)  # if the trainer does not call all functions
        self._batch = self._new_batch(kwargs)
        return self._batch

    def _new_batch(self, kwargs: Mapping[str, Any]) -> "_ScoredBatch":
        args, count = self._args, len(kwargs["completions"])
        columns = {
            name: values
            for name, values in kwargs.items()
            if name not in _NOT_COLUMNS and isinstance(values, list) and len(values) == count
        }
        rows = [{name: values[row] for name, values in columns.items()} for row in range(count)]
        split = str(rows[0].get("split", "train"))
        num_generations = args.num_generations
        if split != "train":
            num_generations = getattr(args, "num_generations_eval", None) or num_generations
        step = kwargs["trainer_state"].global_step
        place = self._numbers.take(split, step, args.process_index, args.world_size, count, num_generations)
        return _ScoredBatch(place, kwargs["prompts"], kwargs["completions"], rows, len(self._settings.reward_names))

    def _write(self, batch: "_ScoredBatch", error: BaseException | Failure | None) -> None:
        if batch.is_written:
            return
        batch.is_written = True
        for number, rewards in enumerate(batch.rewards):
            pairs = zip(rewards, self._settings.reward_weights, strict=False)
            one = TrlCompletion(
                env=self._env,
                row=batch.rows[number],
                prompt=batch.prompts[number],
                completion=batch.completions[number],
                rewards=rewards,
                total=sum(value * weight for value, weight in pairs if not math.isnan(value)),
            )
            self._guard(write_rollout, self._run, batch.place, number, one, self._settings, error)


class _ScoredBatch:
    """The completions of a generation, with the rewards so far."""

    def __init__(
        self,
        place: BatchPosition,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rows: list[dict[str, Any]],
        functions: int,
    ) -> None:
        self.place = place
        self.called_with = completions
        self.prompts, self.completions, self.rows = copied([prompts, completions, rows])
        self.rewards = [[math.nan] * functions for _ in rows]
        self.awaited = functions
        self.is_written = False
