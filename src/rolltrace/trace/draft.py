"""A rollout while it is being played: each fact is frozen the moment it is known, and encoded once."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.careful import encode_carefully, json_encoder
from rolltrace.trace.codec import decode_rollout, seal, wire_call, wire_grade, wire_sampling
from rolltrace.trace.conversation import Conversation
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.freeform import Note, describe, plain_mapping
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.numbers import wire_floats, wire_number, wire_numbers
from rolltrace.trace.outcome import Termination
from rolltrace.trace.rollout import Call, Grade, Header, Outcome, Range, Rollout, Tokens, Usage
from rolltrace.trace.sound import (
    sound_call,
    sound_float,
    sound_grade,
    sound_header,
    sound_numbers,
    sound_reward,
    sound_sampling,
    sound_termination,
    sound_text,
    sound_time,
    sound_tokens,
    sound_usage,
    sound_version,
    with_strays,
)  # fmt: skip

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
        self.metrics: dict[str, Any] = {}
        """Numbers about the rollout as a whole."""
        self._grade: Grade | None = None
        self._grade_json: msgspec.Raw | None = None
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
        """Add these, frozen as they are, after the policy's own message where that is not yet in."""
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
        number = len(self._steps)
        path = f"steps[{number}]"
        notes = self.notes
        strays: dict[str, Any] = {}
        reward = sound_reward(reward, path, strays, notes)
        response = as_message(response, f"{path}.response", notes)
        # In the order of the record's fields: this dict is encoded as it is.
        step: dict[str, Any] = {
            "step": number,
            "prompt": self.conversation.ranges if self._sent is None else self._sent,
            "response": response,
            "tools": self._tools_index(tools, path) if tools else None,
            "sampling": None if sampling is None else self._sampling_index(sampling, path),
            "reward": wire_number(reward),
            "env_reward": wire_number(sound_float(env_reward, f"{path}.env_reward", notes)),
            "reward_data": self._numbers(reward_data, path, "reward_data", strays),
            "env_state": self._free_form(env_state, f"{path}.env_state"),
            "extra": _NOTHING,
            "metrics": self._numbers(metrics, path, "metrics", strays),
            "logs": self._free_form(logs, f"{path}.logs"),
            "termination": sound_termination(termination, f"{path}.termination", notes),
            "parse_error": sound_text(parse_error, f"{path}.parse_error", notes),
            "raw": sound_text(raw, f"{path}.raw", notes),
            "policy_version": sound_version(policy_version, f"{path}.policy_version", notes),
            "usage": sound_usage(usage, f"{path}.usage", notes),
            "seconds": wire_number(sound_float(seconds, f"{path}.seconds", notes)),
            "tokens": None if tokens is None else self._encoded_tokens(tokens, f"{path}.tokens"),
        }
        step["extra"] = self._free_form(with_strays(extra, strays), f"{path}.extra")
        self._steps.append(step)
        self._rewards.append(reward)
        self._open_response = response
        self._sent = self._came_back = None

    def replace_last_reward(self, reward: float) -> None:
        """Let a limit charge the last step; what the env gave stays in `env_reward`."""
        self._rewards[-1] = float(reward)
        self._steps[-1]["reward"] = wire_number(self._rewards[-1])

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
            sound = sound_grade(grade, "grade", self.notes)
            free_form = self._free_form(sound.extra, "grade.extra")
            self._grade_json = self._encoded({**wire_grade(Grade(sound.reward, sound.reward_data)), "extra": free_form})

    def note(self, path: str, message: str) -> None:
        """Say something about the record itself."""
        self.notes.append(Note(path, message))

    # The end

    def finish(self, outcome: Outcome) -> Line:
        """The rollout as a line. Nothing of the draft may change after the last call."""
        self.extend(())
        notes = list(self.notes)
        messages = self.conversation.messages
        settled = self.conversation.settled
        calls = [sound_call(call, f"calls[{number}]", notes) for number, call in enumerate(self.calls)]
        # In the order of the record's fields, as in `step`.
        fields = {
            "ended_at": sound_time(outcome["ended_at"]),
            "status": outcome["status"],
            "stop_reason": sound_text(outcome["stop_reason"], "stop_reason", notes),
            "stopped_by": outcome["stopped_by"],
            "error": outcome["error"],
            "reward": wire_number(sound_float(outcome["reward"], "reward", notes)),
            "reward_so_far": wire_number(sound_reward(outcome["reward_so_far"], "", {}, notes)),
            "unclamped_reward": wire_number(sound_float(outcome["unclamped_reward"], "unclamped_reward", notes)),
            "grade": self._grade_json,
            "messages": messages,
            "tools": list(self._tools),
            "sampling": [wire_sampling(sampling) for sampling in self._sampling],
            "steps": [self._settled(step) for step in self._steps],
            "final": settled(self.conversation.ranges),
            "pending_prompt": None if self._sent is None else settled(self._sent),
            "pending_raw": sound_text(self._came_back, "pending_raw", notes),
            "calls": [wire_call(call) for call in calls],
            "metrics": self._rollout_metrics(notes),
            "notes": notes,
        }
        try:
            tail = json_encoder.encode(fields)
        except Exception:  # noqa: BLE001 - whatever it is, the rollout must not fail for it
            tail = encode_carefully(fields, notes)
        return Line(self.id, seal(b"%b,%b" % (self._head, tail[1:])), _blobs(self._all_messages(messages, calls)))

    def rollout(self, outcome: Outcome) -> Rollout:
        """The rollout with this outcome, decoded afresh: whoever is handed it can change nothing of the record."""
        return decode_rollout(self.finish(outcome).data)

    def _settled(self, step: dict[str, Any]) -> dict[str, Any]:
        """A step whose prompt and response refer to the table of messages as it is now."""
        response = step["response"]
        if type(response) is int:
            response = self.conversation.settled_place(response)
        return {**step, "prompt": self.conversation.settled(step["prompt"]), "response": response}

    def _place_response(self, place: int | None) -> None:
        if self._open_response is not None and place is not None:
            self._steps[-1]["response"] = place
        self._open_response = None

    def _encode_header(self, header: Header) -> bytes:
        wire = sound_header(header, self.notes)
        wire["env_args"] = plain_mapping(header.env_args, "env_args", self.notes)
        wire["task_data"] = plain_mapping(header.task_data, "task_data", self.notes)
        return bytes(self._encoded(wire))[:-1]

    def _tools_index(self, tools: Sequence[ToolSpec], path: str) -> int:
        frozen = tuple(as_tool(tool, f"{path}.tools", self.notes) for tool in tools)
        return self._tools.setdefault(frozen, len(self._tools))

    def _sampling_index(self, sampling: Sampling, path: str) -> int:
        return self._sampling.setdefault(sound_sampling(sampling, f"{path}.sampling", self.notes), len(self._sampling))

    def _numbers(self, values: Mapping[str, Any], path: str, place: str, strays: dict[str, Any]) -> dict[str, Any]:
        return wire_numbers(sound_numbers(values, path, place, strays, self.notes))

    def _rollout_metrics(self, notes: list[Note]) -> dict[str, Any]:
        strays: dict[str, Any] = {}
        numbers = wire_numbers(sound_numbers(self.metrics, "", "metrics", strays, []))
        notes.extend(
            Note(name, f"expected a number, got {describe(value)}: left out") for name, value in strays.items()
        )
        return numbers

    def _free_form(self, values: Any, path: str) -> msgspec.Raw:
        """A free-form map as bytes, so that nothing its owner does later can change it."""
        if type(values) is dict and not values:
            return _NOTHING
        return msgspec.Raw(json_encoder.encode(plain_mapping(values, path, self.notes)))

    def _encoded_tokens(self, tokens: Tokens, path: str) -> msgspec.Raw | None:
        sound = sound_tokens(tokens, path, self.notes)
        if sound is None:
            return None
        logprobs = None if sound.logprobs is None else wire_floats(sound.logprobs)
        return self._encoded({"prompt": sound.prompt, "response": sound.response, "logprobs": logprobs})

    def _encoded(self, fields: dict[str, Any]) -> msgspec.Raw:
        try:
            return msgspec.Raw(json_encoder.encode(fields))
        except Exception:  # noqa: BLE001 - as in `finish`
            return msgspec.Raw(encode_carefully(fields, self.notes))

    def _all_messages(self, messages: Sequence[Message], calls: Sequence[Call]) -> Iterator[Message]:
        yield from messages
        yield from (step["response"] for step in self._steps if type(step["response"]) is Message)
        for call in calls:
            yield from call.prompt
            if call.reply is not None:
                yield call.reply


def _blobs(messages: Iterator[Message]) -> tuple[Blob, ...]:
    """The blobs that messages carry, each once, with their bytes where anybody has them."""
    blobs: dict[str, Blob] = {}
    for message in messages:
        for part in message.parts:
            if part.blob is not None and (part.blob.name not in blobs or blobs[part.blob.name].data is None):
                blobs[part.blob.name] = part.blob
    return tuple(blobs.values())
