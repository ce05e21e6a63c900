"""What an endpoint answered, read carefully: a server may send anything, and a model may have written anything."""

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
from rolltrace.trace.rollout import Usage
from rolltrace.trace.stop_reasons import FINISH_REASONS, Termination
from rolltrace.trace.tool_calls import json_arguments

_BROKEN_OFF = frozenset({"abort", "cancelled", "error"})
"""Ends that are the server's, and not the model's."""
_MAX_TOKENS = 2**53
_NOTHING: tuple[Any, ...] = (None, "", [], {})


class LlamaVerbose(msgspec.Struct):
    """What llama.cpp adds where it is asked to be verbose."""

    tokens: list[int] = []
    prompt: str = ""
    """The prompt as the chat template made it."""
    content: str = ""
    """What the model wrote, before it was parsed."""
    stop_type: str = ""


class ChatChoice(msgspec.Struct):
    """One answer; what only some servers send is read only where it is needed."""

    message: msgspec.Raw
    finish_reason: Any = None
    stop_reason: Any = None
    """vLLM: the stop sequence that ended it."""
    matched_stop: Any = None
    """SGLang: the same."""
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
        assert self.choices  # noqa: S101 - `read_reply` has seen to it
        return self.choices[0]


_decode_reply = msgspec.json.Decoder(ChatReply).decode
_decode_message = msgspec.json.Decoder(dict[str, Any]).decode


def read_reply(body: bytes, *, where: str, key: ApiKey) -> ChatReply:
    """The reply; one that is none is a `TransientError`, with what came instead."""
    try:
        reply = _decoded(body, key)
        if not reply.choices and reply.error:
            code = reply.error.get("code") if isinstance(reply.error, dict) else None
            status = code if type(code) is int and 400 <= code < 600 else 500
            raise error_from_status(status, body, where=where, key=key)
        if not reply.choices:
            raise _unreadable("no choices", body, where)
        reason = reply.choice.finish_reason
        if isinstance(reason, str) and reason in _BROKEN_OFF:
            raise _unreadable(f"an answer that the server broke off ({reason})", body, where)
        _decode_message(reply.choice.message)
    except (ValueError, RecursionError) as error:  # all of msgspec's and json's are ValueErrors
        raise _unreadable(f"something else: {error}", body, where) from error
    return reply


def read_completion(
    reply: ChatReply, *, place: int, version: int | str | None, taken: Set[str | None] = frozenset()
) -> Completion:
    """The completion, whose message stands at this place of a conversation with calls of these ids."""
    choice = reply.choice
    fields = {name: value for name, value in _decode_message(choice.message).items() if value not in _NOTHING}
    notes: list[Note] = []
    refused = _take_refusal(fields)
    if "tool_calls" not in fields and isinstance(call := fields.pop("function_call", None), dict):
        fields["tool_calls"] = [{"function": call}]
    marked = _take_marks(fields.get("tool_calls"))
    message = as_message({"content": "", **fields, "role": "assistant"}, "reply", notes)
    calls = _with_ids(message.tool_calls, place, taken)
    termination, parse_error = _end_of(reply, message)
    odd = bool(notes) or marked or parse_error is not None or refused or any(map(_is_odd, calls))
    if calls != message.tool_calls:
        odd, message = True, msgspec.structs.replace(message, tool_calls=calls)
    if any(map(_is_reference, message.parts)):
        odd, message = True, msgspec.structs.replace(message, parts=tuple(map(_without_reference, message.parts)))
    if refused:
        message = msgspec.structs.replace(message, other=_refused(message.other))
    return Completion(
        message=message,
        termination=termination,
        parse_error=parse_error,
        raw=bytes(choice.message).decode("utf-8", "replace") if odd else None,
        policy_version=version,
        usage=_usage(reply.usage),
    )


