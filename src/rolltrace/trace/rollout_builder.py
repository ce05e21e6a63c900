"""Builds the record of a rollout while it is played: each fact is frozen when it is known, and encoded once."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from rolltrace.secret_redaction import redact_mapping
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import add_checksum, decode_rollout, to_wire, wire_value
from rolltrace.trace.coerce import coerce_field, coerce_record, coerce_time
from rolltrace.trace.convert import as_message
from rolltrace.trace.field_types import Range, record_fields
from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import json_number
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.message_table import MessageTable
from rolltrace.trace.outcome_row import OUTCOME_FIELDS, OUTCOME_LENGTH, outcome_row
from rolltrace.trace.plain_values import is_encodable_header
from rolltrace.trace.quote import TextSource
from rolltrace.trace.quote_search import add_quotes
from rolltrace.trace.rollout import EndedBeforeFirstTurn, Header, Outcome, Rollout
from rolltrace.trace.score import Grade
from rolltrace.trace.step_table import ConversationRow, StepTable, TrailingRow, transform_row
from rolltrace.trace.stop_reasons import EnvFailure, Termination
from rolltrace.trace.strict_json import encode_fields, json_encoder
from rolltrace.trace.text_transform import (
    HashText,
    TextTransform,
    text_fields,
    transform_record,
    transform_wire,
    transform_wire_value,
)
from rolltrace.trace.tokens import Tokens, Usage, usage_of

_NO_FIELDS: Mapping[str, Any] = {}
_NO_TRAILING = json_encoder.encode(TrailingRow([], {}, []))[1:]
_FIELDS = {field.written_name: field for field in record_fields(Rollout)}
_header_text = attrgetter(*(field.name for field in text_fields(Header)))
_OMITS_HEADER_FIELDS = any(field.omits_default for field in record_fields(Header))


class EncodedConversation(NamedTuple):
    """The fields from `messages` to `pending_raw` of a line, and the text in them."""

    data: memoryview
    messages: Sequence[Message]
    steps: Sequence[Any]
    notes: list[Note]
    """What happened when it was encoded."""

    @property
    def responses(self) -> dict[int, Message]:
        """The responses that are not in `messages`, by step."""
        return {row.step: row.response for row in self.steps if type(row.response) is Message}

    @property
    def text(self) -> TextSource:
        """The text, which calls can quote."""
        return TextSource(None, self.messages, self.responses)


class EncodedRecord(msgspec.Struct, frozen=True):
    """A finished rollout, ready to be written."""

    id: str
    data: bytes
    """One line, with its checksum and line feed."""
    blobs: tuple[Blob, ...] = ()
    """The bytes that its messages carry."""
    conversation: EncodedConversation | None = None
    """The part of the line that the calls of the group's grader can quote."""


