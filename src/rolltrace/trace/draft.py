"""A rollout while it is being played: each fact is frozen the moment it is known, and encoded once."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import decode_rollout, json_encoder, seal, wire_numbers
from rolltrace.trace.conversation import Conversation
from rolltrace.trace.convert import clean_message
from rolltrace.trace.freeform import Note, clean_text, plain_mapping, plain_value
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.numbers import as_number, wire_number
from rolltrace.trace.outcome import Termination
from rolltrace.trace.rollout import Call, Grade, Header, Outcome, Range, Rollout, Tokens, Usage

_EMPTY: dict[str, Any] = {}
_NOTHING = msgspec.Raw(b"{}")


def new_id() -> str:
    """An id that is unique everywhere and sorts by time."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


class Line(msgspec.Struct, frozen=True):
    """A finished rollout, ready to be written."""

    id: str
    data: bytes
    """One line, with its checksum and line feed."""
    blobs: tuple[Blob, ...] = ()
    """The bytes that its messages carry."""


class Draft:
    """Collects one rollout and encodes it.

    The last step stays open until the next prompt is known: only then is it clear whether that prompt holds the
    policy's own message, and a limit may still replace the step's reward.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.id = header.id
        self.conversation = Conversation()
        self.notes: list[Note] = []
        self.calls: list[Call] = []
        self.grade: Grade | None = None
        self.metrics: dict[str, Any] = {}
        """Numbers about the rollout as a whole."""
        self._steps: list[dict[str, Any]] = []
        self._rewards: list[float] = []
        self._open_response: Message | None = None
        self._tools: dict[tuple[ToolSpec, ...], int] = {}
        self._sampling: dict[Sampling, int] = {}
        self._sent: tuple[Range, ...] | None = None
        self._came_back: str | None = None
        self._head = self._encode_header(header)

    # What the policy sees

    @property
    def prompt(self) -> tuple[Message, ...]:
        """The conversation as it stands."""
        return tuple(self.conversation.prompt)

    def extend(self, messages: Sequence[Message]) -> None:
        """Add these, after the policy's own message where that is not yet in."""
        if self._open_response is not None:
            self._place_response(self.conversation.extend([self._open_response, *messages]))
        elif messages:
            self.conversation.extend(messages)

    def replace(self, messages: Sequence[Message]) -> None:
        """Make these the whole conversation."""
        self._place_response(self.conversation.replace(messages, self._open_response))

    def send(self) -> None:
        """Note that the conversation as it stands goes to the policy now."""
        self._sent = self.conversation.ranges
        self._came_back = None

    def came_back(self, raw: str | None) -> None:
        """Note what the policy answered, before anything is made of it."""
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
    ) -> None:
        """Add the turn that answered what was last sent."""
        self.extend(())
        reward = float(reward)
        env_reward = None if env_reward is None else float(env_reward)
        number = len(self._steps)
        path = f"steps[{number}]"
        strays: dict[str, Any] = {}
        # In the order of the record's fields: this dict is encoded as it is.
        step: dict[str, Any] = {
            "step": number,
            "prompt": self.conversation.ranges if self._sent is None else self._sent,
            "response": response,
            "tools": self._tools.setdefault(tools, len(self._tools)) if tools else None,
            "sampling": None if sampling is None else self._sampling.setdefault(sampling, len(self._sampling)),
            "reward": wire_number(reward),
            "env_reward": wire_number(env_reward),
            "reward_data": self._numbers(reward_data, path, "reward_data", strays),
            "env_state": self._free_form(env_state, path, "env_state"),
            "extra": _NOTHING,
            "metrics": self._numbers(metrics, path, "metrics", strays),
            "logs": self._free_form(logs, path, "logs"),
            "termination": termination,
            "parse_error": parse_error,
            "raw": raw,
            "policy_version": policy_version,
            "usage": usage,
            "seconds": seconds,
            "tokens": _wire_tokens(tokens),
        }
        step["extra"] = self._free_form({**extra, **strays} if strays else extra, path, "extra")
        self._steps.append(step)
        self._rewards.append(reward)
        self._open_response = response
        self._sent = self._came_back = None

    def replace_last_reward(self, reward: float) -> None:
        """Let a limit charge the last step; what the env gave stays in `env_reward`."""
        self._rewards[-1] = reward
        self._steps[-1]["reward"] = wire_number(reward)

    @property
    def rewards(self) -> Sequence[float]:
        """The reward of each step so far."""
        return self._rewards

    def note(self, path: str, message: str) -> None:
        """Say something about the record itself."""
        self.notes.append(Note(path, message))

    # The end

    def finish(self, outcome: Outcome) -> Line:
        """The rollout as a line. Nothing of the draft may change after the last call."""
        self.extend(())
        notes = list(self.notes)
        # In the order of the record's fields, as in `step`.
        fields = {
            "ended_at": outcome["ended_at"],
            "status": outcome["status"],
            "stop_reason": outcome["stop_reason"],
            "stopped_by": outcome["stopped_by"],
            "error": outcome["error"],
            "reward": wire_number(outcome["reward"]),
            "reward_so_far": wire_number(outcome["reward_so_far"]),
            "unclamped_reward": wire_number(outcome["unclamped_reward"]),
            "grade": None if self.grade is None else wire_grade(self.grade, notes),
            "messages": self.conversation.messages,
            "tools": list(self._tools),
            "sampling": list(self._sampling),
            "steps": self._steps,
            "final": self.conversation.ranges,
            "pending_prompt": self._sent,
            "pending_raw": self._came_back,
            "calls": self.calls,
            "metrics": wire_numbers(self.metrics),
            "notes": notes,
        }
        try:
            tail = json_encoder.encode(fields)
        except Exception:  # noqa: BLE001 - whatever it is, the rollout must not fail for it
            tail = encode_carefully(fields, notes)
        blobs = {part.blob: None for message in self.conversation.messages for part in message.parts if part.blob}
        return Line(self.id, seal(b"%b,%b" % (self._head, tail[1:])), tuple(blobs))

    def rollout(self, outcome: Outcome) -> Rollout:
        """The rollout with this outcome, decoded afresh: whoever is handed it can change nothing of the record."""
        return decode_rollout(self.finish(outcome).data)

    def _place_response(self, place: int | None) -> None:
        if self._open_response is not None and place is not None:
            self._steps[-1]["response"] = place
        self._open_response = None

    def _encode_header(self, header: Header) -> bytes:
        wire = {name: getattr(header, name) for name in Header.__struct_fields__}
        wire["env_args"] = plain_mapping(header.env_args, "env_args", self.notes)
        wire["task_data"] = plain_mapping(header.task_data, "task_data", self.notes)
        try:
            return json_encoder.encode(wire)[:-1]
        except Exception:  # noqa: BLE001 - as in `finish`
            return encode_carefully(wire, self.notes)[:-1]

    def _numbers(self, values: Mapping[str, Any], path: str, place: str, strays: dict[str, Any]) -> dict[str, Any]:
        """A flat map of numbers, as Python numbers in a fresh dict; what is no number is put among the strays."""
        if not values:
            return _EMPTY
        plain: dict[str, Any] = {}
        for name, value in values.items():
            key = clean_text(str(name), f"{path}.{place}", self.notes)
            if (number := as_number(value)) is None:
                strays[f"{place}.{key}"] = value
                self.note(f"{path}.{place}.{key}", "not a number: moved to extra")
            else:
                plain[key] = wire_number(number)
        return plain

    def _free_form(self, values: Mapping[str, Any], path: str, place: str) -> msgspec.Raw:
        """A free-form map as bytes, so that nothing its owner does later can change it."""
        if not values:
            return _NOTHING
        return msgspec.Raw(json_encoder.encode(plain_mapping(values, f"{path}.{place}", self.notes)))


