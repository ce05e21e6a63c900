"""What an endpoint is sent: messages, tools and settings in the words of the OpenAI chat API."""

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
"""Fields that a record tells of by what was asked for."""
_SEED_BITS = 0x7FFFFFFF
"""Servers read a seed into integers of different sizes; this fits all of them."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_UNREADABLE = "unreadable"
_encode = msgspec.json.Encoder().encode


def validate_extra(extra: Mapping[str, Any] | None, max_tokens_field: str = "max_tokens") -> dict[str, Any]:
    """Further fields of each request; none is of sampling, of which the record would then say something else."""
    fields = dict(extra or {})
    if wrong := sorted(name for name in (_RECORDED | {max_tokens_field}) & fields.keys() if fields[name] is not None):
        raise InputError(
            f"Expected no sampling in `extra`, got {', '.join(wrong)}: the record would not tell of it. "
            "Set it as sampling, such as --sampling temperature=0.7; null in `extra` takes a field away."
        )
    return fields


def request_body(
    request: Request, model: str, *, max_tokens_field: str, send_reasoning: bool, extra: Mapping[str, Any]
) -> bytes:
    """The body of the POST. What `extra` has comes last; null there takes a field away."""
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
    except UnicodeEncodeError:  # half a character; a record has U+FFFD there
        return _encode(replace_surrogates(fields))


def chat_messages(messages: Sequence[Message], send_reasoning: bool = True) -> list[dict[str, Any]]:
    """The messages as servers take them: no marks of ours, and each tool's answer tied to its call."""
    chat: list[dict[str, Any]] = []
    open_ids: list[str] = []
    taken = tool_call_ids(messages)
    for place, message in enumerate(messages):
        if not (message.parts or message.tool_calls or message.reasoning or message.other or message.role == "tool"):
            fields: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.name is not None:
                fields["name"] = message.name
            chat.append(fields)
            continue
        _check_bytes(message, place)
        fields = to_openai(message)
        if not send_reasoning:
            fields.pop("reasoning_content", None)
        if not isinstance(fields.get("refusal"), str):
            fields.pop("refusal", None)
        if message.tool_calls:
            fields["tool_calls"] = list(_sent_calls(fields["tool_calls"], place, taken))
            open_ids = [call["id"] for call in fields["tool_calls"]]
        elif message.role == "tool":
            _tie(fields, open_ids)
        chat.append(fields)
    return chat


def _sent_calls(calls: list[dict[str, Any]], place: int, taken: Set[str | None]) -> Iterator[dict[str, Any]]:
    """Calls that every server takes: with an id, a name that can be one, and a JSON object as arguments.

    Servers that parse the arguments of earlier calls refuse a whole conversation for one that the model broke.
    """
    for number, call in enumerate(calls):
        call.pop("error", None)
        if not call["id"]:
            call["id"] = make_call_id(place, number, taken)
        body = call["function"]
        if not _NAME.fullmatch(body["name"]):
            body["name"] = _NOT_IN_NAMES.sub("_", body["name"])[:64] or _UNREADABLE
        body["arguments"] = json_arguments(body["arguments"])
        if not is_json_object(body["arguments"]):
            body["arguments"] = _encode({_UNREADABLE: join_surrogates(body["arguments"])}).decode()
        yield call


def tool_call_ids(messages: Sequence[Message]) -> set[str | None]:
    """The ids that the calls of a conversation have."""
    return {call.id for message in messages for call in message.tool_calls}


def make_call_id(place: int, number: int, taken: Set[str | None]) -> str:
    """An id that no other call has, for the call at this place of a conversation; the same whenever it is invented."""
    invented = f"call_{place}_{number}"
    while invented in taken:
        invented += "_0"
    return invented


def _tie(fields: dict[str, Any], open_ids: list[str]) -> None:
    """Give a tool's answer the id of the first call that has no answer, where it has none of its own."""
    answered = fields.get("tool_call_id")
    if answered is None and open_ids:
        fields["tool_call_id"] = open_ids.pop(0)
    elif answered in open_ids:
        open_ids.remove(answered)


def is_json_object(arguments: str) -> bool:
    """Whether arguments are a JSON object, as tools take them."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _check_bytes(message: Message, place: int) -> None:
    for part in message.parts:
        if part.blob is not None and part.blob.data is None:
            raise PolicyError(
                f"Expected the bytes of the {part.type} in message {place} of the prompt, got only its name "
                f"{part.blob.name}: a message that was read from a record has none; put them back first."
            )


@lru_cache(maxsize=64)
def _chat_tools(tools: tuple[ToolSpec, ...]) -> msgspec.Raw:
    """The tools, encoded once for all turns that offer them."""
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
    """Plain JSON whose texts UTF-8 can hold."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(name): replace_surrogates(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    return value