class RolloutBuilder:
    """Collects one rollout and encodes it.

    Messages are not checked: callers convert them with `as_message` first. The last step stays open until the next
    prompt is known: only then is it clear whether that prompt holds the policy's own message, and a limit may still
    replace the step's reward.

    With a `transform`, the line has the transformed text, and text is never encoded as it was. Graders still get all
    of it, from `build`.
    """

    __slots__ = (
        "__weakref__", "_encoded", "_ended_before_first_turn", "_grade", "_grade_fields", "_header", "_open_response",
        "_raw_response", "_sent", "_steps", "calls", "conversation", "header", "id", "ledger_key", "metrics", "notes",
        "recorded_text", "transform",
    )  # fmt: skip

    def __init__(self, header: Header, *, keeps_tokens: bool = True, transform: TextTransform | None = None) -> None:
        self.header = header
        self.id = header.id
        self.ledger_key: tuple[str, str] | None = None
        """The session that began the rollout, and its key in that session's ledger."""
        self.conversation = MessageTable()
        self.notes: list[Note] = []
        self.calls: list[Call] = []
        self.metrics: dict[str, Any] = {}
        """Numbers about the rollout as a whole."""
        self.transform = transform
        self.recorded_text: TextSource | None = None
        """The text of its line, while the group's grader can quote it."""
        self._steps = StepTable(self.notes, keeps_tokens=keeps_tokens, encodes_maps=transform is None)
        self._ended_before_first_turn: dict[str, Any] | None = None
        self._grade: Grade | None = None
        self._grade_fields: dict[str, Any] | None = None
        self._open_response: Message | None = None
        self._sent: tuple[Range, ...] | None = None
        self._raw_response: str | None = None
        self._encoded: EncodedConversation | None = None
        has_text = transform is not None and any(map(_may_hold_text, _header_text(header)))
        self._header: bytes | dict[str, Any] = _frozen_header(header, self.notes, encodes=not has_text)
        """Its first fields: encoded, or as they are written if their text will be transformed."""

    # What the policy sees

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The present conversation."""
        return tuple(self.conversation.prompt)

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages, after the policy's own message if that is not yet in the conversation."""
        self._encoded = None
        if self._open_response is not None:
            self._place_response(self.conversation.extend([self._open_response, *messages]))
        elif messages:
            self.conversation.extend(messages)

    def replace(self, messages: Sequence[Message]) -> None:
        """Make these the whole conversation."""
        self._encoded = None
        self._place_response(self.conversation.replace(messages, self._open_response))

    def append_history(self, messages: Sequence[Message]) -> None:
        """Continue with messages that begin with the policy's own message, unless the caller removed that."""
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
        """Record that the present conversation is sent to the policy now."""
        self._encoded = None
        self._sent = self.conversation.ranges
        self._raw_response = None

    def set_raw_response(self, raw: str | None) -> None:
        """Record the policy's answer before it is parsed."""
        self._encoded = None
        self._raw_response = raw

    # What happened

    def step(
        self,
        response: Message,
        *,
        reward: float,
        env_reward: float | None = None,
        reward_data: Any = None,
        env_state: Any = None,
        extra: Any = None,
        metrics: Any = None,
        logs: Any = None,
        termination: Termination | None = None,
        parse_error: str | None = None,
        raw: str | None = None,
        policy_version: int | str | None = None,
        usage: Usage | None = None,
        seconds: float | None = None,
        tools: Sequence[Any] = (),
        sampling: Sampling | None = None,
        tokens: Tokens | None = None,
        reward_weights: Any = None,
        fields: Mapping[str, Any] = _NO_FIELDS,
    ) -> None:
        """Add the turn that answered the last prompt; `fields` are other fields of `Step`, by name."""
        if self._open_response is not None:
            self.extend(())
        self._encoded = None
        if type(response) is not Message:
            response = as_message(response, f"steps[{len(self._steps.rows)}].response", self.notes)
        prompt = self.conversation.ranges if self._sent is None else self._sent
        self._steps.add(
            prompt, response, reward, env_reward, reward_data, env_state, extra, metrics, logs, termination,
            parse_error, raw, policy_version, usage, seconds, tools, sampling, tokens, reward_weights,
            fields,
        )  # fmt: skip
        self._open_response = response
        self._sent = self._raw_response = None

    def end_before_first_turn(self, **fields: Any) -> None:
        """Record what the env gave if the policy has no turn: the fields of `EndedBeforeFirstTurn`."""
        path = "ended_before_first_turn"
        coerced = coerce_record(EndedBeforeFirstTurn(**fields), path, self.notes)
        self._ended_before_first_turn = to_wire(coerced, path, self.notes)

    def attach_tokens(self, step: int, tokens: Tokens) -> None:
        """Set the tokens of a step that has none; in the order of the steps, this takes the least space."""
        row = self._steps.rows[step]
        if row.tokens is not None:
            raise ValueError(f"step {step} has tokens")
        self._encoded = None
        response = row.response
        if type(response) is int:
            response = self.conversation.messages[self.conversation.final_index(response)]
        self._steps.set_tokens(row, tokens, response)
        if row.usage is None:
            row.usage = usage_of(tokens)

    def replace_last_reward(self, reward: float) -> None:
        """Let a limit charge the last step; what the env gave stays in `env_reward`."""
        self._encoded = None
        self._steps.rewards[-1] = float(reward)
        self._steps.rows[-1].reward = json_number(float(reward))

    def set_env_failure(self, failure: EnvFailure) -> None:
        """Record why the env did not finish the last step."""
        self._encoded = None
        self._steps.rows[-1].env_failure = failure

    @property
    def rewards(self) -> Sequence[float]:
        """The reward of each step so far."""
        return self._steps.rewards

    @property
    def keeps_tokens(self) -> bool:
        """Whether token ids and log-probabilities are recorded."""
        return self._steps.keeps_tokens

    @property
    def grade(self) -> Grade | None:
        """The grade of the rollout's own grader; it is frozen when it is set."""
        return self._grade

    @grade.setter
    def grade(self, grade: Grade | None) -> None:
        self._grade = None if grade is None else coerce_record(grade, "grade", self.notes)
        self._grade_fields = None if self._grade is None else to_wire(self._grade, "grade", self.notes)

    def add_note(self, path: str, message: str) -> None:
        """Note something about the record itself."""
        self.notes.append(Note(path, message))

    # The end

    def encode(self, outcome: Outcome, *, calls: bool = True) -> EncodedRecord:
        """The line of the rollout, with its calls or without; `transform` is applied to its text.

        What was encoded before, and has not changed, is not encoded again.
        """
        return self._encode_line(outcome, self.transform, self.calls if calls else ())

    def build(self, outcome: Outcome) -> Rollout:
        """A new record of the rollout with all of its text. Changing it does not change the rollout."""
        return decode_rollout(self._encode_line(outcome, None, self.calls).data)

    def _encode_line(self, outcome: Outcome, transform: TextTransform | None, calls: Sequence[Call]) -> EncodedRecord:
        if self._open_response is not None:
            self.extend(())
        conversation = self._encode_conversation(transform)
        notes = [*self.notes, *conversation.notes]
        header = self._header
        if isinstance(header, dict):
            header = encode_fields(transform_wire(Header, header, transform), notes)[:-1]
        if calls:
            calls = [coerce_record(call, f"calls[{index}]", notes) for index, call in enumerate(calls)]
        if transform is not None:
            calls = [transform_record(call, transform) for call in calls]
        ended = outcome_row(outcome, self._grade_fields, notes, transform)
        if ended.ended_at < coerce_time(self.header.started_at):
            notes.append(Note("ended_at", "before started_at, because the clock was set back: seconds counts as 0"))
        ending = encode_fields(ended, notes)
        stored_calls = add_quotes(calls, [conversation.text]) if calls else ()
        trailing = self._encode_trailing(outcome, stored_calls, notes, transform)
        line = add_checksum(header, b",", ending[1:-1], b",", conversation.data, b",", trailing)
        return EncodedRecord(self.id, line, _blobs(conversation, calls), conversation)

    def _encode_trailing(
        self, outcome: Outcome, calls: Sequence[Call], notes: list[Note], transform: TextTransform | None
    ) -> bytes:
        fields: dict[str, Any] = {}
        if len(outcome) > OUTCOME_LENGTH:
            fields |= {name: value for name, value in outcome.items() if name not in OUTCOME_FIELDS}
        if self.metrics:
            fields["metrics"] = self.metrics
        if not (calls or notes or fields or self._ended_before_first_turn):
            return _NO_TRAILING
        row = TrailingRow(list(map(to_wire, calls)), {}, notes)
        for name, value in fields.items():
            field = _FIELDS[name]
            wire = wire_value(field, coerce_field(field, value, "", notes), name, notes)
            setattr(row, name, transform_wire_value(field, wire, transform))
        if self._ended_before_first_turn is not None:
            fields = self._ended_before_first_turn
            row.ended_before_first_turn = transform_wire(EndedBeforeFirstTurn, fields, transform)
        if transform is not None:
            row.notes = notes = [transform_record(note, transform) for note in notes]
        return encode_fields(row, notes)[1:]

    def _encode_conversation(self, transform: TextTransform | None) -> EncodedConversation:
        if transform is None and self._encoded is not None:
            return self._encoded
        notes: list[Note] = []
        table, steps = self.conversation, self._steps
        messages: Sequence[Message] = table.messages
        rows = list(map(self._with_final_indexes, steps.rows)) if table.has_edits else steps.rows
        tools, sampling = steps.tools, steps.sampling
        raw = self._raw_response
        if raw is not None:
            raw = coerce_field(_FIELDS["pending_raw"], raw, "", notes)
        if transform is not None:
            messages = _transform_messages(messages, transform, notes)
            rows = [transform_row(row, transform) for row in rows]
            tools = [tuple(transform_record(tool, transform) for tool in offered) for offered in tools]
            sampling = steps.transformed_sampling(transform)
            raw = None if raw is None else transform.text("pending_raw", raw)
        row = ConversationRow(
            messages,
            tools,
            sampling,
            rows,
            table.final_ranges(table.ranges),
            None if self._sent is None else table.final_ranges(self._sent),
            raw,
        )
        encoded = EncodedConversation(memoryview(encode_fields(row, notes))[1:-1], messages, rows, notes)
        if transform is None:
            self._encoded = encoded
        return encoded

    def _with_final_indexes(self, row: Any) -> Any:
        """A step whose prompt and response refer to the table of messages as it is now."""
        response = row.response
        if type(response) is int:
            response = self.conversation.final_index(response)
        return msgspec.structs.replace(row, prompt=self.conversation.final_ranges(row.prompt), response=response)

    def _place_response(self, index: int | None) -> None:
        if self._open_response is not None and index is not None:
            self._steps.rows[-1].response = index
        self._open_response = None


