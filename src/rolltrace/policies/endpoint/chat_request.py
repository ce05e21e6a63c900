"""Encodes requests for the OpenAI chat API: messages, tools and sampling settings."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

import msgspec

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.policy import Request
from rolltrace.trace.convert import to_openai
from rolltrace.trace.freeform import join_surrogates
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.tool_calls import json_arguments

_SETTINGS = ("temperature", "top_p", "top_k", "min_p")
_RECORDED = frozenset(
    {*_SETTINGS, "max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict", "stop", "seed"}
)
"""Fields that the record has from the request's sampling settings."""
_SEED_BITS = 0x7FFFFFFF
"""Servers parse seeds as integers of different sizes; 31 bits fit all of them."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_UNREADABLE = "unreadable"
_encode = msgspec.json.Encoder().encode


def validate_extra(extra: Mapping[str, Any] | None, max_tokens_field: str = "max_tokens") -> dict[str, Any]:
    """Further fields of each request. Raises `InputError` for sampling settings, because the record would lack them."""
    fields = dict(extra or {})
    if wrong := sorted(name for name in (_RECORDED | {max_tokens_field}) & fields.keys() if fields[name] is not None):
        raise InputError(
            f"Expected no sampling settings in `extra`, got {', '.join(wrong)}: they would not be recorded. "
            "Set them as sampling, such as --sampling temperature=0.7; null in `extra` removes a field."
        )
    return fields


def request_body(
    request: Request, model: str, *, max_tokens_field: str, send_reasoning: bool, extra: Mapping[str, Any]
) -> bytes:
    """The body of the POST. Fields in `extra` override others; null there removes a field."""
    fields: dict[str, Any] = {"model": model, "messages": chat_messages(request.messages, send_reasoning)}
    if request.tools:
        fields["tools"] = _chat_tools(request.tools)
    _add_sampling(fields, request.sampling, max_tokens_field)
    if request.seed is not None:
        fields["seed"] = request.seed & _SEED_BITS
    fields.update(extra)
    if None in extra.values():
        fields = {name: value for name, value in fields.items() if value is not None}
    try:
        return _encode(fields)
    except UnicodeEncodeError:  # a lone surrogate; the record has U+FFFD instead
        return _encode(replace_surrogates(fields))


def chat_messages(messages: Sequence[Message], send_reasoning: bool = True) -> list[dict[str, Any]]:
    """The messages in the form that servers accept: without our own fields, each tool message with its call's id."""
    chat: list[dict[str, Any]] = []
    open_ids: list[str] = []
    used_ids = tool_call_ids(messages)
    for position, message in enumerate(messages):
        if not (message.parts or message.tool_calls or message.reasoning or message.other or message.role == "tool"):
            fields: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.name is not None:
                fields["name"] = message.name
            chat.append(fields)
            continue
        _require_bytes(message, position)
        fields = to_openai(message)
        if not send_reasoning:
            fields.pop("reasoning_content", None)
        if not isinstance(fields.get("refusal"), str):
            fields.pop("refusal", None)
        if message.tool_calls:
            fields["tool_calls"] = list(_valid_calls(fields["tool_calls"], position, used_ids))
            open_ids = [call["id"] for call in fields["tool_calls"]]
        elif message.role == "tool":
            _set_call_id(fields, open_ids)
        chat.append(fields)
    return chat


def _valid_calls(calls: list[dict[str, Any]], position: int, used_ids: Set[str | None]) -> Iterator[dict[str, Any]]:
    """Calls that every server accepts: with an id, a valid name, and a JSON object as arguments.

    Servers that parse the arguments of earlier calls would reject the whole conversation for one malformed call.
    """
    for number, call in enumerate(calls):
        call.pop("error", None)
        if not call["id"]:
            call["id"] = make_call_id(position, number, used_ids)
        body = call["function"]
        if not _NAME.fullmatch(body["name"]):
            body["name"] = _INVALID_IN_NAME.sub("_", body["name"])[:64] or _UNREADABLE
        body["arguments"] = json_arguments(body["arguments"])
        if not is_json_object(body["arguments"]):
            body["arguments"] = _encode({_UNREADABLE: join_surrogates(body["arguments"])}).decode()
        yield call


def tool_call_ids(messages: Sequence[Message]) -> set[str | None]:
    """The ids of all tool calls of a conversation."""
    return {call.id for message in messages for call in message.tool_calls}


def make_call_id(position: int, number: int, used_ids: Set[str | None]) -> str:
    """An unused id for a tool call: deterministic, from the position of its message and its number in it."""
    new_id = f"call_{position}_{number}"
    while new_id in used_ids:
        new_id += "_0"
    return new_id


def _set_call_id(fields: dict[str, Any], open_ids: list[str]) -> None:
    """Give a tool message without an id that of the first unanswered call."""
    call_id = fields.get("tool_call_id")
    if call_id is None and open_ids:
        fields["tool_call_id"] = open_ids.pop(0)
    elif call_id in open_ids:
        open_ids.remove(call_id)


def is_json_object(arguments: str) -> bool:
    """Whether a tool call's arguments are a JSON object."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _require_bytes(message: Message, position: int) -> None:
    for part in message.parts:
        if part.blob is not None and part.blob.data is None:
            raise PolicyError(
                f"Expected the bytes of the {part.type} in message {position} of the prompt, got only its name "
                f"{part.blob.name}: messages that were read from a record have no bytes; add them first."
            )


@lru_cache(maxsize=64)
def _chat_tools(tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
    """The encoded tools, cached for all turns that offer them."""
    return msgspec.Raw(
        _encode(
            [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": join_surrogates(tool.description),
                        "parameters": tool.parameters.to_dict(),
                    },
                }
                for tool in tools
            ]
        )
    )


def _add_sampling(fields: dict[str, Any], sampling: Sampling, max_tokens_field: str) -> None:
    for name in _SETTINGS:
        if (value := getattr(sampling, name)) is not None:
            fields[name] = value
    if sampling.max_tokens is not None:
        fields[max_tokens_field] = sampling.max_tokens
    if sampling.stop:
        fields["stop"] = sampling.stop
    if sampling.other is not None:
        fields.update(sampling.other.to_dict())


def replace_surrogates(value: Any) -> Any:
    """Plain JSON with all texts encodable in UTF-8."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    return value
