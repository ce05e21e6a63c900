"""The commonest chat dicts into messages, quickly; whatever is not one of them is left to `convert`."""

from typing import Any

from rolltrace.trace.freeform import is_valid_utf8
from rolltrace.trace.message import Message, ToolCall


def fast_message(chat: dict[Any, Any]) -> Message | None:
    """The message of a dict that has nothing but text, and calls as the chat API writes them; else None."""
    role = chat.get("role")
    content = chat.get("content")
    if type(role) is not str or type(content) is not str or not is_valid_utf8(role) or not is_valid_utf8(content):
        return None
    known = 2
    if len(chat) == known:
        return Message(role, content)
    calls = _quick_calls(chat.get("tool_calls"))
    answered, name = chat.get("tool_call_id"), chat.get("name")
    if calls is None or not _is_plain(answered) or not _is_plain(name):
        return None
    known += ("tool_calls" in chat) + (answered is not None) + (name is not None)
    return Message(role, content, (), calls, answered, name) if known == len(chat) else None


def _is_plain(text: Any) -> bool:
    return text is None or (type(text) is str and is_valid_utf8(text))


def _quick_calls(given: Any) -> tuple[ToolCall, ...] | None:
    if given is None:
        return ()
    if type(given) is not list:
        return None
    calls: tuple[ToolCall, ...] = ()
    for call in given:
        if (read := _quick_call(call)) is None:
            return None
        calls = (*calls, read)
    return calls


def _quick_call(call: Any) -> ToolCall | None:
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


def fast_copy(chat: dict[Any, Any]) -> dict[Any, Any]:
    """A copy of a dict that `fast_message` understood, sharing nothing with it that can change."""
    copy = chat.copy()
    if (calls := chat.get("tool_calls")) is not None:
        copy["tool_calls"] = [{**call, "function": call["function"].copy()} for call in calls]
    return copy
