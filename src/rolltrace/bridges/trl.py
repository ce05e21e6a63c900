"""Records what a `GRPOTrainer` or `RLOOTrainer` of TRL generates, while it trains."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rolltrace.bridges.guard import Guard, copied
from rolltrace.bridges.patching import replace_attribute
from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.trl_batch import (
    PRODUCER,
    BatchPosition,
    GroupNumbers,
    Settings,
    TrlCompletion,
    Written,
    sampled_ranges,
    unique_names,
    write_rollout,
)
from rolltrace.bridges.trl_envs import RolloutFunction, to_trl
from rolltrace.bridges.trl_rewards import record_rewards
from rolltrace.errors import InputError
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.stop_reasons import Layer

__all__ = ["RecordedTrainer", "record", "record_rewards", "to_trl"]

TRAINERS = ("GRPOTrainer", "RLOOTrainer")
HOOKS = (
    "_generate_and_score_completions", "_generate", "_calculate_rewards", "_get_per_token_logps_and_entropies",
    "_compute_loss", "evaluation_loop",
)  # fmt: skip
"""The methods of a trainer that are replaced. All but the last are private: `tests/bridges/test_trl.py` pins them."""
VERSIONS = "1.16"
_PLAIN = (str, int, float, bool, list, dict, type(None))


def record(trainer: Any, run: RunWriter, env: str | None = None) -> "RecordedTrainer":
    """Record every completion that the trainer generates from now on, as rollouts of the run.

    `env` is the name of the environment in the record; by default that of the class or of the row's `environment` where
    the trainer has environments, else `trl`. Recording never raises into training. With several processes, call it in
    each of them, with a writer that has joined the same run.
    """
    if not any(base.__name__ in TRAINERS for base in type(trainer).__mro__):
        raise InputError(f"Expected a GRPOTrainer or an RLOOTrainer of TRL, got {describe(trainer)}.")
    require_run(run)
    missing = [name for name in HOOKS if not callable(getattr(trainer, name, None))]
    if missing:
        raise InputError(
            f"Expected a trainer of TRL {VERSIONS}, got one without {', '.join(missing)}: this version of TRL is not "
            "supported, use record_rewards."
        )
    if any(isinstance(getattr(vars(trainer).get(name), "__self__", None), RecordedTrainer) for name in HOOKS):
        raise InputError("Expected a trainer that is not recorded yet: call undo() of its first recording before.")
    return RecordedTrainer(trainer, run, env)


class _Batch:
    """One generation of this process, while the trainer computes it."""

    def __init__(self, place: BatchPosition, inputs: Sequence[Mapping[str, Any]]) -> None:
        self.place = place
        self.started_at: datetime = utc_now()
        self.layer = Layer.ENV
        """What the trainer is doing, if it fails now: it resets environments first."""
        self.rows = copied(inputs)
        self.prompts: Sequence[Any] | None = None
        self.generated: Sequence[Any] | None = None
        self.rewards: Sequence[Sequence[float]] | None = None
        self.totals: Sequence[float] = ()
        self.extra: Mapping[str, Sequence[Any]] = {}
        self.stale: Mapping[str, int] = {}
        """How many values of `log_extra` are those of a generation that failed."""
        self.logps: Any = None
        """The log-probabilities that the trainer computed first."""


class RecordedTrainer:
    """A trainer whose completions are recorded."""

    def __init__(self, trainer: Any, run: RunWriter, env: str | None) -> None:
        self.trainer = trainer
        self._run = run
        self._env = env
        self._guard = Guard("a generation of the trainer", "RecordedTrainer.failed")
        self._numbers = GroupNumbers.of_run(run)
        self._split = "eval"
        self._batch: _Batch | None = None
        self._awaiting: dict[tuple[Any, ...], list[Written]] = {}
        """By prompt and completion ids, rollouts whose log-probabilities are known when the loss is computed."""
        self._loss_inputs: Any = None
        self._tools: dict[Any, list[Any]] = {}
        self._is_undone = False
        self._originals: dict[str, Callable[..., Any]] = {name: getattr(trainer, name) for name in HOOKS}
        self._restore = [replace_attribute(trainer, name, getattr(self, _hook_name(name))) for name in HOOKS]

    @property
    def failed(self) -> int:
        """How many times recording something failed."""
        return self._guard.failed

    def undo(self) -> None:
        """Stop recording. A method that was replaced again since is left as it is."""
        for restore in self._restore:
            restore()
        self._awaiting.clear()
        self._is_undone = True

    # What replaces the methods of the trainer

    def _on_evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        original = self._originals["evaluation_loop"]
        split = self._guard(_argument, original, "metric_key_prefix", args, kwargs)
        self._split = split if isinstance(split, str) and split else "eval"
        return original(*args, **kwargs)

    def _on_generate_and_score_completions(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        original = self._originals["_generate_and_score_completions"]
        if self._is_undone:
            return original(inputs, *args, **kwargs)
        batch = self._batch = self._guard(self._begin, inputs)
        try:
            output = original(inputs, *args, **kwargs)
        except BaseException as error:
            if batch is not None and not self._runner_records:
                self._guard(self._write, batch, error)
            raise
        finally:
            self._batch = None
        if batch is not None:
            self._guard(self._finish, batch, output)
        return output

    def _on_generate(self, prompts: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self._batch
        if batch is not None:
            batch.prompts, batch.layer = self._guard(copied, prompts), Layer.POLICY
        generated = self._originals["_generate"](prompts, *args, **kwargs)
        if batch is not None:
            batch.generated, batch.layer = self._guard(copied, generated), Layer.CALLER
        return generated

    def _on_calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._batch
        if batch is not None:
            batch.layer = Layer.GRADER
        rewards = self._originals["_calculate_rewards"](*args, **kwargs)
        if batch is not None:
            batch.layer = Layer.CALLER
            self._guard(self._note_rewards, batch, rewards)
        return rewards

    def _on_get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = self._originals["_get_per_token_logps_and_entropies"](*args, **kwargs)
        if self._batch is not None and self._batch.logps is None:
            self._batch.logps = result[0]
        inputs, self._loss_inputs = self._loss_inputs, None
        if inputs is not None and self._awaiting:
            self._guard(self._score_awaiting, inputs, result[0])
        return result

    def _on_compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._loss_inputs = inputs
        try:
            return self._originals["_compute_loss"](model, inputs, *args, **kwargs)
        finally:
            self._loss_inputs = None

    # What is recorded

    def _begin(self, inputs: Sequence[Mapping[str, Any]]) -> _Batch:
        trainer = self.trainer
        is_training = trainer.model.training
        num_generations = trainer.num_generations if is_training else trainer.num_generations_eval
        numbers = GroupNumbers() if self._runner_records else self._numbers  # the runner has numbers of its own
        place = numbers.take(
            "train" if is_training else self._split,
            trainer.state.global_step,
            trainer.accelerator.process_index,
            trainer.accelerator.num_processes,
            len(inputs),
            num_generations,
        )
        self._awaiting.clear()
        batch = _Batch(place, inputs)
        batch.stale = {name: len(values) for name, values in trainer._pending_extra_logs.items()}
        return batch

    def _note_rewards(self, batch: _Batch, rewards: Any) -> None:
        """Take this process's part of the rewards, which TRL has of all processes."""
        first = batch.place.first
        weights = self.trainer.reward_weights.to(rewards.device).unsqueeze(0)
        batch.totals = (rewards * weights).nansum(dim=1)[first : first + len(batch.rows)].tolist()
        batch.rewards = rewards[first : first + len(batch.rows)].tolist()
        batch.extra = {
            name: values[batch.stale.get(name, 0) :] for name, values in self.trainer._pending_extra_logs.items()
        }

    def _changes_rewards(self) -> bool:
        """Whether RLOO takes a penalty off the rewards, or clips them, before it computes advantages."""
        return self.trainer.beta != 0.0 or bool(getattr(self.trainer, "reward_clip_range", None))

    def _finish(self, batch: _Batch, output: Mapping[str, Any]) -> None:
        written = self._find_written(batch) if self._runner_records else self._write(batch)
        logps = batch.logps if "old_logps" in output else output.get("old_per_token_logps")
        keeps_tokens = bool(self._run.recording.tokens)
        data = {"after_penalty": True} if "old_logps" in output and self._changes_rewards() else None
        for number, (rollout, advantage) in enumerate(zip(written, output["advantages"].tolist(), strict=True)):
            if rollout is None:
                continue
            self._guard(self._run.score, rollout.id, "advantage", advantage, producer=PRODUCER, data=data)
            if not keeps_tokens or not output["completion_mask"][number].any():
                continue  # TRL has masked a truncated completion: what it computes for it means nothing
            if logps is not None:
                self._guard(rollout.score, self._run, "trainer_logprobs", logps[number].tolist())
            else:
                self._awaiting.setdefault(_row_key(output, number), []).append(rollout)

    @property
    def _runner_records(self) -> bool:
        """Whether the trainer trains on our environments, and the runner records them into the same run."""
        function = getattr(self.trainer, "rollout_func", None)
        return isinstance(function, RolloutFunction) and function.run is self._run

    def _find_written(self, batch: _Batch) -> list[Written | None]:
        """The rollouts that the runner has recorded."""
        if batch.generated is None:
            return []
        masks, ids = batch.generated[2], batch.generated[5]["rolltrace_rollout"]
        return [Written(found, sampled_ranges(mask)) for found, mask in zip(ids, masks, strict=True)]

    def _score_awaiting(self, inputs: Mapping[str, Any], logps: Any) -> None:
        """Record the log-probabilities that the loss is computed from, if there were none before."""
        values = logps.detach().tolist()
        for number in range(len(values)):
            rollouts = self._awaiting.get(_row_key(inputs, number))
            if rollouts:
                self._guard(rollouts.pop().score, self._run, "trainer_logprobs", values[number])

    def _write(self, batch: _Batch, error: BaseException | None = None) -> list[Written | None]:
        settings = self._settings()
        failure = failure_of(batch.layer, error) if isinstance(error, Exception) else error

        def write(number: int) -> Written:
            return write_rollout(self._run, batch.place, number, self._completion(batch, number), settings, failure)

        return [self._guard(write, number) for number in range(len(batch.rows))]

    def _completion(self, batch: _Batch, number: int) -> TrlCompletion:
        row = batch.rows[number]
        environments = getattr(self.trainer, "environments", None)
        environment = environments[number] if environments else None
        if self._env is not None:
            name = self._env
        elif environment is not None:
            name = str(row["environment"]) if self.trainer._multi_environment else type(environment).__name__
        else:
            name = "trl"
        one = TrlCompletion(
            env=name,
            row=row,
            prompt=row.get("prompt", "") if batch.prompts is None else batch.prompts[number],
            tools=self._tool_specs(number),
            env_state={} if environment is None else _public_attributes(environment),
            extra={name: values[number] for name, values in batch.extra.items() if number < len(values)},
            started_at=batch.started_at,
        )
        if batch.generated is not None:
            self._add_generated(one, batch.generated, number)
        if batch.rewards is not None:
            one.rewards, one.total = batch.rewards[number], batch.totals[number]
        return one

    def _add_generated(self, one: TrlCompletion, generated: Sequence[Any], number: int) -> None:
        """What `_generate` returned; that of RLOO has neither tools nor log-probabilities."""
        if len(generated) == 3:
            prompt_ids, ids, completions = generated
            masks = logprobs = None
            others: Mapping[str, Any] = {}
        else:
            prompt_ids, ids, masks, completions, logprobs, others = generated[:6]
        one.prompt_ids, one.ids, one.completion = prompt_ids[number], ids[number], completions[number]
        one.mask = None if masks is None else masks[number]
        one.logprobs = None if logprobs is None else logprobs[number]
        returned = {name: v[number] if isinstance(v, list) and number < len(v) else v for name, v in others.items()}
        one.extra = {**returned, **one.extra}

    def _settings(self) -> Settings:
        trainer, args = self.trainer, self.trainer.args
        tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
        is_parsed = any(getattr(tokenizer, name, None) is not None for name in ("response_template", "response_schema"))
        return Settings(
            policy=getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or "",
            sampling={
                "temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k, "min_p": args.min_p,
                "max_tokens": args.max_completion_length, "repetition_penalty": args.repetition_penalty,
            },
            reward_names=unique_names(trainer.reward_func_names),
            reward_weights=trainer.reward_weights.tolist(),
            end_tokens=frozenset([*trainer.eos_token_ids, tokenizer.pad_token_id]),
            max_tool_turns=getattr(trainer, "max_tool_calling_iterations", 0),
            decode=functools.partial(tokenizer.decode, skip_special_tokens=True) if is_parsed else None,
        )  # fmt: skip

    def _tool_specs(self, number: int) -> list[Any]:
        """The schemas of the tools that this completion could call."""
        trainer = self.trainer
        name = None
        tools = getattr(trainer, "tools", None) or []
        if getattr(trainer, "environment_factories", None) is not None:
            name = trainer._batch_environments[number]
            tools = trainer._env_tools[name]
        if tools and name not in self._tools:
            self._tools[name] = [_tool_schema(tool) for tool in tools]
        return self._tools.get(name, [])


def _hook_name(method: str) -> str:
    """The name of the method here that replaces this method of the trainer."""
    return f"_on_{method.removeprefix('_')}"


def _argument(method: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument of this name in a call of the method."""
    bound = inspect.signature(method).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments.get(name)


def _tool_schema(tool: Any) -> Mapping[str, Any]:
    """The schema of a tool as the model sees it, but for what the tool returns, which a record has no place for."""
    schema = tool if isinstance(tool, dict) else importlib.import_module("transformers.utils").get_json_schema(tool)
    function = {name: value for name, value in schema["function"].items() if name != "return"}
    return {**schema, "function": function}


def _row_key(tensors: Mapping[str, Any], number: int) -> tuple[Any, ...]:
    """Identifies a completion after TRL has shuffled and split its batch: the padded ids."""
    return tuple(tensors["prompt_ids"][number].tolist()), tuple(tensors["completion_ids"][number].tolist())


def _public_attributes(environment: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(environment).items()
        if not name.startswith("_") and isinstance(value, _PLAIN)
    }
