"""Writes the completions of one generation of a TRL trainer as rollouts."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from rolltrace.bridges.recorded_run import score_tokens
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.recorder_inputs import RolloutFields
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.ids import stable_id
from rolltrace.trace.stop_reasons import StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens

PRODUCER = "trl"
_NOT_TASK_DATA = ("prompt", "image", "images")


class BatchPosition(NamedTuple):
    """Where the completions of a batch stand among those of all processes."""

    split: str
    iteration: int
    first_group: int
    """The number of the first group of the generation, over all its processes."""
    first: int
    """The number of the first completion of this process, over all processes."""
    num_generations: int

    def group_and_index(self, row: int) -> tuple[int, int]:
        """The group of a completion, and its number in it. TRL groups completions by their place."""
        group, index = divmod(self.first + row, self.num_generations)
        return self.first_group + group, index


class GroupNumbers:
    """Numbers the groups of an iteration, which may have several generations, also of several trainings."""

    _of_runs: ClassVar[WeakKeyDictionary[RunWriter, "GroupNumbers"]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], int] = {}
        """By split and iteration, how many groups there have been."""

    @classmethod
    def of_run(cls, run: RunWriter) -> "GroupNumbers":
        """Those that all recordings into this run share."""
        return cls._of_runs.setdefault(run, cls())

    def take(self, split: str, iteration: int, rank: int, ranks: int, rows: int, num_generations: int) -> BatchPosition:
        """The place of the next generation; every process has to take it, in the same order."""
        first_group = self._groups.get((split, iteration), 0)
        self._groups[split, iteration] = first_group + math.ceil(rows * ranks / num_generations)
        return BatchPosition(split, iteration, first_group, rank * rows, num_generations)


@dataclass
class Settings:
    """What is the same for all completions of a generation."""

    policy: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    reward_names: Sequence[str] = ()
    reward_weights: Sequence[float] = ()
    end_tokens: frozenset[int] = frozenset()
    """Tokens after which TRL does not count a completion as truncated."""
    max_tool_turns: float = math.inf
    decode: Callable[[Sequence[int]], str] | None = None
    """Ids to text, if TRL has parsed that text."""


@dataclass
class TrlCompletion:
    """One completion, with everything that is known of it; what is not known stays None."""

    env: str
    row: Mapping[str, Any]
    prompt: Any
    """Messages, or a text."""
    completion: Any = None
    """Messages, also of tools, or a text."""
    prompt_ids: Sequence[int] | None = None
    ids: Sequence[int] | None = None
    mask: Sequence[int] | None = None
    """For each of the ids, 1 if the policy sampled it, 0 if it is of a tool or an environment."""
    logprobs: Sequence[float | None] | None = None
    tools: Sequence[Any] = ()
    rewards: Sequence[float] = ()
    """By reward function; NaN if it returned None."""
    total: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    env_state: Mapping[str, Any] = field(default_factory=dict)
    started_at: datetime = field(default_factory=utc_now)


class Written(NamedTuple):
    """A rollout that was recorded, and which ranges of the completion's ids are its steps."""

    id: str
    spans: Sequence[tuple[int, int]]

    def score(self, run: RunWriter, name: str, numbers: Sequence[float]) -> None:
        """Record a number for each of the completion's ids, as a score with their mean."""
        score_tokens(run, self.id, name, [list(numbers[start:end]) for start, end in self.spans], PRODUCER)


def write_rollout(
    run: RunWriter,
    place: BatchPosition,
    number: int,
    one: TrlCompletion,
    settings: Settings,
    error: BaseException | Failure | None = None,
) -> Written:
    """Record completion `number` of a batch as a rollout."""
    group, index = place.group_and_index(number)
    fields: RolloutFields = {
        "env": one.env, "task": _task(one), "group": group, "index": index, "split": place.split,
        "iteration": place.iteration, "policy": settings.policy, "policy_version": place.iteration,
        "task_data": {name: value for name, value in one.row.items() if name not in _NOT_TASK_DATA},
        "started_at": one.started_at,
    }  # fmt: skip
    recorder = run.rollout(**fields)
    spans: Sequence[tuple[int, int]] = ()
    try:
        if one.completion is None:
            recorder.send(one.prompt)
        else:
            spans = _Turns(one, settings).write(recorder)
    except BaseException as raised:
        recorder.end(error=raised if error is None else error)
        raise
    if error is None:
        stop_reason = _stop_reason(one, settings)
        by = StoppedBy.ENV if stop_reason is StopReason.COMPLETED else StoppedBy.RUNNER
        recorder.end(stop_reason, stopped_by=by)
    else:
        recorder.end(error=error)
    return Written(recorder.id, spans)


def _task(one: TrlCompletion) -> str | int:
    """The row's own id, or one that is made of the prompt."""
    own = one.row.get("id")
    if isinstance(own, str) or (isinstance(own, int) and not isinstance(own, bool)):
        return own
    return stable_id(one.prompt if isinstance(one.prompt, str) else json.dumps(one.prompt, sort_keys=True, default=str))