def _frozen_header(header: Header, notes: list[Note], *, encodes: bool) -> bytes | dict[str, Any]:
    """The first fields of a line, encoded or as they are written, without secrets in `env_args`."""
    is_encodable = is_encodable_header(header)
    if encodes and is_encodable and not _OMITS_HEADER_FIELDS:
        args = redact_mapping(header.env_args)
        plain = header if args is header.env_args else msgspec.structs.replace(header, env_args=args)
        try:
            return json_encoder.encode(plain)[:-1]
        except Exception:  # noqa: BLE001, S110 - such as text that is not UTF-8: it is replaced below
            pass
    if is_encodable and not _OMITS_HEADER_FIELDS:
        fields = dict(zip(Header.__struct_encode_fields__, msgspec.structs.astuple(header), strict=True))
        fields |= {"env_args": dict(header.env_args), "task_data": dict(header.task_data)}
    else:
        fields = to_wire(header if is_encodable else coerce_record(header, "", notes), "", notes)
    fields["env_args"] = redact_mapping(fields["env_args"])
    return encode_fields(fields, notes)[:-1] if encodes else fields


def _may_hold_text(value: Any) -> bool:
    """Whether a value is not empty; a map of another type may claim anything about itself."""
    return value is not None and (type(value) not in (dict, str) or bool(value))


def _transform_messages(messages: Sequence[Message], transform: TextTransform, notes: list[Note]) -> list[Message]:
    if isinstance(transform, HashText):
        try:
            return list(map(transform.message, messages))
        except Exception:  # noqa: BLE001, S110 - a message made by hand may have bytes in place of text
            pass
    return [
        transform.message(as_message(message, f"messages[{index}]", notes)) for index, message in enumerate(messages)
    ]


def _blobs(conversation: EncodedConversation, calls: Sequence[Call]) -> tuple[Blob, ...]:
    """The blobs that messages carry, each once, with their bytes if a message has them."""
    messages = [message for message in conversation.messages if message.parts]
    messages += [row.response for row in conversation.steps if type(row.response) is Message and row.response.parts]
    for call in calls:
        messages += call.prompt if call.reply is None else (*call.prompt, call.reply)
    if not messages:
        return ()
    blobs: dict[str, Blob] = {}
    for message in messages:
        for part in message.parts:
            if part.blob is not None and (part.blob.name not in blobs or blobs[part.blob.name].data is None):
                blobs[part.blob.name] = part.blob
    return tuple(blobs.values())
