"""Redacts by pattern: replaces what regular expressions match, in every text that a redact function is shown."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from rolltrace.errors import InputError
from rolltrace.secret_redaction import PLACEHOLDER
from rolltrace.trace.freeform import Placeholder
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall

_ESCAPES = re.compile(r"(?:\\u[0-9A-Fa-f]{4})+")


def redact_pattern(*patterns: str | re.Pattern[str], replacement: str = PLACEHOLDER) -> "PatternRedaction":
    r"""A function for `Recording(redact=…)` that replaces each match of the patterns, wherever there is text.

    That is the text, reasoning, names, tool calls (arguments, names and ids) and other fields of every message, and
    every text inside free-form maps, at any depth, keys included. Numbers, roles, and the bytes of images and audio are
    not changed. `replacement` is taken literally.
    """
    if not patterns:
        raise InputError(r"Expected at least one pattern to redact, got none: try redact_pattern(r'\S+@\S+').")
    return PatternRedaction(tuple(map(_compiled, patterns)), replacement)


@dataclass(frozen=True)
class PatternRedaction:
    """Replaces each match of the patterns in a message or a free-form map. It pickles."""

    patterns: tuple[re.Pattern[str], ...]
    replacement: str = PLACEHOLDER

    def __call__(self, value: Any) -> Any:
        """The same message or map, redacted."""
        return self._message(value) if isinstance(value, Message) else self._value(value)

    def _message(self, message: Message) -> Message:
        return replace(
            message,
            content=self._text(message.content),
            parts=tuple(map(self._part, message.parts)),
            tool_calls=tuple(map(self._call, message.tool_calls)),
            tool_call_id=self._value(message.tool_call_id),
            name=self._value(message.name),
            reasoning=self._value(message.reasoning),
            other=self._frozen(message.other),
        )

    def _part(self, part: Part) -> Part:
        return replace(
            part,
            text=self._value(part.text),
            url=self._value(part.url),
            media_type=self._value(part.media_type),
            other=self._frozen(part.other),
        )

    def _call(self, call: ToolCall) -> ToolCall:
        return replace(
            call,
            name=self._text(call.name),
            arguments=self._arguments(call.arguments),
            id=self._value(call.id),
            error=self._value(call.error),
            other=self._frozen(call.other),
        )

    def _arguments(self, arguments: str) -> str:
        """Redact inside the JSON first: it may escape the text, and a greedy match must not take its quotes along."""
        try:
            decoded = json.loads(arguments)
            redacted = self._value(decoded)
        except (ValueError, RecursionError):
            return self._text(arguments)
        kept = arguments if redacted == decoded else json.dumps(redacted, ensure_ascii=False)
        return self._text(kept)

    def _frozen(self, values: FrozenMap | None) -> FrozenMap | None:
        return None if values is None else FrozenMap.of(self._value(values.to_dict()))

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes):
            return self._text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if isinstance(value, Placeholder):
            return Placeholder({key: self._text(text) for key, text in value.items()})
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        return value

    def _mapping(self, values: Mapping[str, Any]) -> dict[str, Any]:
        redacted: dict[str, Any] = {}
        for key, value in values.items():
            name = shown = self._text(key)
            number = 1
            while name in redacted:  # two keys that are the same once redacted
                number += 1
                name = f"{shown} {number}"
            redacted[name] = self._value(value)
        return redacted

    def _text(self, text: str) -> str:
        redacted = self._substituted(text)
        if "\\u" not in redacted:
            return redacted
        # JSON that is incomplete, or quoted in another text, may hold what is to be hidden in escaped form.
        plain = _ESCAPES.sub(_unescaped, redacted)
        hidden = self._substituted(plain)
        return redacted if hidden == plain else hidden

    def _substituted(self, text: str) -> str:
        for pattern in self.patterns:
            text = pattern.sub(lambda _: self.replacement, text)
        return text


def _unescaped(escapes: re.Match[str]) -> str:
    text: str = json.loads(f'"{escapes[0]}"')
    return text.encode("utf-8", "replace").decode()


def _compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise InputError(f"Expected a pattern to redact as text or a compiled one of text, got {pattern!r}.")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"Expected a regular expression to redact, got {pattern!r}: {error}.") from error