def messages_of(value: Any, role: str) -> list[Any]:
    """A prompt or a completion as messages; TRL has texts where the dataset has."""
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value)


class _Turns:
    """Splits a completion into the turns of the policy."""

    def __init__(self, one: TrlCompletion, settings: Settings) -> None:
        self._one = one
        self._settings = settings
        self._prompt = messages_of(one.prompt, "user")
        self._messages = messages_of(one.completion, "assistant")
        self._positions = [n for n, message in enumerate(self._messages) if message["role"] == "assistant"]
        self._spans = self._sampled_spans()

    def _sampled_spans(self) -> list[tuple[int, int]]:
        """The range of ids of each turn. Empty if they are unknown, or cannot be told apart."""
        ids, mask = self._one.ids, self._one.mask
        if ids is None:
            return []
        runs = sampled_ranges([1] * len(ids) if mask is None else mask)
        if len(runs) == len(self._positions):
            return runs
        return [(0, len(ids))] if len(self._positions) == 1 else []

    def write(self, recorder: RolloutRecorder) -> list[tuple[int, int]]:
        """Record each turn as a step, and the rewards as a grade; returns the ranges of ids of the steps."""
        for number, position in enumerate(self._positions):
            span = self._spans[number] if self._spans else None
            is_last = position == self._positions[-1]
            message = self._messages[position]
            ids = None if span is None or self._one.ids is None else self._one.ids[span[0] : span[1]]
            recorder.step(
                prompt=[*self._prompt, *self._messages[:position]],
                response=message,
                tools=self._one.tools,
                sampling=self._settings.sampling,
                termination=None if ids is None else self._termination(message, ids),
                tokens=None if span is None else self._tokens(span),
                raw=self._raw(message, ids),
                reward=None,
                extra=self._extra() if is_last else None,
                env_state=self._one.env_state if is_last else None,
            )
        self._grade(recorder)
        if self._messages and self._messages[-1]["role"] != "assistant":
            recorder.observe([*self._prompt, *self._messages])
        return self._spans

    def _tokens(self, span: tuple[int, int]) -> Tokens | None:
        one, (start, end) = self._one, span
        if one.prompt_ids is None or one.ids is None:
            return None
        logprobs = None if one.logprobs is None else one.logprobs[start:end]
        return Tokens(
            prompt=(*one.prompt_ids, *one.ids[:start]),
            response=tuple(one.ids[start:end]),
            logprobs=None if logprobs is None else tuple(math.nan if x is None else x for x in logprobs),
        )

    def _termination(self, message: Mapping[str, Any], ids: Sequence[int]) -> Termination:
        if not ids or ids[-1] not in self._settings.end_tokens:
            return Termination.LENGTH
        return Termination.TOOL_CALLS if message.get("tool_calls") else Termination.EOS

    def _raw(self, message: Mapping[str, Any], ids: Sequence[int] | None) -> str | None:
        if ids is None or self._settings.decode is None:
            return None
        raw = self._settings.decode(ids)
        return None if raw == message.get("content") else raw

    def _extra(self) -> dict[str, Any]:
        one = self._one
        if len(self._spans) == 1 and one.mask is not None and not all(one.mask):
            return {**one.extra, "env_tokens": sampled_ranges([1 - int(bit) for bit in one.mask])}
        return dict(one.extra)

    def _grade(self, recorder: RolloutRecorder) -> None:
        """Record the rewards, unless every function returned None."""
        given = zip(self._settings.reward_names, self._one.rewards, self._settings.reward_weights, strict=False)
        known = [(name, value, weight) for name, value, weight in given if not math.isnan(value)]
        if known and self._one.total is not None:
            recorder.grade(
                self._one.total,
                {name: value for name, value, _ in known},
                reward_weights={name: weight for name, _, weight in known},
            )


def unique_names(names: Sequence[str]) -> list[str]:
    """The names of reward functions; one that occurs again, such as a lambda's, gets a number."""
    unique: list[str] = []
    for name in names:
        count = 1
        while (numbered := name if count == 1 else f"{name}_{count}") in unique:
            count += 1
        unique.append(numbered)
    return unique


def _stop_reason(one: TrlCompletion, settings: Settings) -> StopReason:
    """Why TRL did not continue the completion."""
    last = messages_of(one.completion, "assistant")[-1]
    if one.ids is not None and (not one.ids or one.ids[-1] not in settings.end_tokens):
        return StopReason.MAX_TOKENS
    if not last.get("tool_calls") or not one.tools:
        return StopReason.COMPLETED
    turns = sum(message["role"] == "assistant" for message in one.completion)
    # If it was not the limit on turns, the results of the tools did not fit into the completion.
    return StopReason.MAX_TURNS if turns > settings.max_tool_turns else StopReason.MAX_TOKENS


def sampled_ranges(mask: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges where the mask is 1."""
    runs = []
    start = 0
    for bit, run in itertools.groupby(mask):
        end = start + len(list(run))
        if bit:
            runs.append((start, end))
        start = end
    return runs