def _decoded(body: bytes, key: ApiKey) -> ChatReply:
    try:
        return _decode_reply(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError):
        try:  # half characters and NaN, which Python's own writer lets through, and its reader takes
            plain = replace_surrogates(json.loads(body))
        except ValueError:
            plain = None
        if plain is None:
            raise
        return _decode_reply(redact_key(msgspec.json.encode(plain), key.read()))


def _unreadable(got: str, body: bytes, where: str) -> TransientError:
    text = f"Expected a chat completion from {where}, got {got}"
    if body.lstrip()[:1] == b"<":  # a proxy's page while the server restarts, or the wrong address
        text += ". It looks like a web page: if it stays, see whether the base URL is right"
    error = TransientError(text)
    error.raw = body.decode("utf-8", "replace")
    return error


def _take_refusal(fields: dict[str, Any]) -> bool:
    """Whether the model refused; its words are then what it said, where it said nothing else."""
    refusal = fields.pop("refusal", None)
    if not isinstance(refusal, str):
        return False
    fields.setdefault("content", refusal)
    return True


def _take_marks(calls: Any) -> bool:
    """Whether a server marked a call as unreadable, which is for the reader to say; the mark is taken away."""
    dicts = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    marks = [call.pop("error", None) for call in dicts]
    return any(mark is not None for mark in marks)


def _refused(other: FrozenMap | None) -> FrozenMap:
    return FrozenMap.of({**({} if other is None else other.to_dict()), "refusal": True})


def _end_of(reply: ChatReply, message: Message) -> tuple[Termination, str | None]:
    """How the answer ended, and what is wrong with it if it has no end that a model gives."""
    choice = reply.choice
    reason = choice.finish_reason
    end = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if end is None:
        return Termination.MALFORMED, f"Expected an answer with an end, got the finish_reason {reason!r}."
    if end is Termination.TOOL_CALLS and not message.tool_calls:
        return Termination.MALFORMED, "Expected tool calls, as the finish_reason says, got none."
    if end is Termination.EOS:
        if message.tool_calls:
            return Termination.TOOL_CALLS, None
        if _met_stop_sequence(reply):
            return Termination.STOP_SEQUENCE, None
    return end, None


def _met_stop_sequence(reply: ChatReply) -> bool:
    """Whether a stop sequence ended the answer, where the server tells that from the model's own end."""
    choice = reply.choice
    told = isinstance(choice.stop_reason, str) or isinstance(choice.matched_stop, str)
    return told or (reply.verbose is not None and reply.verbose.stop_type == "word")


def _is_reference(part: Part) -> bool:
    """Whether a server wrote what only a record may say: which blob of the run this is."""
    return (part.blob is not None and part.blob.data is None) or (part.url or "").startswith("blob:")


def _without_reference(part: Part) -> Part:
    """The part with an address that no reader takes for a reference; the raw reply has it as it came."""
    if not _is_reference(part):
        return part
    url = part.url if part.blob is None else f"blob:{part.media_type or ''};{part.blob.name}"
    return msgspec.structs.replace(part, url=f"unknown-{url}", blob=None, media_type=None)


def _with_ids(calls: tuple[ToolCall, ...], place: int, taken: Set[str | None]) -> tuple[ToolCall, ...]:
    """The calls, each with an id of its own: tools' answers, and the servers that are sent them, need one."""
    seen: set[str | None] = {None, ""}
    given = {*taken, *(call.id for call in calls)}
    sure = []
    for number, call in enumerate(calls):
        sure.append(msgspec.structs.replace(call, id=make_call_id(place, number, given)) if call.id in seen else call)
        seen.add(call.id)
    return tuple(sure) if calls else calls


def _is_odd(call: ToolCall) -> bool:
    return not call.name or call.error is not None or not is_json_object(json_arguments(call.arguments))


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int:
        return None  # one count alone would make the other 0 in a record
    if not (0 <= prompt <= _MAX_TOKENS and 0 <= completion <= _MAX_TOKENS):
        return None
    return Usage(prompt, completion)
