"""Records one rollout of a training loop of your own: prompts, responses and rewards."""

import contextlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from rolltrace.errors import InputError
from rolltrace.store.recorder_inputs import (
    RolloutFields,
    as_assistant,
    as_failure,
    as_messages,
    as_sampling,
    as_stopped_by,
    as_time,
    as_tools,
    as_usage,
    check_header,
    check_step_fields,
)
from rolltrace.trace.api_response import unpack_response
from rolltrace.trace.call import Call
from rolltrace.trace.codec import utc_now
from rolltrace.trace.coerce import with_non_numeric
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import Failure
from rolltrace.trace.freeform import describe
from rolltrace.trace.ids import new_id
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.rollout import EndedBeforeFirstTurn, Header, Outcome
from rolltrace.trace.score import Grade
from rolltrace.trace.sink import Sink
from rolltrace.trace.stop_reasons import Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens, Usage, usage_of

_current: ContextVar["RolloutRecorder | None"] = ContextVar("rolltrace_rollout", default=None)
_EMPTY: dict[str, Any] = {}
_NO_TOOLS: tuple[Any, ...] = ()
_REQUIRED: Any = object()


def current_rollout() -> "RolloutRecorder | None":
    """The rollout whose `with` block this code runs in; None outside of any, and in threads that were started in it."""
    recorder = _current.get()
    return None if recorder is None or recorder.has_ended else recorder


