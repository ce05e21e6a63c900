"""Records one rollout of a loop that is not ours: what was sent, what came back, and the numbers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Required, Self, TypedDict

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
from rolltrace.trace.coerce import coerce_grade, with_non_numeric
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.failure import failure_of
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.rollout import Grade, Header, Outcome, Tokens, Usage
from rolltrace.trace.rollout_builder import new_id
from rolltrace.trace.sink import Sink
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason, Termination

_EMPTY: dict[str, Any] = {}
_NO_TOOLS: tuple[Any, ...] = ()
_REQUIRED: Any = object()


class RolloutFields(TypedDict, total=False):
    """What is known of a rollout when it starts: fields of the record, of the same names."""

    env: Required[str]
    task: Required[str | int]
    """A whole number is recorded as its digits."""
    group: Required[str | int]
    """As `task`."""
    index: Required[int | None]
    id: str
    """Made anew where it is not given; it must be unique everywhere."""
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


class RecorderSink(Sink, Protocol):
    """Who keeps the rollout."""

    @property
    def records(self) -> bool:
        """Whether anything is recorded at all."""
        ...

    def on_recorder_end(self, recorder: "RolloutRecorder") -> None:
        """Note that a recorder's rollout has ended."""
        ...


class RolloutRecorder:
    """One rollout while it is being played elsewhere.

    As a context it ends with its block; an exception in the block is recorded as a failed rollout and raised again.
    Without one, call `end`. One thread at a time may use it.
    """

    def __init__(self, keeper: RecorderSink, about: RolloutFields) -> None:
        fields: dict[str, Any] = {**about}
        for name in ("env", "task", "group", "index"):
            if name not in fields:
                raise InputError(f"Expected {name}= of the rollout, got none: a record must say which rollout it is.")
        fields.setdefault("id", new_id())
        fields.setdefault("started_at", utc_now())
        check_header(fields)
        try:
            header = Header(run=keeper.run, session=keeper.session, **fields)
        except TypeError as error:
            raise InputError(f"Expected fields of a rollout's header, got others: {error}.") from error
        self.id: str = header.id
        """What scores name the rollout by."""
        self._keeper = keeper
        self._rollout_builder = keeper.begin(header)
        self._freezer = ConversionCache(self._rollout_builder.notes)
        self._policy_version = header.policy_version
        self._tools: tuple[ToolSpec, ...] = ()
        self._tools_seen: Any = ()
        self._has_prompt = False
        self._is_ahead = False
        """Whether the conversation has messages that the last whole history lacks."""
        self._has_reward = False
        self._ended = False

    def append(self, messages: Sequence[Any] | Mapping[str, Any] | Message | str) -> None:
        """Add messages to the conversation: one or several, a text as a user's message.

        `step` adds the response by itself. If the first message is that response, it is not added twice.
        """
        self._refuse_if_ended()
        listed = (messages,) if isinstance(messages, Mapping | Message) else as_messages(messages, "messages")
        added = [as_message(message, "messages", self._rollout_builder.notes) for message in listed]
        self._has_prompt = self._has_prompt or bool(added)
        if self._keeper.records and added:
            self._is_ahead = True
            self._rollout_builder.extend(added[1:] if self._rollout_builder.is_open_response(added[0]) else added)

    def step(
        self,
        prompt: Sequence[Any] | str | None = None,
        response: Any = _REQUIRED,
        reward: float | None = 0.0,
        *,
        reward_data: Mapping[str, Any] = _EMPTY,
        env_state: Mapping[str, Any] = _EMPTY,
        extra: Mapping[str, Any] = _EMPTY,
        metrics: Mapping[str, Any] = _EMPTY,
        logs: Mapping[str, Any] = _EMPTY,
        tools: Sequence[Any] = _NO_TOOLS,
        sampling: Sampling | Mapping[str, Any] | None = None,
        termination: Termination | str | None = None,
        parse_error: str | None = None,
        raw: str | None = None,
        policy_version: int | str | None = None,
        usage: Usage | Mapping[str, Any] | None = None,
        seconds: float | None = None,
        tokens: Tokens | None = None,
        reward_weights: Mapping[str, Any] = _EMPTY,
        **fields: Any,
    ) -> None:
        """Record one turn: the whole prompt as it was sent, what came back, and what it earned.

        Without `prompt`, the prompt is the conversation so far: what `append` and earlier steps have added.
        Messages are chat dicts, API objects or `Message`. All is recorded as it is now, whatever becomes of it later.
        A prompt that is a text is taken for a user's message, a response that is one for an assistant's. A whole API
        response is unpacked: message, usage and how it ended. `reward=None` says that the turn has no reward yet.
        `reward_weights` are the weights of the numbers of `reward_data`. Other fields of `Step` can be given by name.
        """
        self._refuse_if_ended()
        check_step_fields(fields)
        if response is _REQUIRED:
            raise InputError("Expected response=, what the policy answered, got none.")
        offered = _NO_TOOLS if tools is _NO_TOOLS else as_tools(tools)
        unpacked = None if type(response) is dict and "role" in response else unpack_response(response)
        self.send(prompt)
        if not self._keeper.records:
            return
        rollout_builder = self._rollout_builder
        if isinstance(response, str):
            response = {"role": "assistant", "content": response}
        elif unpacked is not None:
            response = unpacked.message
            termination = unpacked.termination if termination is None else termination
            parse_error = unpacked.parse_error if parse_error is None else parse_error
            usage = unpacked.usage if usage is None else usage
            extra = with_non_numeric(extra, {"api_response": unpacked.facts} if unpacked.facts else {})
        elif response is None or (isinstance(response, Mapping) and "role" not in response):
            response = {"content": "", **(response or {}), "role": "assistant"}
        self._has_reward = self._has_reward or reward is not None
        rollout_builder.step(
            self._freezer.convert_response(response),
            reward=0.0 if reward is None else reward,
            env_reward=reward,
            reward_data=reward_data,
            env_state=env_state,
            extra=extra,
            metrics=metrics,
            logs=logs,
            tools=() if offered is _NO_TOOLS else self._frozen_tools(offered),
            sampling=as_sampling(sampling, rollout_builder.notes),
            termination=termination,  # type: ignore[arg-type]
            parse_error=parse_error,
            raw=raw,
            policy_version=self._policy_version if policy_version is None else policy_version,
            usage=as_usage(usage, rollout_builder.notes),
            seconds=seconds,
            tokens=tokens,
            reward_weights=reward_weights,
            **fields,
        )

    def send(self, prompt: Sequence[Any] | str | None = None) -> None:
        """Record what is being sent now, before there is an answer; `step` does it where this was not called.

        Without `prompt`, that is the conversation so far.
        """
        self._refuse_if_ended()
        if prompt is None and not self._has_prompt:
            raise InputError("Expected prompt=, or messages from `append` before it, got neither.")
        self._has_prompt = True
        listed = None if prompt is None else as_messages(prompt, "prompt")
        if self._keeper.records:
            if listed is None:
                self._is_ahead = True
                self._rollout_builder.extend(())
            else:
                self._take_in(listed, "prompt")
            self._rollout_builder.mark_prompt_sent()

    def observe(self, messages: Sequence[Any]) -> None:
        """Record the conversation as it stands after the last step, the response included: no prompt will follow."""
        self._refuse_if_ended()
        listed = as_messages(messages, "messages")
        if self._keeper.records:
            self._take_in(listed, "messages")

    def grade(self, reward: float, reward_data: Mapping[str, Any] = _EMPTY, extra: Mapping[str, Any] = _EMPTY) -> None:
        """Record what a grader says of the rollout as a whole; its reward is added to those of the steps."""
        self._refuse_if_ended()
        # What the grade holds is encoded when it is set, so nothing of it is copied here.
        grade = Grade(reward, reward_data, extra)  # type: ignore[arg-type]
        self._rollout_builder.grade = coerce_grade(grade, "grade", self._rollout_builder.notes)

    def metric(self, name: str, value: float) -> None:
        """Record a number about the rollout as a whole."""
        self._refuse_if_ended()
        self._rollout_builder.metrics[name] = value

    def end(
        self,
        stop_reason: str = StopReason.COMPLETED,
        *,
        stopped_by: StoppedBy | str = StoppedBy.ENV,
        pending: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """End the rollout; further calls do nothing.

        With `pending`, and where neither a step nor a grader gave a reward, the total is left open until
        `run.score(id, "reward", total)`.
        """
        if self._ended:
            return
        outcome = self._outcome(stop_reason, as_stopped_by(stopped_by), pending, error)
        if self._keeper.records:
            self._keeper.end(self._rollout_builder, outcome)
        self._ended = True
        self._keeper.on_recorder_end(self)

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

    def _take_in(self, history: Iterable[Any], path: str) -> None:
        grown = None if self._is_ahead else self._freezer.convert_appended(history, path)
        self._is_ahead = False
        if grown is None:
            self._rollout_builder.replace(self._freezer.convert(history, path))
        else:
            self._rollout_builder.append_history(grown)

    def _frozen_tools(self, tools: Iterable[Any]) -> tuple[ToolSpec, ...]:
        """The tools as they are now; those that are the same as at the step before are compared, not converted."""
        if not is_identical_value(tools, self._tools_seen):
            self._tools = tuple(as_tool(tool, "tools", self._rollout_builder.notes) for tool in tools)
            self._tools_seen = copy_or_unique(tools)
        return self._tools

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise InputError(f"Expected a rollout that is being recorded, got {self.id}, which has ended.")
