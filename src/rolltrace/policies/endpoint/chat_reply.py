"""Parses the replies of chat servers, which may contain anything, into completions."""

import json
from collections.abc import Set
from typing import Any

import msgspec

from rolltrace.policies.endpoint.api_key import ApiKey, redact_key
from rolltrace.policies.endpoint.backoff import TransientError
from rolltrace.policies.endpoint.chat_request import is_json_object, make_call_id, replace_surrogates
from rolltrace.policies.endpoint.server_errors import error_from_status
from rolltrace.policies.policy import Completion
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.stop_reasons import FINISH_REASONS, Termination
from rolltrace.trace.tokens import Usage
from rolltrace.trace.tool_calls import json_arguments

_ABORTED = frozenset({"abort", "cancelled", "error"})
"""Finish reasons of answers that the server aborted."""
_MAX_TOKENS = 2**53
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class LlamaVerbose(msgspec.Struct):
    """What llama.cpp adds to a reply to a verbose request."""

    tokens: list[int] = []
    prompt: str = ""
    """The prompt as the chat template made it."""
    content: str = ""
    """The model's output before it was parsed."""
    stop_type: str = ""


class ChatChoice(msgspec.Struct):
    """One answer. Fields that only some servers send are decoded only when they are needed."""

    message: msgspec.Raw
    finish_reason: Any = None
    stop_reason: Any = None
    """vLLM: the stop sequence that ended the answer."""
    matched_stop: Any = None
    """SGLang: the stop sequence that ended the answer."""
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    token_ids: Any = None


class ChatReply(msgspec.Struct):
    """The reply to a chat completion."""

    choices: list[ChatChoice] | None = None
    usage: Any = None
    prompt_token_ids: Any = None
    error: Any = None
    verbose: LlamaVerbose | None = msgspec.field(default=None, name="__verbose")

    @property
    def choice(self) -> ChatChoice:
        """The only answer."""
        assert self.choices  # noqa: S101 - `read_reply` has checked it
        return self.choices[0]


_decode_reply = msgspec.json.Decoder(ChatReply).decode
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode


def read_reply(body: bytes, *, where: str, key: ApiKey) -> ChatReply:
    """Parse a reply. Raises `TransientError` if it is not a chat completion."""
    try:
        reply = _decode(body, key)
        if not reply.choices and reply.error:
            code = reply.error.get("code") if isinstance(reply.error, dict) else None
            status = code if type(code) is int and 400 <= code < 600 else 500
            raise error_from_status(status, body, where=where, key=key)
        if not reply.choices:
            raise _unreadable("no choices", body, where)
        reason = reply.choice.finish_reason
        if isinstance(reason, str) and reason in _ABORTED:
            raise _unreadable(f"an answer that the server aborted ({reason})", body, where)
        _decode_message(reply.choice.message)
    except (ValueError, RecursionError) as error:  # all of msgspec's and json's are ValueErrors
        raise _unreadable(f"something else: {error}", body, where) from error
    return reply


def read_completion(
    reply: ChatReply, *, position: int, version: int | str | None, used_ids: Set[str | None] = frozenset()
) -> Completion:
    """The completion of a reply. `position` is that of its message in a conversation with tool calls of `used_ids`."""
    choice = reply.choice
    fields = {name: value for name, value in _decode_message(choice.message).items() if value not in _EMPTY}
    notes: list[Note] = []
    is_refusal = _pop_refusal(fields)
    if "tool_calls" not in fields and isinstance(call := fields.pop("function_call", None), dict):
        fields["tool_calls"] = [{"function": call}]
    has_call_errors = _pop_call_errors(fields.get("tool_calls"))
    message = as_message({"content": "", **fields, "role": "assistant"}, "reply", notes)
    calls = _with_ids(message.tool_calls, position, used_ids)
    termination, parse_error = _termination(reply, message)
    keep_raw = bool(notes) or has_call_errors or parse_error is not None or is_refusal or any(map(_is_broken, calls))
    if calls != message.tool_calls:
        keep_raw, message = True, msgspec.structs.replace(message, tool_calls=calls)
    if any(map(_is_reference, message.parts)):
        keep_raw, message = True, msgspec.structs.replace(message, parts=tuple(map(_without_reference, message.parts)))
    if is_refusal:
        message = msgspec.structs.replace(message, other=_with_refusal(message.other))
    return Completion(
        message=message,
        termination=termination,
        parse_error=parse_error,
        raw=bytes(choice.message).decode("utf-8", "replace") if keep_raw else None,
        policy_version=version,
        usage=_usage(reply.usage),
    )


