"""The commonest chat dicts into messages, quickly; whatever is not one of them is left to `convert`."""

from typing import Any

from rolltrace.trace.message import Message, ToolCall


def quick_message(chat: dict[Any, Any]) -> Message | None:
    """The message of a dict that has nothing but text, and calls as the chat API writes them; else None."""
    role = chat.get("role")
    content = chat.get("content")
    if type(role) is not str or type(content) is not str or not role.isascii() or not content.isascii():
        return None
    known = 2
    if len(chat) == known:
        return Message(role, content)
    calls: tuple[ToolCall, ...] = ()
    if (given := chat.get("tool_calls")) is not None:
        read = [_quick_call(call) for call in given] if type(given) is list else [None]
        calls = tuple(call for call in read if call is not None)
        if len(calls) < len(read):
            return None
        known += 1
    if (answered := chat.get("tool_call_id")) is not None:
        if type(answered) is not str or not answered.isascii():
            return None
        known += 1
    if (name := chat.get("name")) is not None:
        if type(name) is not str or not name.isascii():
            return None
        known += 1
    return Message(role, content, (), calls, answered, name) if known == len(chat) else None


def _quick_call(call: Any) -> ToolCall | None:
    if type(call) is not dict or len(call) != 3 or call.get("type") != "function":
        return None
    body = call.get("function")
    identity = call.get("id")
    if type(body) is not dict or len(body) != 2 or type(identity) is not str or not identity.isascii():
        return None
    name, arguments = body.get("name"), body.get("arguments")
    if type(name) is not str or type(arguments) is not str or not name.isascii() or not arguments.isascii():
        return None
    return ToolCall(name, arguments, identity)