def wire_grade(grade: Grade, notes: list[Note]) -> dict[str, Any]:
    """A grade as the encoder must be given it."""
    return {
        "reward": wire_number(grade.reward),
        "reward_data": wire_numbers(grade.reward_data),
        "extra": plain_mapping(grade.extra, "grade.extra", notes),
    }


def _wire_tokens(tokens: Tokens | None) -> Any:
    if tokens is None or tokens.logprobs is None or all(map(math.isfinite, tokens.logprobs)):
        return tokens
    return {
        "prompt": tokens.prompt,
        "response": tokens.response,
        "logprobs": [wire_number(value) for value in tokens.logprobs],
    }


def encode_carefully(fields: dict[str, Any], notes: list[Note]) -> bytes:
    """Encode what the encoder refused: text that UTF-8 cannot hold is cleaned, the rest becomes a placeholder."""
    return json_encoder.encode({name: _careful(value, name, notes) for name, value in fields.items()})


def _careful(value: Any, path: str, notes: list[Note]) -> Any:
    if isinstance(value, Message):
        return clean_message(value, path, notes)
    if isinstance(value, Note):
        return Note(clean_text(value.path, path, []), clean_text(value.message, path, []))
    if isinstance(value, str):
        return clean_text(value, path, notes)
    if value is notes:
        return [_careful(note, path, notes) for note in list(notes)]
    if isinstance(value, list | tuple):
        return [_careful(item, f"{path}[{position}]", notes) for position, item in enumerate(value)]
    if isinstance(value, dict):
        return {_careful(key, path, notes): _careful(item, f"{path}.{key}", notes) for key, item in value.items()}
    try:
        json_encoder.encode(value)
    except Exception:  # noqa: BLE001 - as in `Draft.finish`
        return plain_value(value, path, notes)
    return value
