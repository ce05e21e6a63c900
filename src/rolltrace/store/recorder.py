"""Records one rollout of a training loop of your own: prompts, responses and rewards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Required, Self, TypedDict

from rolltrace.errors import InputError
from rolltrace.store.recorder_inputs import (
    as_messages,
    as_sampling,
    as_stopped_by,
    as_tools,
    as_usage,
    check_header,
    check_step_fields,
    copy_or_unique,
    is_identical_value,
)
from rolltrace.trace.api_response import unpack_response
from rolltrace.trace.codec import utc_now
from rolltrace.trace.coerce import with_non_numeric
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.failure import failure_of
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import new_id
from rolltrace.trace.score import Grade
from rolltrace.trace.sink import Sink
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens, Usage

_EMPTY: dict[str, Any] = {}
_NO_TOOLS: tuple[Any, ...] = ()
_REQUIRED: Any = object()


class RolloutFields(TypedDict, total=False):
    """The fields of a rollout that are known when it starts, named as in the record."""

    env: Required[str]
    task: Required[str | int]
    """A whole number is recorded as its digits."""
    group: Required[str | int]
    """As `task`."""
    index: Required[int | None]
    id: str
    """Unique everywhere; by default a new one is generated."""
    split: str
    iteration: int
    attempt: int
    episode: int | None
    seat: int | None
    seed: int | None
    env_args: Mapping[str, Any]
    task_data: Mapping[str, Any]
    policy: str
    policy_version: int | str | None
    tags: Sequence[str]
    started_at: datetime


class RolloutRecorder:
    """One rollout that is being played in a loop of your own.

    As a context manager it ends with its block; an exception in the block is recorded as a failed rollout and raised
    again. Otherwise, call `end`. One thread at a time may use it.
    """

    def __init__(
        self, sink: Sink, header_fields: RolloutFields, records: bool, on_end: Callable[["RolloutRecorder"], object]
    ) -> None:
        fields: dict[str, Any] = {**header_fields}
        for name in ("env", "task", "group", "index"):
            if name not in fields:
                raise InputError(
                    f"Expected {name}= of the rollout, got nothing: pass {name}=, which identifies the rollout."
                )
        fields.setdefault("id", new_id())
        fields.setdefault("started_at", utc_now())
        check_header(fields)
        try:
            header = Header(run=sink.run, session=sink.session, **fields)
        except TypeError as error:
            raise InputError(f"Expected only fields of a rollout's header: {error}.") from error
        self.id: str = header.id
        """The id of the rollout, which scores refer to."""
        self._sink = sink
        self._records = records
        """Whether anything is recorded at all."""
        self._on_end = on_end
        self._rollout_builder = sink.begin(header)
        self._conversions = ConversionCache(self._rollout_builder.notes)
        self._policy_version = header.policy_version
        self._tools: tuple[ToolSpec, ...] = ()
        self._last_tools: Any = ()
        self._has_prompt = False
        self._is_ahead = False
        """Whether messages were added that the last complete history does not have."""
        self._has_reward = False
        self._ended = False

    def append(self, messages: Sequence[Any] | Mapping[str, Any] | Message | str) -> None:
        """Add messages to the conversation: one or several, a text as a user's message.

        `step` adds the response by itself. If the first message is that response, it is not added twice.
        """
        self._refuse_if_ended()
        new = (messages,) if isinstance(messages, Mapping | Message) else as_messages(messages, "messages")
        added = [as_message(message, "messages", self._rollout_builder.notes) for message in new]
        self._has_prompt = self._has_prompt or bool(added)
        if self._records and added:
            self._is_ahead = True
            self._rollout_builder.extend(added[1:] if self._rollout_builder.is_open_response(added[0]) else added)

    def step(
        self,
        prompt: Sequence[Any] | str | None = None,
        response: Any = _REQUIRED,
        reward: float | None = 0.0,
        *,
        reward_data: Mapping[str, Any] | None = None,
        env_state: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        logs: Mapping[str, Any] | None = None,
        tools: Sequence[Any] = _NO_TOOLS,
        sampling: Sampling | Mapping[str, Any] | None = None,
        termination: Termination | str | None = None,
        parse_error: str | None = None,
        raw: str | None = None,
        policy_version: int | str | None = None,
        usage: Usage | Mapping[str, Any] | None = None,
        seconds: float | None = None,
        tokens: Tokens | None = None,
        reward_weights: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Record one turn: the whole prompt as it was sent, the response, and its reward.

        Without `prompt`, the prompt is the conversation so far: what `append` and earlier steps have added.
        Messages are chat dicts, API objects or `Message`; later changes to them do not change the record. A prompt that
        is a text becomes a user's message, and a response that is a text an assistant's. A whole API response is
        unpacked: message, usage and finish reason. `reward=None` means that the turn has no reward yet.
        `reward_weights` are the weights of the numbers in `reward_data`. Other fields of `Step` can be given by name.
        """
        self._refuse_if_ended()
        if fields:
            check_step_fields(fields)
        if response is _REQUIRED:
            raise InputError("Expected response=, got nothing: pass the policy's answer.")
        tool_list = _NO_TOOLS if tools is _NO_TOOLS else as_tools(tools)
        unpacked = None if type(response) is dict and "role" in response else unpack_response(response)
        self.send(prompt)
        if not self._records:
            return
        rollout_builder = self._rollout_builder
        if isinstance(response, str):
            response = {"role": "assistant", "content": response}
        elif unpacked is not None:
            response = unpacked.message
            termination = unpacked.termination if termination is None else termination
            parse_error = unpacked.parse_error if parse_error is None else parse_error
            usage = unpacked.usage if usage is None else usage
            extra = with_non_numeric(
                {} if extra is None else extra, {"api_response": unpacked.facts} if unpacked.facts else {}
            )
        elif response is None or (isinstance(response, Mapping) and "role" not in response):
            response = {"content": "", **(response or {}), "role": "assistant"}
        self._has_reward = self._has_reward or reward is not None
        rollout_builder.step(
            self._conversions.convert_response(response),
            reward=0.0 if reward is None else reward,
            env_reward=reward,
            reward_data=reward_data,
            env_state=env_state,
            extra=extra,
            metrics=metrics,
            logs=logs,
            tools=() if tool_list is _NO_TOOLS else self._frozen_tools(tool_list),
            sampling=as_sampling(sampling, rollout_builder.notes),
            termination=termination,  # type: ignore[arg-type]
            parse_error=parse_error,
            raw=raw,
            policy_version=self._policy_version if policy_version is None else policy_version,
            usage=as_usage(usage, rollout_builder.notes),
            seconds=seconds,
            tokens=tokens,
            reward_weights=reward_weights,
            fields=fields,
        )

    def send(self, prompt: Sequence[Any] | str | None = None) -> None:
        """Record the prompt that is being sent now, before there is an answer. `step` does this if you did not.

        Without `prompt`, the prompt is the conversation so far.
        """
        self._refuse_if_ended()
        if prompt is None and not self._has_prompt:
            raise InputError("Expected prompt=, or messages added with `append` before, got neither.")
        self._has_prompt = True
        history = None if prompt is None else as_messages(prompt, "prompt")
        if self._records:
            if history is None:
                self._is_ahead = True
                self._rollout_builder.extend(())
            else:
                self._update_history(history, "prompt")
            self._rollout_builder.mark_prompt_sent()

    def observe(self, messages: Sequence[Any]) -> None:
        """Record the conversation after the last step, including the response, if no other prompt will follow."""
        self._refuse_if_ended()
        history = as_messages(messages, "messages")
        if self._records:
            self._update_history(history, "messages")

    def grade(self, reward: float, reward_data: Mapping[str, Any] = _EMPTY, extra: Mapping[str, Any] = _EMPTY) -> None:
        """Record a grade of the whole rollout; its reward is added to those of the steps."""
        self._refuse_if_ended()
        # The grade is encoded when it is set, so nothing is copied here.
        self._rollout_builder.grade = Grade(reward, reward_data, extra)  # type: ignore[arg-type]

    def metric(self, name: str, value: float) -> None:
        """Record a number about the whole rollout."""
        self._refuse_if_ended()
        number = as_number(value)  # a foreign scalar may change later
        self._rollout_builder.metrics[name] = value if number is None else number

    def end(
        self,
        stop_reason: str = StopReason.COMPLETED,
        *,
        stopped_by: StoppedBy | str = StoppedBy.ENV,
        pending: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """End the rollout; further calls do nothing.

        With `pending`, or if neither a step nor a grader gave a reward, the rollout has no total until
        `run.score(id, "reward", total)`.
        """
        if self._ended:
            return
        outcome = self._outcome(stop_reason, as_stopped_by(stopped_by), pending, error)
        if self._records:
            self._sink.end(self._rollout_builder, outcome)
        self._ended = True
        self._on_end(self)

    def record_cancelled(self) -> None:
        """End the rollout as cancelled, because the process ends."""
        self.end(error=SystemExit())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end(error=error)
        finally:
            self.end(error=error)  # if the first was interrupted, by Ctrl-C or a signal handler that raises

    def _outcome(self, stop_reason: str, stopped_by: StoppedBy, pending: bool, error: BaseException | None) -> Outcome:
        grade = self._rollout_builder.grade
        so_far = float(sum(self._rollout_builder.rewards)) + (0.0 if grade is None else grade.reward)
        has_reward = self._has_reward or grade is not None
        status = Status.OK
        if error is not None:
            failed = isinstance(error, Exception)
            status, stop_reason = (Status.ERROR, "error") if failed else (Status.CANCELLED, "cancelled")
            stopped_by = StoppedBy.RUNNER
        return Outcome(
            ended_at=utc_now(),
            status=status,
            stop_reason=stop_reason,
            stopped_by=stopped_by,
            error=failure_of(Layer.CALLER, error) if error is not None and status is Status.ERROR else None,
            reward=so_far if status is Status.OK and has_reward and not pending else None,
            reward_so_far=so_far,
            unclamped_reward=None,
        )

    def _update_history(self, history: Iterable[Any], path: str) -> None:
        appended = None if self._is_ahead else self._conversions.convert_appended(history, path)
        self._is_ahead = False
        if appended is None:
            self._rollout_builder.replace(self._conversions.convert(history, path))
        else:
            self._rollout_builder.append_history(appended)

    def _frozen_tools(self, tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
        """Convert the tools, unless they are equal to those of the step before."""
        if not is_identical_value(tools, self._last_tools):
            self._tools = tuple(as_tool(tool, "tools", self._rollout_builder.notes) for tool in tools)
            self._last_tools = copy_or_unique(tools)
        return self._tools

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InputError(f"Expected a rollout that is being recorded, got {self.id}, which has ended.")
