"""Converts chat dicts, content parts and pydantic objects to messages and tools, and messages back to chat dicts.

Supported are the chat format of the OpenAI API, the messages of tinker-cookbook, and objects of either with a
`model_dump()`. Unknown fields are kept in `other`; a note says what cannot be kept.
"""

from collections.abc import Mapping
from types import NoneType
from typing import Any

from rolltrace.trace.blob import Blob
from rolltrace.trace.content_parts import ContentReader, content_to_openai
from rolltrace.trace.freeform import (
    Note,
    as_text,
    describe,
    is_valid_utf8,
    join_surrogates,
    object_fields,
    optional_text,
)
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall, ToolSpec
from rolltrace.trace.tool_calls import read_tool_call, read_tool_calls, read_unparsed_calls, tool_call_to_openai

_MESSAGE_KEYS = {
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "reasoning_content", "unparsed_tool_calls",
}  # fmt: skip
_TOOL_KEYS = {"name", "description", "parameters"}


def as_message(value: Any, path: str, notes: list[Note]) -> Message:
    """Convert any message to an immutable one that shares nothing with it; never raises."""
    if type(value) is Message:
        return value if is_valid_message(value) else coerce_message(value, path, notes)
    if type(value) is dict and (message := fast_message(value)) is not None:
        return message
    try:
        fields = object_fields(value)
        if fields is None:
            notes.append(Note(path, f"expected a message, got {describe(value)}"))
            return Message("user", as_text(value, path, notes))
        return _message(fields, path, notes)
    except Exception as error:  # noqa: BLE001 - a mapping may raise anything
        notes.append(Note(path, f"{type(error).__name__} while reading a message: {describe(value)}"))
        return Message("user", f"[unreadable message: {type(error).__name__}]")


def fast_message(chat: dict[Any, Any]) -> Message | None:
    """Convert the most common chat dicts, text and tool calls of the OpenAI API only; None for any other dict."""
    role = chat.get("role")
    content = chat.get("content")
    if type(role) is not str or type(content) is not str or not is_valid_utf8(role) or not is_valid_utf8(content):
        return None
    read = 2
    if len(chat) == read:
        return Message(role, content)
    calls = _fast_calls(chat.get("tool_calls"))
    call_id, name = chat.get("tool_call_id"), chat.get("name")
    if calls is None or not _is_text_or_none(call_id) or not _is_text_or_none(name):
        return None
    read += ("tool_calls" in chat) + (call_id is not None) + (name is not None)
    return Message(role, content, (), calls, call_id, name) if read == len(chat) else None


def fast_copy(chat: dict[Any, Any]) -> dict[Any, Any]:
    """Copy a dict that `fast_message` converts, with everything in it that is mutable."""
    copy = chat.copy()
    if (calls := chat.get("tool_calls")) is not None:
        copy["tool_calls"] = [{**call, "function": call["function"].copy()} for call in calls]
    return copy


def coerce_message(message: Message, path: str, notes: list[Note]) -> Message:
    """Convert each field of a `Message` to a value that a record can hold; never raises."""
    try:
        return Message(
            role=as_text(message.role, f"{path}.role", notes),
            content=as_text(message.content, f"{path}.content", notes),
            parts=tuple(_clean_part(part, message.content, path, notes) for part in message.parts),
            tool_calls=tuple(_clean_call(call, path, notes) for call in message.tool_calls),
            tool_call_id=optional_text(message.tool_call_id, f"{path}.tool_call_id", notes),
            name=optional_text(message.name, f"{path}.name", notes),
            reasoning=optional_text(message.reasoning, f"{path}.reasoning", notes),
            other=_frozen(message.other, f"{path}.other", notes),
        )
    except Exception as error:  # noqa: BLE001 - the value of a field may raise anything
        notes.append(Note(path, f"{type(error).__name__} while reading a message made by hand"))
        return Message("user", f"[unreadable message: {type(error).__name__}]")