def _decode(body: bytes, key: ApiKey) -> ChatReply:
    try:
        return _decode_reply(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError):
        try:  # lone surrogates and NaN, which Python's own JSON writer and reader accept
            plain = replace_surrogates(json.loads(body))
        except ValueError:
            plain = None
        if plain is None:
            raise
        return _decode_reply(redact_key(msgspec.json.encode(plain), key.read()))


def _unreadable(got: str, body: bytes, where: str) -> TransientError:
    text = f"Expected a chat completion from {where}, got {got}"
    if body.lstrip()[:1] == b"<":  # a proxy's page while the server restarts, or the wrong address
        text += ". It looks like a web page: if this persists, check the base URL"
    error = TransientError(text)
    error.raw = body.decode("utf-8", "replace")
    return error


def _pop_refusal(fields: dict[str, Any]) -> bool:
    """Whether the model refused. The refusal becomes the content if there is no other."""
    refusal = fields.pop("refusal", None)
    if not isinstance(refusal, str):
        return False
    fields.setdefault("content", refusal)
    return True


def _pop_call_errors(calls: Any) -> bool:
    """Whether the server reported errors in tool calls. They are removed: we parse the calls ourselves."""
    dicts = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    errors = [call.pop("error", None) for call in dicts]
    return any(error is not None for error in errors)


def _with_refusal(other: FrozenMap | None) -> FrozenMap:
    return FrozenMap.of({**({} if other is None else other.to_dict()), "refusal": True})


def _termination(reply: ChatReply, message: Message) -> tuple[Termination, str | None]:
    """How the answer ended, with an error if it is malformed."""
    reason = reply.choice.finish_reason
    termination = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if termination is None:
        return Termination.MALFORMED, f"Expected a known finish_reason, got {reason!r}."
    if termination is Termination.TOOL_CALLS and not message.tool_calls:
        return Termination.MALFORMED, "Expected tool calls, as the finish_reason says, got none."
    if termination is Termination.EOS:
        if message.tool_calls:
            return Termination.TOOL_CALLS, None
        if _ended_by_stop_sequence(reply):
            return Termination.STOP_SEQUENCE, None
    return termination, None


def _ended_by_stop_sequence(reply: ChatReply) -> bool:
    """Whether a stop sequence ended the answer, if the server says so."""
    choice = reply.choice
    if isinstance(choice.stop_reason, str) or isinstance(choice.matched_stop, str):
        return True
    return reply.verbose is not None and reply.verbose.stop_type == "word"


def _is_reference(part: Part) -> bool:
    """Whether a server sent a reference to a blob of a run, which only a record may contain."""
    return (part.blob is not None and part.blob.data is None) or (part.url or "").startswith("blob:")


def _without_reference(part: Part) -> Part:
    """The part with a URL that readers do not resolve; the raw reply has the original."""
    if not _is_reference(part):
        return part
    url = part.url if part.blob is None else f"blob:{part.media_type or ''};{part.blob.name}"
    return msgspec.structs.replace(part, url=f"unknown-{url}", blob=None, media_type=None)


def _with_ids(calls: tuple[ToolCall, ...], position: int, used_ids: Set[str | None]) -> tuple[ToolCall, ...]:
    """The calls, each with a unique id: tool messages refer to it, and servers require it."""
    seen: set[str | None] = {None, ""}
    all_ids = {*used_ids, *(call.id for call in calls)}
    with_ids = []
    for number, call in enumerate(calls):
        is_new = call.id not in seen
        with_ids.append(call if is_new else msgspec.structs.replace(call, id=make_call_id(position, number, all_ids)))
        seen.add(call.id)
    return tuple(with_ids)


def _is_broken(call: ToolCall) -> bool:
    """Whether a call cannot be sent back to a server unchanged."""
    return not call.name or call.error is not None or not is_json_object(json_arguments(call.arguments))


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int:
        return None  # with only one of the counts, the record would have 0 for the other
    if not (0 <= prompt <= _MAX_TOKENS and 0 <= completion <= _MAX_TOKENS):
        return None
    return Usage(prompt, completion)
