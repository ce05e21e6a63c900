"""Tool calls of other people's messages into ours and back."""

from collections.abc import Mapping
from typing import Any

from rolltrace.trace.freeform import Note, as_text, json_text, object_fields, optional_text
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import ToolCall

_CALL_KEYS = {"id", "function", "name", "arguments", "error", "other"}
_BODY_KEYS = {"name", "arguments"}


def read_tool_calls(calls: Any, path: str, notes: list[Note]) -> list[ToolCall]:
    """The calls of a message's `tool_calls`; one that stands alone is taken for a list of one."""
    listed = calls if isinstance(calls, list | tuple) else () if calls is None else (calls,)
    return [read_tool_call(call, f"{path}[{position}]", notes) for position, call in enumerate(listed)]


def read_unparsed_calls(calls: Any, path: str, notes: list[Note]) -> list[ToolCall]:
    """The calls of a message's `unparsed_tool_calls`."""
    listed = calls if isinstance(calls, list | tuple) else () if calls is None else (calls,)
    return [read_unparsed_call(call, f"{path}[{position}]", notes) for position, call in enumerate(listed)]


def read_tool_call(call: Any, path: str, notes: list[Note]) -> ToolCall:
    """One call: nested as in the chat API, flat, or text that cannot be read as one."""
    fields = object_fields(call)
    if fields is None:
        return ToolCall("", as_text(call, path, notes), error="not a tool call")
    body = object_fields(fields.get("function"))
    nested = body is not None
    body = fields if body is None else body
    return ToolCall(
        name=as_text(body.get("name"), f"{path}.name", notes),
        arguments=_arguments(body.get("arguments"), f"{path}.arguments", notes),
        id=optional_text(fields.get("id"), f"{path}.id", notes),
        error=optional_text(fields.get("error"), f"{path}.error", notes),
        other=_other(call, fields, body if nested else {}, path, notes),
    )


def read_unparsed_call(call: Any, path: str, notes: list[Note]) -> ToolCall:
    """One call that the client of the model could not parse."""
    fields = object_fields(call)
    fields = {"raw_text": call} if fields is None else fields
    return ToolCall(
        "",
        as_text(fields.get("raw_text"), f"{path}.raw_text", notes),
        error=as_text(fields.get("error") or "could not be parsed", f"{path}.error", notes),
    )


def tool_call_to_openai(call: ToolCall) -> dict[str, Any]:
    """A call as the chat API has it; one that could not be parsed says so in `error`."""
    rest = {} if call.other is None else call.other.to_dict()
    inner = rest.pop("function", None)
    body = {"name": call.name, "arguments": call.arguments}
    kind = {} if "type" in rest else {"type": "function"}
    chat = {"id": call.id, **kind, **rest, "function": {**inner, **body} if inner else body}
    if call.error is not None:
        chat["error"] = call.error
    return chat


def json_arguments(arguments: str) -> str:
    """The arguments of a call as the JSON that a tool is given: models write nothing, or null, for no arguments."""
    return "{}" if arguments.strip() in ("", "null") else arguments


def _arguments(value: Any, path: str, notes: list[Note]) -> str:
    if isinstance(value, Mapping):  # parsed by the client: the model's own text is gone
        return json_text(value, path, notes)
    return "{}" if value is None else as_text(value, path, notes)


def _other(
    call: Any, fields: Mapping[Any, Any], body: Mapping[Any, Any], path: str, notes: list[Note]
) -> FrozenMap | None:
    """The fields that have no place of their own; empty ones, as API objects have many, say nothing."""
    if type(call) is ToolCall:
        return call.other if call.other is None or type(call.other) is FrozenMap else FrozenMap.of(call.other)
    rest = {key: value for key, value in fields.items() if key not in _CALL_KEYS and value is not None}
    if rest.get("type") == "function":
        del rest["type"]
    if fields.get("other") is not None:
        rest["other"] = fields["other"]
    inner = {key: value for key, value in body.items() if key not in _BODY_KEYS and value is not None}
    if inner:
        rest["function"] = inner
    return FrozenMap.of(rest, path, notes) if rest else None
