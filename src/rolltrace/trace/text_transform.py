"""The same rollout with other text: hashed, or as a user's function leaves it. Numbers, names and places stay."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note, Placeholder
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout import Call, EndedBeforeFirstTurn, Failure, Grade, Rollout, Step
from rolltrace.trace.score import Score

Redact = Callable[[Any], Any]
"""Takes a message or a free-form map and returns what may be kept of it."""

_HASH_DIGITS = 16
_HASHED = re.compile(rf"hashed:\d+:[0-9a-f]{{{_HASH_DIGITS}}}")
_PART_TYPES = {"image", "audio", "video", "file", "thinking", "refusal", "text"}
_MEDIA_TYPES = {
    f"{kind}/{name}"
    for kind, names in {
        "image": "png jpeg gif webp bmp tiff avif heic svg+xml",
        "audio": "wav mp3 mp4 mpeg ogg flac aac webm opus pcm16",
        "video": "mp4 mpeg webm ogg quicktime",
        "text": "plain html csv markdown",
        "application": "pdf json zip octet-stream",
    }.items()
    for name in names.split()
}
"""Any other word may be a text that somebody put there."""


class TextTransform(Protocol):
    """Who rewrites: one method for each place where text can be."""

    def message(self, message: Message) -> Message:
        """A message of the conversation, or of another model call."""
        ...

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """A free-form map."""
        ...

    def text(self, name: str, text: str) -> str:
        """A text that stands alone, in the field of that name."""
        ...


class HashText:
    """Leaves of each text its length and its hash, so that equal texts can still be told from different ones."""

    def message(self, message: Message) -> Message:
        """Role, names and ids stay; so does how many parts and calls there are."""
        return Message(
            message.role,
            hash_text(message.content),
            parts=tuple(map(_hashed_part, message.parts)),
            tool_calls=tuple(map(_hashed_call, message.tool_calls)),
            tool_call_id=message.tool_call_id,
            name=message.name,
            reasoning=_hashed_or_none(message.reasoning),
        )

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """Numbers and keys stay."""
        return {key: _hashed_value(value) for key, value in values.items()}

    def text(self, name: str, text: str) -> str:
        """Nothing of it stays."""
        return hash_text(text)


class RedactText:
    """Asks a user's function about everything; what is no message to it, it gets as a map."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def message(self, message: Message) -> Message:
        """What the function makes of it: a message, or a chat dict."""
        notes: list[Note] = []
        given = self._redact(message)
        kept = as_message(given, "", notes)
        if notes:
            raise TypeError(f"Expected redact to return a message, got {_kind(given)}.")
        return kept

    def mapping(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the function makes of it; an empty map is not shown to it."""
        if not values:
            return values
        kept = self._redact(values)
        if not isinstance(kept, Mapping):
            raise TypeError(f"Expected redact to return a map, got {_kind(kept)}.")
        return dict(kept)

    def text(self, name: str, text: str) -> str:
        """The function is shown a map of one entry; where it takes that out, nothing is left."""
        kept = self.mapping({name: text}).get(name, "")
        if not isinstance(kept, str):
            raise TypeError(f"Expected redact to leave text under {name!r}, got {_kind(kept)}.")
        return kept


def transform_rollout(rollout: Rollout, hand: TextTransform) -> Rollout:
    """The rollout with every text rewritten. Token ids are text too, and are left out."""
    return replace(
        rollout,
        env_args=hand.mapping(rollout.env_args),
        task_data=hand.mapping(rollout.task_data),
        error=_failure(rollout.error, hand),
        grade=_grade(rollout.grade, hand),
        messages=tuple(map(hand.message, rollout.messages)),
        tools=tuple(tuple(_tool(tool, hand) for tool in tools) for tools in rollout.tools),
        sampling=tuple(_sampling(sampling, hand) for sampling in rollout.sampling),
        steps=tuple(_step(step, hand) for step in rollout.steps),
        pending_raw=_text("pending_raw", rollout.pending_raw, hand),
        calls=tuple(_call(call, hand) for call in rollout.calls),
        notes=tuple(Note(note.path, hand.text("note", note.message)) for note in rollout.notes),
        ended_before_first_turn=_ended_before_first_turn(rollout.ended_before_first_turn, hand),
    )


def transform_score(score: Score, hand: TextTransform) -> Score:
    """The score with every text rewritten."""
    return replace(
        score,
        data=hand.mapping(score.data),
        error=_failure(score.error, hand),
        calls=tuple(_call(call, hand) for call in score.calls),
    )


def hash_text(text: str) -> str:
    """What stands for a text that is not kept: its length in characters, and the start of its SHA-256."""
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return f"hashed:{len(text)}:{digest[:_HASH_DIGITS]}" if text else ""


def has_hashed_text(rollout: Rollout) -> bool:
    """Whether it was recorded as numbers: of every text only length and hash are there."""
    texts = [message.content for message in rollout.messages if message.content]
    return bool(texts) and all(_HASHED.fullmatch(text) for text in texts)


def is_hashed_text(text: str) -> bool:
    """Whether only the length and the hash of a text are left."""
    return text.startswith("hashed:") and _HASHED.fullmatch(text) is not None


def _kind(value: object) -> str:
    """What a value is, without a word of it: what redact returns may hold what nobody is to read."""
    return f"a value of type {type(value).__name__}"


def _hashed_or_none(text: str | None) -> str | None:
    return None if text is None else hash_text(text)


def _hashed_part(part: Part) -> Part:
    carried = part.blob.name if part.blob is not None else part.text or part.url
    media_type = part.media_type if part.media_type in _MEDIA_TYPES else _hashed_or_none(part.media_type)
    kind = part.type if part.type in _PART_TYPES else hash_text(part.type)
    return Part(kind, offset=0, text=_hashed_or_none(carried), media_type=media_type)


def _hashed_call(call: ToolCall) -> ToolCall:
    return ToolCall(call.name, hash_text(call.arguments), id=call.id, error=_hashed_or_none(call.error))


def _hashed_value(value: Any) -> Any:
    if isinstance(value, str):
        return hash_text(value)
    if isinstance(value, bytes):
        return f"hashed:{len(value)}:{hashlib.sha256(value).hexdigest()[:_HASH_DIGITS]}"
    if isinstance(value, Placeholder):
        return Placeholder({key: hash_text(text) for key, text in value.items()})
    if isinstance(value, Mapping):
        return {key: _hashed_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hashed_value(item) for item in value]
    return value


def _text(name: str, text: str | None, hand: TextTransform) -> str | None:
    return None if text is None else hand.text(name, text)


def _failure(failure: Failure | None, hand: TextTransform) -> Failure | None:
    if failure is None:
        return None
    return Failure(
        failure.layer, failure.type, hand.text("message", failure.message), hand.text("traceback", failure.traceback)
    )


def _grade(grade: Grade | None, hand: TextTransform) -> Grade | None:
    return None if grade is None else replace(grade, extra=hand.mapping(grade.extra))


def _tool(tool: ToolSpec, hand: TextTransform) -> ToolSpec:
    parameters = FrozenMap.of(hand.mapping(tool.parameters.to_dict()))
    return ToolSpec(tool.name, hand.text("description", tool.description), parameters)


def _sampling(sampling: Sampling, hand: TextTransform) -> Sampling:
    other = None if sampling.other is None else FrozenMap.of(hand.mapping(sampling.other.to_dict()))
    return replace(sampling, stop=tuple(hand.text("stop", text) for text in sampling.stop), other=other)


def _step(step: Step, hand: TextTransform) -> Step:
    return replace(
        step,
        response=step.response if isinstance(step.response, int) else hand.message(step.response),
        env_state=hand.mapping(step.env_state),
        extra=hand.mapping(step.extra),
        logs=hand.mapping(step.logs),
        parse_error=_text("parse_error", step.parse_error, hand),
        raw=_text("raw", step.raw, hand),
        tokens=None,
    )


def _ended_before_first_turn(told: EndedBeforeFirstTurn | None, hand: TextTransform) -> EndedBeforeFirstTurn | None:
    if told is None:
        return None
    return replace(
        told, env_state=hand.mapping(told.env_state), extra=hand.mapping(told.extra), logs=hand.mapping(told.logs)
    )


def _call(call: Call, hand: TextTransform) -> Call:
    return replace(
        call,
        prompt=tuple(map(hand.message, call.prompt)),
        reply=None if call.reply is None else hand.message(call.reply),
        raw=_text("raw", call.raw, hand),
        error=_failure(call.error, hand),
        quotes=(),  # what is rewritten is the whole text; quotes are found in what is left of it
    )