def to_openai(message: Message) -> dict[str, Any]:
    """Convert a message to a new chat dict; `as_message` converts it back to an equal message."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        chat["content"] = content_to_openai(message)
    if message.tool_calls:
        chat["tool_calls"] = [tool_call_to_openai(call) for call in message.tool_calls]
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        chat["name"] = message.name
    if message.other is not None:
        chat = {**chat, **message.other.to_dict(), **chat}
    return chat


def as_tool(value: Any, path: str, notes: list[Note]) -> ToolSpec:
    """Convert a tool, flat or as in the OpenAI API, to an immutable one; never raises."""
    if type(value) is ToolSpec and _is_valid_tool(value):
        return value
    try:
        fields = object_fields(value)
        if fields is None:
            notes.append(Note(path, f"expected a tool, got {describe(value)}"))
            return ToolSpec("", "", FrozenMap.of({}))
        body = fields.get("function")
        body = body if isinstance(body, Mapping) else fields
        if unknown := [str(key) for key in body if key not in _TOOL_KEYS and key != "type"]:
            notes.append(Note(path, f"fields of a tool that are not recorded: {', '.join(unknown)}"))
        return ToolSpec(
            as_text(body.get("name"), f"{path}.name", notes),
            as_text(body.get("description"), f"{path}.description", notes),
            FrozenMap.of(body.get("parameters") or {}, f"{path}.parameters", notes),
        )
    except Exception as error:  # noqa: BLE001 - as above
        notes.append(Note(path, f"{type(error).__name__} while reading a tool: {describe(value)}"))
        return ToolSpec("", "", FrozenMap.of({}))


def _is_text_or_none(text: Any) -> bool:
    return text is None or (type(text) is str and is_valid_utf8(text))


def _fast_calls(values: Any) -> tuple[ToolCall, ...] | None:
    if values is None:
        return ()
    if type(values) is not list:
        return None
    calls: tuple[ToolCall, ...] = ()
    for value in values:
        if (call := _fast_call(value)) is None:
            return None
        calls = (*calls, call)
    return calls


def _fast_call(call: Any) -> ToolCall | None:
    if type(call) is not dict or len(call) != 3 or call.get("type") != "function":
        return None
    body = call.get("function")
    identity = call.get("id")
    if type(body) is not dict or len(body) != 2 or type(identity) is not str or not is_valid_utf8(identity):
        return None
    name, arguments = body.get("name"), body.get("arguments")
    if type(name) is not str or type(arguments) is not str or not is_valid_utf8(name) or not is_valid_utf8(arguments):
        return None
    return ToolCall(name, arguments, identity)


def _message(fields: Mapping[Any, Any], path: str, notes: list[Note]) -> Message:
    reasoning, rest = _reasoning(fields)
    reader = ContentReader(f"{path}.content", notes, as_text(reasoning, f"{path}.reasoning", notes))
    reader.read(fields.get("content"))
    calls = [
        *reader.tool_calls,
        *read_tool_calls(fields.get("tool_calls"), f"{path}.tool_calls", notes),
        *read_unparsed_calls(fields.get("unparsed_tool_calls"), f"{path}.unparsed_tool_calls", notes),
    ]
    # Objects of API clients have many fields that are None.
    rest.update((key, value) for key, value in fields.items() if key not in _MESSAGE_KEYS and value is not None)
    role = fields.get("role")
    if role is None:
        notes.append(Note(f"{path}.role", "expected a role, got none: taken for `user`"))
    return Message(
        role="user" if role is None else as_text(role, f"{path}.role", notes),
        content=reader.text,
        parts=tuple(reader.parts),
        tool_calls=tuple(calls),
        tool_call_id=optional_text(fields.get("tool_call_id"), f"{path}.tool_call_id", notes),
        name=optional_text(fields.get("name"), f"{path}.name", notes),
        reasoning=reader.reasoning or None,
        other=FrozenMap.of(rest, path, notes) if rest else None,
    )


def _reasoning(fields: Mapping[Any, Any]) -> tuple[Any, dict[Any, Any]]:
    """Return the reasoning under either of its names, and the other field if it differs."""
    named, short = fields.get("reasoning_content"), fields.get("reasoning")
    if not named:
        return short, {}
    return named, {} if not short or short == named else {"reasoning": short}


def _frozen(value: Any, path: str, notes: list[Note]) -> FrozenMap | None:
    return value if value is None or type(value) is FrozenMap else FrozenMap.of(value, path, notes)


_TEXT_OR_NONE = frozenset({str, NoneType})
_MAP_OR_NONE = frozenset({FrozenMap, NoneType})
_BLOB_OR_NONE = frozenset({Blob, NoneType})


def is_valid_message(message: Any) -> bool:
    """Whether it is a `Message` whose fields have their types; text is checked only when it is encoded."""
    return (
        type(message) is Message
        and type(message.role) is str
        and type(message.content) is str
        and type(message.tool_call_id) in _TEXT_OR_NONE
        and type(message.name) in _TEXT_OR_NONE
        and type(message.reasoning) in _TEXT_OR_NONE
        and type(message.other) in _MAP_OR_NONE
        and type(message.parts) is tuple
        and type(message.tool_calls) is tuple
        and (not message.parts or all(map(_is_valid_part, message.parts)))
        and (not message.tool_calls or all(map(_is_valid_call, message.tool_calls)))
    )


def _is_valid_part(part: Any) -> bool:
    return (
        type(part) is Part
        and type(part.type) is str
        and type(part.offset) is int
        and {type(part.text), type(part.url), type(part.media_type)} <= _TEXT_OR_NONE
        and type(part.blob) in _BLOB_OR_NONE
        and type(part.other) in _MAP_OR_NONE
    )


def _is_valid_call(call: Any) -> bool:
    return (
        type(call) is ToolCall
        and type(call.name) is str
        and type(call.arguments) is str
        and type(call.id) in _TEXT_OR_NONE
        and type(call.error) in _TEXT_OR_NONE
        and type(call.other) in _MAP_OR_NONE
    )


def _is_valid_tool(tool: ToolSpec) -> bool:
    return type(tool.name) is str and type(tool.description) is str and type(tool.parameters) is FrozenMap


def _clean_part(part: Any, content: Any, path: str, notes: list[Note]) -> Part:
    path = f"{path}.parts"
    if type(part) is not Part:
        raise TypeError(f"expected a Part, got {type(part).__name__}")
    # Joining surrogates shortens the text, so offsets after them decrease.
    at = (
        len(join_surrogates(content[: part.offset])) if isinstance(content, str) and isinstance(part.offset, int) else 0
    )
    blob: Any = part.blob
    return Part(
        as_text(part.type, path, notes),
        offset=at,
        text=optional_text(part.text, path, notes),
        url=optional_text(part.url, path, notes),
        blob=Blob.of(bytes(blob)) if isinstance(blob, bytes | bytearray | memoryview) else blob,
        media_type=optional_text(part.media_type, path, notes),
        other=_frozen(part.other, path, notes),
    )


def _clean_call(call: Any, path: str, notes: list[Note]) -> ToolCall:
    return read_tool_call(call, f"{path}.tool_calls", notes)
