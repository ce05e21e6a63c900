"""Deterministic replies in several styles, for playing environments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.errors import ContextOverflowError, InputError
from rolltrace.policies.policy import Completion, to_completion
from rolltrace.trace.message import Message, ToolCall, ToolSpec
from rolltrace.trace.stop_reasons import Termination

Reply = str | Message | Completion
AnswerFunction = Callable[[tuple[Message, ...], tuple[ToolSpec, ...]], Reply]
Replies = Reply | Sequence[Reply] | AnswerFunction
ReplyStyle = Callable[[tuple[Message, ...], tuple[ToolSpec, ...], int], Completion]
"""Answers a prompt with tools, at a turn."""

_MAX_NESTED = 8


def styles_of(answers: Replies | None) -> dict[str, ReplyStyle]:
    """The styles to play in, by name: the caller's own, or the default ones."""
    if answers is None:
        return dict(_DEFAULT_STYLES)
    if isinstance(answers, Reply):
        answers = [answers]
    if isinstance(answers, Sequence):
        return {"given answers": _cycle(answers)}
    if callable(answers):
        function = answers
        return {"given answers": lambda messages, tools, _turn: to_completion(function(messages, tools))}
    raise InputError(
        f"Expected `answers` to be a sequence or a function, got {type(answers).__name__}: pass a list of str, Message "
        "or Completion, or a function of messages and tools that returns one."
    )


def _cycle(answers: Sequence[Reply]) -> ReplyStyle:
    if not answers:
        raise InputError("Expected at least one answer, got none: pass None for the default answers.")
    completions = [to_completion(answer) for answer in answers]
    return lambda _messages, _tools, turn: completions[turn % len(completions)]


def _text(_messages: tuple[Message, ...], _tools: tuple[ToolSpec, ...], turn: int) -> Completion:
    return to_completion(f"Turn {turn + 1}: I am not sure yet.")


def _final_answer(_messages: tuple[Message, ...], _tools: tuple[ToolSpec, ...], _turn: int) -> Completion:
    return to_completion("Answer: 1")


def _tool_calls(_messages: tuple[Message, ...], tools: tuple[ToolSpec, ...], turn: int) -> Completion:
    """Calls the tools in turn, with text each third turn; only text if no tools are offered."""
    if not tools or turn % 3 == 2:
        return to_completion(f"Answer: {turn + 1}")
    tool = tools[turn % len(tools)]
    arguments = msgspec.json.encode(example_of(tool.parameters.to_dict())).decode()
    return to_completion(Message("assistant", "", tool_calls=(ToolCall(tool.name, arguments, id=f"call_{turn}"),)))


_DEFAULT_STYLES: dict[str, ReplyStyle] = {"text": _text, "answer": _final_answer, "tool calls": _tool_calls}


NO_ROOM = "no room"
"""The style in which the prompt leaves no room for an answer, so that the runner ends the rollout without steps."""


def _no_room(_messages: tuple[Message, ...], _tools: tuple[ToolSpec, ...], _turn: int) -> Completion:
    raise ContextOverflowError("The check leaves no room for an answer.")


def unusual_styles() -> dict[str, ReplyStyle]:
    """Styles that not every environment is played in."""
    return {NO_ROOM: _no_room} | {name: _cycle([completion]) for name, completion in UNUSUAL_COMPLETIONS.items()}


UNUSUAL_COMPLETIONS = {
    "cut": Completion(message=Message("assistant", "The answer is"), termination=Termination.LENGTH),
    "malformed": Completion(
        message=Message("assistant", "<think>so", tool_calls=(ToolCall("", '{"expression": "1 +', error="not JSON"),)),
        termination=Termination.MALFORMED,
        parse_error="no end of turn",
        raw="<think>so",
    ),
    "empty": Completion(message=Message("assistant", "")),
}
"""What an environment with `takes_any_completion` must take besides answers that ended well."""


def example_of(schema: Any) -> Any:
    """A small value that fits a JSON schema, as far as the schema's common keywords say."""
    return _Example(schema).of(schema, 0)


class _Example:
    def __init__(self, root: Any) -> None:
        self.root = root

    def of(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _MAX_NESTED:
            return None
        if "const" in schema:
            return schema["const"]
        for listed in ("enum", "examples"):
            if schema.get(listed):
                return schema[listed][0]
        if "default" in schema:
            return schema["default"]
        if isinstance(reference := schema.get("$ref"), str):
            return self.of(self._resolve(reference), depth + 1)
        for choice in ("anyOf", "oneOf", "allOf"):
            if schema.get(choice):
                return self.of(schema[choice][0], depth + 1)
        return self._typed(schema, depth)

    def _resolve(self, reference: str) -> Any:
        found = self.root
        for name in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if kind == "object":
            properties = schema.get("properties") or {}
            return {name: self.of(properties.get(name), depth + 1) for name in schema.get("required") or properties}
        if kind == "array":
            return [self.of(schema.get("items", {}), depth + 1)] * max(1, schema.get("minItems", 1))
        if kind in ("integer", "number"):
            return _number(schema)
        if kind == "boolean":
            return True
        return None if kind == "null" else "1" * max(1, schema.get("minLength", 1))


def _number(schema: Mapping[str, Any]) -> Any:
    """1 where that is allowed, else the nearest bound."""
    value = max(1, schema.get("minimum", 1))
    if "exclusiveMinimum" in schema:
        value = max(value, schema["exclusiveMinimum"] + 1)
    value = min(value, schema.get("maximum", value))
    return min(value, schema["exclusiveMaximum"] - 1) if "exclusiveMaximum" in schema else value