class RolloutRecorder:
    """One rollout that is being played in a loop of your own.

    As a context manager it ends with its block; an exception in the block is recorded as a failed rollout and raised
    again. Otherwise, call `end`. What is recorded after the end is dropped, and counted in the ledger. One thread at a
    time may use it.
    """

    def __init__(
        self,
        sink: Sink,
        header_fields: RolloutFields,
        records: bool,
        on_end: Callable[["RolloutRecorder"], object],
        on_late: Callable[[str], object],
    ) -> None:
        fields: dict[str, Any] = {**header_fields}
        fields.setdefault("id", new_id())
        fields.setdefault("started_at", utc_now())
        check_header(fields)
        header = Header(run=sink.run, session=sink.session, **fields)
        self.id: str = header.id
        """The id of the rollout, which scores refer to."""
        self._sink = sink
        self._records = records
        """Whether anything is recorded at all."""
        self._on_end = on_end
        self._on_late = on_late
        """Called with the name of a method that is called after the end."""
        self._rollout_builder = sink.begin(header)
        self._conversions = ConversionCache(self._rollout_builder.notes)
        self._policy_version = header.policy_version
        self._has_prompt = False
        self._is_ahead = False
        """Whether messages were added that the last complete history does not have."""
        self._has_reward = False
        self._early_reward = 0.0
        self._ended = False
        self._before_end: list[Callable[[], object]] = []
        self._outer: list[Token[RolloutRecorder | None]] = []
        """For each block that was entered, what was the current rollout before."""

    @property
    def has_ended(self) -> bool:
        """Whether the rollout has ended; what is recorded of it now is dropped."""
        return self._ended

    def append(self, messages: Sequence[Any] | Mapping[str, Any] | Message | str) -> None:
        """Add messages to the conversation: one or several, a text as a user's message.

        `step` adds the response by itself. If the first message is that response, it is not added twice.
        """
        if self._is_late("append"):
            return
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
        if self._is_late("step"):
            return
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
        if unpacked is not None:
            response = unpacked.message
            termination = unpacked.termination if termination is None else termination
            parse_error = unpacked.parse_error if parse_error is None else parse_error
            usage = unpacked.usage if usage is None else usage
            facts = {"api_response": unpacked.facts} if unpacked.facts else {}
            extra = with_non_numeric({} if extra is None else extra, facts)
        else:
            response = as_assistant(response)
        if usage is None and tokens is not None:
            usage = usage_of(tokens)
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
            tools=() if tool_list is _NO_TOOLS else self._conversions.convert_tools(tool_list),
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
        if self._is_late("send"):
            return
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
        if self._is_late("observe"):
            return
        history = as_messages(messages, "messages")
        if self._records:
            self._update_history(history, "messages")

    def grade(
        self,
        reward: float,
        reward_data: Mapping[str, Any] = _EMPTY,
        extra: Mapping[str, Any] = _EMPTY,
        *,
        reward_weights: Mapping[str, Any] = _EMPTY,
    ) -> None:
        """Record a grade of the whole rollout; its reward is added to those of the steps.

        `reward_weights` are the weights of the numbers in `reward_data`.
        """
        if self._is_late("grade"):
            return
        # The grade is encoded when it is set, so nothing is copied here.
        self._rollout_builder.grade = Grade(reward, reward_data, extra, reward_weights)  # type: ignore[arg-type]

    def end_before_first_turn(self, reward: float, **fields: Any) -> None:
        """Record what an env returned that was over before the first turn: the fields of `EndedBeforeFirstTurn`."""
        if self._is_late("end_before_first_turn"):
            return
        if unknown := [name for name in fields if name not in EndedBeforeFirstTurn.__struct_fields__]:
            raise InputError(f"Expected fields of EndedBeforeFirstTurn, got {', '.join(unknown)}.")
        if self._records:
            self._rollout_builder.end_before_first_turn(reward=reward, **fields)
        self._early_reward, self._has_reward = float(reward), True

    def metric(self, name: str, value: float) -> None:
        """Record a number about the whole rollout."""
        if self._is_late("metric"):
            return
        if not isinstance(name, str):
            raise InputError(f"Expected the name of a metric to be a str, got {describe(name)}.")
        number = as_number(value)  # a foreign scalar may change later
        self._rollout_builder.metrics[name] = value if number is None else number

    def call(
        self,
        prompt: Sequence[Any] | str,
        reply: Any = None,
        *,
        role: str = "grader",
        policy: str = "",
        step: int | None = None,
        about: str | None = None,
        error: BaseException | Failure | Mapping[str, Any] | None = None,
        usage: Usage | Mapping[str, Any] | None = None,
        seconds: float | None = None,
        raw: str | None = None,
        policy_version: int | str | None = None,
    ) -> None:
        """Record a model call that is not a turn of the policy, such as a judge's.

        `reply` is given as the response of a step is; None if there was none. `step` is the step during which the call
        was made, `about` its subject, such as a criterion.
        """
        if self._is_late("call"):
            return
        history, failure = as_messages(prompt, "prompt"), as_failure(error)
        unpacked = unpack_response(reply)
        if not self._records:
            return
        notes, path = self._rollout_builder.notes, f"calls[{len(self._rollout_builder.calls)}]"
        if unpacked is not None:
            reply, usage = unpacked.message, unpacked.usage if usage is None else usage
        self._rollout_builder.calls.append(
            Call(
                role=role,
                policy=policy,
                prompt=tuple(as_message(message, f"{path}.prompt", notes) for message in history),
                reply=None if reply is None else as_message(as_assistant(reply), f"{path}.reply", notes),
                step=step,
                policy_version=policy_version,
                raw=raw,
                error=failure,
                usage=as_usage(usage, notes),
                seconds=seconds,
                about=about,
                termination=None if unpacked is None else unpacked.termination,
            )
        )

    def attach_tokens(self, step: int, tokens: Tokens) -> None:
        """Record the tokens of a step that was recorded without, such as log-probabilities that come later.

        Attached in the order of the steps, they take the least space. If the step has no `usage`, it gets theirs.
        """
        if self._is_late("attach_tokens") or not self._records:
            return
        steps = range(len(self._rollout_builder.rewards))
        try:
            self._rollout_builder.attach_tokens(steps.index(operator.index(step)), tokens)
        except TypeError:
            raise InputError(f"Expected step= to be a whole number, got {describe(step)}.") from None
        except ValueError as error:
            raise InputError(f"Expected step= to be one of {len(steps)} steps without tokens: {error}.") from error

    def call_before_end(self, action: Callable[[], object]) -> None:
        """Call this when the rollout is about to end, for example to record what is not complete."""
        self._before_end.append(action)

    def end(
        self,
        stop_reason: str = StopReason.COMPLETED,
        *,
        stopped_by: StoppedBy | str = StoppedBy.ENV,
        pending: bool = False,
        error: BaseException | Failure | Mapping[str, Any] | None = None,
        ended_at: datetime | None = None,
    ) -> None:
        """End the rollout; further calls do nothing.

        With `pending`, or if neither a step nor a grader gave a reward, the rollout has no total until
        `run.score(id, "reward", total)`. `error` is an exception, a `Failure`, or a mapping of its fields: `type`,
        `message`, and perhaps `traceback` and `layer`. `ended_at` is the time, if that is not now.
        """
        if self._ended:
            return
        while self._before_end:
            with contextlib.suppress(Exception):
                self._before_end.pop()()
        outcome = self._outcome(stop_reason, as_stopped_by(stopped_by), pending, error, as_time("ended_at", ended_at))
        if self._records:
            self._sink.end(self._rollout_builder, outcome)
        self._ended = True
        self._on_end(self)

    def record_cancelled(self) -> None:
        """End the rollout as cancelled, because the process ends."""
        self.end(error=SystemExit())

    def __enter__(self) -> Self:
        self._outer.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outer:
            with contextlib.suppress(ValueError):  # the block was entered in another context: a generator's
                _current.reset(self._outer.pop())
        try:
            self.end(error=error)
        finally:
            self.end(error=error)  # if the first was interrupted, by Ctrl-C or a signal handler that raises

    def _outcome(
        self, stop_reason: str, stopped_by: StoppedBy, pending: bool, error: Any, ended_at: datetime | None
    ) -> Outcome:
        grade = self._rollout_builder.grade
        so_far = self._early_reward + sum(self._rollout_builder.rewards) + (0.0 if grade is None else grade.reward)
        has_reward = self._has_reward or grade is not None
        status = Status.OK
        if error is not None:
            failed = isinstance(error, Exception) or not isinstance(error, BaseException)
            status, stop_reason = (Status.ERROR, "error") if failed else (Status.CANCELLED, "cancelled")
            stopped_by = StoppedBy.RUNNER
        return Outcome(
            ended_at=utc_now() if ended_at is None else ended_at,
            status=status,
            stop_reason=stop_reason,
            stopped_by=stopped_by,
            error=as_failure(error) if status is Status.ERROR else None,
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

    def _is_late(self, method: str) -> bool:
        """Whether the rollout has ended; then the call of this method is counted."""
        if self._ended:
            self._on_late(method)
        return self._ended
