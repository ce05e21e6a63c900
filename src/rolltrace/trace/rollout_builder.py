"""A rollout while it is being played: each fact is frozen the moment it is known, and encoded once."""

import os
import random
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rolltrace.secret_redaction import redact_mapping
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import add_checksum, decode_rollout, wire_call, wire_grade, wire_sampling, wire_tokens
from rolltrace.trace.coerce import (
    coerce_call,
    coerce_float,
    coerce_grade,
    coerce_header,
    coerce_numbers,
    coerce_policy_version,
    coerce_reward,
    coerce_sampling,
    coerce_seconds,
    coerce_termination,
    coerce_text,
    coerce_time,
    coerce_tokens,
    coerce_usage,
    is_encodable_header,
    is_encodable_sampling,
    matching_char_lengths,
    with_non_numeric,
)  # fmt: skip
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.freeform import Note, as_text, describe, to_json_mapping
from rolltrace.trace.json_numbers import json_number, json_numbers
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.message_table import MessageTable
from rolltrace.trace.quote import TextSource
from rolltrace.trace.quote_search import add_quotes
from rolltrace.trace.rollout import Call, Grade, Header, Outcome, Range, Rollout, Tokens, Usage
from rolltrace.trace.step_fields import (
    ConversationFields,
    OutcomeFields,
    StepFields,
    TrailingFields,
    is_encodable_numbers,
    is_encodable_outcome,
    is_encodable_step,
)
from rolltrace.trace.stop_reasons import EnvFailure, Termination
from rolltrace.trace.strict_json import encode_lossy, json_encoder

_EMPTY: dict[str, Any] = {}
_NOTHING = msgspec.Raw(b"{}")
_NO_REST = json_encoder.encode(TrailingFields([], {}, []))[1:]


_rng = random.Random()  # noqa: S311 - ids are unique, not secret; the system's own chance is slow to ask
os.register_at_fork(after_in_child=_rng.seed)


def new_id() -> str:
    """An id that is unique everywhere and sorts by time."""
    return f"{time.time_ns() // 1_000_000:012x}{_rng.getrandbits(80):020x}"


class EncodedRecord(msgspec.Struct, frozen=True):
    """A finished rollout, ready to be written."""

    id: str
    data: bytes
    """One line, with its checksum and line feed."""
    blobs: tuple[Blob, ...] = ()
    """The bytes that its messages carry."""


class _EncodedBody(NamedTuple):
    """What a finished line says of the conversation and its steps."""

    data: memoryview
    """The fields from `messages` to `pending_raw`."""
    notes: list[Note]
    """What happened to them when they were encoded."""


class RolloutBuilder:
    """Collects one rollout and encodes it.

    Messages are taken as they are: whoever hands them in has made them sound with `as_message`. The last step stays
    open until the next prompt is known: only then is it clear whether that prompt holds the policy's own message, and
    a limit may still replace the step's reward.
    """

    def __init__(self, header: Header, *, keeps_tokens: bool = True) -> None:
        self.header = header
        self.id = header.id
        self.ledger_key: tuple[str, str] | None = None
        """The session that began it, and the key by which that knows it."""
        self.conversation = MessageTable()
        self.notes: list[Note] = []
        self.calls: list[Call] = []
        self.metrics: dict[str, Any] = {}
        """Numbers about the rollout as a whole."""
        self.keeps_tokens = keeps_tokens
        """Whether token ids and log-probabilities are wanted."""
        self.recorded_text: TextSource | None = None
        """Its text as a writer recorded it, where the group's grader will be asked about it."""
        self._token_ids: tuple[int, ...] = ()
        """Of the step before, its prompt and its response."""
        self._ended_before_first_turn: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        self._grade: Grade | None = None
        self._grade_json: msgspec.Raw | None = None
        self._steps: list[StepFields] = []
        self._rewards: list[float] = []
        self._open_response: Message | None = None
        self._tools: dict[tuple[ToolSpec, ...], int] = {}
        self._last_tools: tuple[ToolSpec, ...] | None = None
        self._last_tools_at: int | None = None
        self._sampling: dict[Sampling, int] = {}
        self._last_sampling: Sampling | None = None
        self._last_sampling_at: int | None = None
        self._sent: tuple[Range, ...] | None = None
        self._came_back: str | None = None
        self._body: _EncodedBody | None = None
        self._head = self._encode_header(header)

    # What the policy sees

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The conversation as it stands."""
        return tuple(self.conversation.prompt)

    def extend(self, messages: Sequence[Message]) -> None:
        """Add these, frozen as they are, after the policy's own message where that is not yet in."""
        self._body = None
        if self._open_response is not None:
            self._place_response(self.conversation.extend([self._open_response, *messages]))
        elif messages:
            self.conversation.extend(messages)

    def replace(self, messages: Sequence[Message]) -> None:
        """Make these the whole conversation."""
        self._body = None
        self._place_response(self.conversation.replace(messages, self._open_response))

    def append_history(self, messages: Sequence[Message]) -> None:
        """Go on with these, where the policy's own message is the first of them, or is gone."""
        if self._open_response is None:
            self.extend(messages)
        elif messages and messages[0] == self._open_response:
            self.extend(messages[1:])
        else:
            self.replace([*self.conversation.prompt, *messages])

    def is_open_response(self, message: Message) -> bool:
        """Whether it is the last step's response, which the conversation does not hold yet."""
        return message == self._open_response

    def mark_prompt_sent(self) -> None:
        """Note that the conversation as it stands goes to the policy now."""
        self._body = None
        self._sent = self.conversation.ranges
        self._came_back = None

    def set_raw_response(self, raw: str | None) -> None:
        """Note what the policy answered, before anything is made of it."""
        self._body = None
        self._came_back = raw

    # What happened

    def step(
        self,
        response: Message,
        *,
        reward: float,
        env_reward: float | None = None,
        reward_data: Mapping[str, Any] = _EMPTY,
        env_state: Mapping[str, Any] = _EMPTY,
        extra: Mapping[str, Any] = _EMPTY,
        metrics: Mapping[str, Any] = _EMPTY,
        logs: Mapping[str, Any] = _EMPTY,
        tools: tuple[ToolSpec, ...] = (),
        sampling: Sampling | None = None,
        termination: Termination | None = None,
        parse_error: str | None = None,
        raw: str | None = None,
        policy_version: int | str | None = None,
        usage: Usage | None = None,
        seconds: float | None = None,
        tokens: Tokens | None = None,
        reward_weights: Mapping[str, Any] = _EMPTY,
    ) -> None:
        """Add the turn that answered what was last sent."""
        if self._open_response is not None:
            self.extend(())
        self._body = None
        if type(response) is not Message:
            response = as_message(response, self._at("response"), self.notes)
        non_numeric: dict[str, Any] = {}
        row = StepFields(
            len(self._steps),
            self.conversation.ranges if self._sent is None else self._sent,
            response,
            self._tools_index(tools) if tools else None,
            None if sampling is None else self._sampling_index(sampling),
            reward,
            env_reward,
            self._numbers(reward_data, "reward_data", non_numeric) if reward_data is not _EMPTY else _NOTHING,
            self._free_form(env_state, "env_state") if env_state is not _EMPTY else _NOTHING,
            _NOTHING,
            self._numbers(metrics, "metrics", non_numeric) if metrics is not _EMPTY else _NOTHING,
            self._free_form(logs, "logs") if logs is not _EMPTY else _NOTHING,
            termination,
            parse_error,
            raw,
            policy_version,
            usage,
            seconds,
            None if tokens is None or not self.keeps_tokens else self._encoded_tokens(tokens, response, raw),
        )
        if reward_weights is not _EMPTY and (weights := self._numbers(reward_weights, "reward_weights", non_numeric)):
            row.reward_weights = weights
        if not is_encodable_step(reward, env_reward, seconds, termination, parse_error, raw, policy_version, usage):
            reward = self._make_sound(row, non_numeric)
        if non_numeric or extra is not _EMPTY:
            row.extra = self._free_form(with_non_numeric(extra, non_numeric), "extra")
        self._steps.append(row)
        self._rewards.append(reward)
        self._open_response = response
        self._sent = self._came_back = None
        if tokens is None:
            self._token_ids = ()

    def end_before_first_turn(
        self,
        *,
        reward: float,
        reward_data: Mapping[str, Any] = _EMPTY,
        env_state: Mapping[str, Any] = _EMPTY,
        extra: Mapping[str, Any] = _EMPTY,
        metrics: Mapping[str, Any] = _EMPTY,
        logs: Mapping[str, Any] = _EMPTY,
    ) -> None:
        """Note what the env told where the policy has no turn; frozen at once, as a step is."""
        non_numeric: dict[str, Any] = {}
        numbers = {
            name: json_numbers(coerce_numbers(given, "ended_before_first_turn", name, non_numeric, self.notes))
            for name, given in (("reward_data", reward_data), ("metrics", metrics))
        }
        worth = json_number(coerce_reward(reward, "ended_before_first_turn", non_numeric, self.notes))
        self._ended_before_first_turn = self._encoded(
            {
                "reward": worth,
                "reward_data": numbers["reward_data"],
                "env_state": to_json_mapping(env_state, "ended_before_first_turn.env_state", self.notes),
                "extra": to_json_mapping(
                    with_non_numeric(extra, non_numeric), "ended_before_first_turn.extra", self.notes
                ),
                "metrics": numbers["metrics"],
                "logs": to_json_mapping(logs, "ended_before_first_turn.logs", self.notes),
            }
        )

    def replace_last_reward(self, reward: float) -> None:
        """Let a limit charge the last step; what the env gave stays in `env_reward`."""
        self._body = None
        self._rewards[-1] = float(reward)
        self._steps[-1].reward = json_number(self._rewards[-1])

    def set_env_failure(self, failure: EnvFailure) -> None:
        """Record why the env did not finish the last step."""
        self._body = None
        self._steps[-1].env_failure = failure

    @property
    def rewards(self) -> Sequence[float]:
        """The reward of each step so far."""
        return self._rewards

    @property
    def grade(self) -> Grade | None:
        """What the rollout's own grader said; frozen when it is set."""
        return self._grade

    @grade.setter
    def grade(self, grade: Grade | None) -> None:
        self._grade = grade
        self._grade_json = None
        if grade is not None:
            sound = coerce_grade(grade, "grade", self.notes)
            free_form = self._encoded(to_json_mapping(sound.extra, "grade.extra", self.notes))
            self._grade_json = self._encoded({**wire_grade(Grade(sound.reward, sound.reward_data)), "extra": free_form})

    def add_note(self, path: str, message: str) -> None:
        """Say something about the record itself."""
        self.notes.append(Note(path, message))

    # The end

    def encode(self, outcome: Outcome, *, calls: bool = True) -> EncodedRecord:
        """The rollout as a line, with its calls or without.

        What was encoded for an earlier line, and has not changed, is not encoded again.
        """
        if self._open_response is not None:
            self.extend(())
        body = self._encoded_body() if self._body is None else self._body
        notes = [*self.notes, *body.notes]
        made = [coerce_call(call, f"calls[{number}]", notes) for number, call in enumerate(self.calls if calls else ())]
        ending = _encode(self._ending(outcome, notes), notes)
        rest = self._encoded_rest(add_quotes(made, [self.text_source]) if made else made, notes)
        line = add_checksum(self._head, b",", ending[1:-1], b",", body.data, b",", rest)
        return EncodedRecord(self.id, line, self._blobs(made))

    @property
    def text_source(self) -> TextSource:
        """The text that its own calls can quote."""
        inline = {row.step: row.response for row in self._steps if type(row.response) is Message}
        return TextSource(None, self.conversation.messages, inline)

    def build(self, outcome: Outcome) -> Rollout:
        """The rollout with this outcome, decoded afresh: whoever is handed it can change nothing of the record."""
        return decode_rollout(self.encode(outcome).data)

    def _ending(self, outcome: Outcome, notes: list[Note]) -> OutcomeFields:
        ending = OutcomeFields(
            outcome["ended_at"],
            outcome["status"],
            outcome["stop_reason"],
            outcome["stopped_by"],
            outcome["error"],
            outcome["reward"],
            outcome["reward_so_far"],
            outcome["unclamped_reward"],
            self._grade_json,
        )
        if not is_encodable_outcome(outcome):
            ending.ended_at = coerce_time(ending.ended_at)
            ending.stop_reason = as_text(ending.stop_reason, "stop_reason", notes)
            ending.reward = json_number(coerce_float(ending.reward, "reward", notes))
            ending.reward_so_far = json_number(coerce_reward(ending.reward_so_far, "", {}, notes))
            ending.unclamped_reward = json_number(coerce_float(ending.unclamped_reward, "unclamped_reward", notes))
        if ending.ended_at < coerce_time(self.header.started_at):
            notes.append(Note("ended_at", "before started_at, because the clock was set back: seconds counts as 0"))
        return ending

    def _encoded_rest(self, calls: Sequence[Call], notes: list[Note]) -> bytes:
        if not (calls or notes or self.metrics or self._ended_before_first_turn):
            return _NO_REST
        rest = TrailingFields(
            [wire_call(call) for call in calls], self._rollout_metrics(notes), notes, self._ended_before_first_turn
        )
        return _encode(rest, notes)[1:]

    def _encoded_body(self) -> _EncodedBody:
        notes: list[Note] = []
        conversation = self.conversation
        fields = ConversationFields(
            conversation.messages,
            list(self._tools),
            list(map(encode_sampling, self._sampling)),
            [self._settled(row) for row in self._steps] if conversation.has_edits else self._steps,
            conversation.final_ranges(conversation.ranges),
            None if self._sent is None else conversation.final_ranges(self._sent),
            coerce_text(self._came_back, "pending_raw", notes),
        )
        self._body = _EncodedBody(memoryview(_encode(fields, notes))[1:-1], notes)
        return self._body

    def _settled(self, row: StepFields) -> StepFields:
        """A step whose prompt and response refer to the table of messages as it is now."""
        response = row.response
        if type(response) is int:
            response = self.conversation.final_index(response)
        return msgspec.structs.replace(row, prompt=self.conversation.final_ranges(row.prompt), response=response)

    def _place_response(self, place: int | None) -> None:
        if self._open_response is not None and place is not None:
            self._steps[-1].response = place
        self._open_response = None

    def _at(self, field: str) -> str:
        """The path of a field of the step that is being made."""
        return f"steps[{len(self._steps)}].{field}"

    def _encode_header(self, header: Header) -> bytes:
        if is_encodable_header(header):
            args = redact_mapping(header.env_args)
            if args is not header.env_args:
                header = msgspec.structs.replace(header, env_args=args)
            try:
                return json_encoder.encode(header)[:-1]
            except Exception:  # noqa: BLE001, S110 - such as text that UTF-8 cannot hold: it is cleaned below
                pass
        wire = coerce_header(header, self.notes)
        wire["env_args"] = redact_mapping(to_json_mapping(header.env_args, "env_args", self.notes))
        wire["task_data"] = to_json_mapping(header.task_data, "task_data", self.notes)
        return bytes(self._encoded(wire))[:-1]

    def _tools_index(self, tools: tuple[ToolSpec, ...]) -> int | None:
        if tools is self._last_tools:
            return self._last_tools_at
        frozen = tuple(as_tool(tool, self._at("tools"), self.notes) for tool in tools)
        index = self._tools.setdefault(frozen, len(self._tools))
        if type(tools) is tuple:  # a list may hold others the next time
            self._last_tools, self._last_tools_at = tools, index
        return index

    def _sampling_index(self, sampling: Sampling) -> int | None:
        if sampling is self._last_sampling:
            return self._last_sampling_at
        sound = (
            sampling if is_encodable_sampling(sampling) else coerce_sampling(sampling, self._at("sampling"), self.notes)
        )
        index = self._sampling.setdefault(sound, len(self._sampling))
        self._last_sampling, self._last_sampling_at = sampling, index
        return index

    def _make_sound(self, row: StepFields, non_numeric: dict[str, Any]) -> float:
        """Make each field of a step what a record can hold; returns the reward."""
        notes = self.notes
        reward = coerce_reward(row.reward, f"steps[{row.step}]", non_numeric, notes)
        row.reward = json_number(reward)
        row.env_reward = json_number(coerce_float(row.env_reward, self._at("env_reward"), notes))
        row.seconds = json_number(coerce_seconds(row.seconds, self._at("seconds"), notes))
        row.termination = coerce_termination(row.termination, self._at("termination"), notes)
        row.parse_error = coerce_text(row.parse_error, self._at("parse_error"), notes)
        row.raw = coerce_text(row.raw, self._at("raw"), notes)
        row.policy_version = coerce_policy_version(row.policy_version, self._at("policy_version"), notes)
        row.usage = coerce_usage(row.usage, self._at("usage"), notes)
        return reward

    def _numbers(self, values: Any, field: str, non_numeric: dict[str, Any]) -> Any:
        """A flat map of numbers in a dict of its own."""
        if type(values) is dict and is_encodable_numbers(values):
            return values.copy()
        return json_numbers(coerce_numbers(values, f"steps[{len(self._steps)}]", field, non_numeric, self.notes))

    def _rollout_metrics(self, notes: list[Note]) -> dict[str, Any]:
        if not self.metrics:
            return {}
        non_numeric: dict[str, Any] = {}
        numbers = json_numbers(coerce_numbers(self.metrics, "", "metrics", non_numeric, []))
        notes.extend(
            Note(name, f"expected a number, got {describe(value)}: left out") for name, value in non_numeric.items()
        )
        return numbers

    def _free_form(self, values: Any, field: str) -> msgspec.Raw:
        """A free-form map as bytes, so that nothing its owner does later can change it."""
        if type(values) is dict and not values:
            return _NOTHING
        return msgspec.Raw(json_encoder.encode(to_json_mapping(values, self._at(field), self.notes)))

    def _encoded_tokens(self, tokens: Tokens, response: Message, raw: Any) -> msgspec.Raw | None:
        path = self._at("tokens")
        sound = coerce_tokens(tokens, path, self.notes)
        before, self._token_ids = self._token_ids, ()
        if sound is None:
            return None
        shared_prefix = common_prefix_length(before, sound.prompt)
        self._token_ids = (*sound.prompt, *sound.response)
        char_lengths = matching_char_lengths(
            sound, response.content if raw is None else raw, f"{path}.char_lengths", self.notes
        )
        return self._encoded(
            wire_tokens(
                Tokens(sound.prompt[shared_prefix:], sound.response, sound.logprobs, shared_prefix, char_lengths)
            )
        )

    def _encoded(self, fields: dict[str, Any]) -> msgspec.Raw:
        return msgspec.Raw(_encode(fields, self.notes))

    def _blobs(self, calls: Sequence[Call]) -> tuple[Blob, ...]:
        """The blobs that messages carry, each once, with their bytes where anybody has them."""
        carriers = [message for message in self.conversation.messages if message.parts]
        carriers += [row.response for row in self._steps if type(row.response) is Message and row.response.parts]
        for call in calls:
            carriers += call.prompt if call.reply is None else (*call.prompt, call.reply)
        blobs: dict[str, Blob] = {}
        for message in carriers:
            for part in message.parts:
                if part.blob is not None and (part.blob.name not in blobs or blobs[part.blob.name].data is None):
                    blobs[part.blob.name] = part.blob
        return tuple(blobs.values())


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many items two sequences begin with in common; whole pieces are compared, which is quick."""
    known, unknown = 0, min(len(first), len(second))
    if first[:unknown] == second[:unknown]:
        return unknown
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if first[known:middle] == second[known:middle]:
            known = middle
        else:
            unknown = middle
    return known


@lru_cache(maxsize=64)
def encode_sampling(sampling: Sampling) -> msgspec.Raw | dict[str, Any]:
    """Settings as they are written; a run has few, and each of its rollouts names one."""
    fields = wire_sampling(sampling)
    try:
        return msgspec.Raw(json_encoder.encode(fields))
    except Exception:  # noqa: BLE001 - as below: whoever encodes the rollout will clean it, and note that
        return fields


def _encode(fields: dict[str, Any] | msgspec.Struct, notes: list[Note]) -> bytes:
    try:
        return json_encoder.encode(fields)
    except Exception:  # noqa: BLE001 - whatever it is, the rollout must not fail for it
        return encode_lossy(fields, notes)
