"""Unpacks a whole API response into the policy's message and what else it says about the turn."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rolltrace.errors import InputError
from rolltrace.trace.freeform import describe
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import FINISH_REASONS, Termination

_FACTS = ("id", "model", "created", "created_at", "system_fingerprint", "service_tier", "status")
"""Fields of a response that are recorded as they are."""


class ApiResponse(NamedTuple):
    """What one API response says about one turn."""

    message: Any
    """The policy's message: an object or dict of the API's."""
    termination: Termination | None
    parse_error: str | None
    usage: Any
    facts: dict[str, Any]
    """The response's id, model and similar fields."""


def unpack_response(response: Any) -> ApiResponse | None:
    """The parts of a chat completion, a text completion, one choice, or a response of the Responses API.

    None for any other value, such as a message. Raises `InputError` for several choices.
    """
    if isinstance(response, str | Message) or (isinstance(response, Mapping) and "role" in response):
        return None
    try:
        if _is_list(choices := _field(response, "choices")):
            return _from_completion(response, choices)
        if _is_list(output := _field(response, "output")):
            return _from_output(response, output)
        if _field(_field(response, "message"), "role") is not None:
            return _from_choice(response, response)
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - a foreign object may raise anything; it is then recorded like any other value
        return None
    return None


def _from_completion(response: Any, choices: Sequence[Any]) -> ApiResponse:
    if not choices:
        message = {"role": "assistant", "content": ""}
        reason = "the response has no choices"
        return ApiResponse(message, Termination.MALFORMED, reason, _field(response, "usage"), _facts(response))
    if len(choices) > 1:
        raise InputError(
            f"Expected a response with one choice, got {len(choices)}: record each choice as a rollout of its own, "
            "with response=completion.choices[i].message."
        )
    return _from_choice(response, choices[0])


def _from_choice(response: Any, choice: Any) -> ApiResponse:
    message = _field(choice, "message")
    if message is None and isinstance(text := _field(choice, "text"), str):
        message = {"role": "assistant", "content": text}
    if message is None:
        raise InputError(
            f"Expected a choice with a message, got {describe(choice)}: collect the chunks of a stream into a message "
            "first."
        )
    reason = _field(choice, "finish_reason")
    termination, parse_error = _end_of(reason, has_calls=bool(_field(message, "tool_calls")))
    return ApiResponse(message, termination, parse_error, _field(response, "usage"), _facts(response, reason))


def _end_of(reason: Any, has_calls: bool) -> tuple[Termination | None, str | None]:
    if reason is None:
        return None, None
    termination = FINISH_REASONS.get(reason) if isinstance(reason, str) else None
    if termination is None:
        return Termination.MALFORMED, f"finish_reason is {describe(reason)}"
    if termination is Termination.EOS and has_calls:
        termination = Termination.TOOL_CALLS
    return termination, None


# The Responses API: a list of items instead of a message


def _from_output(response: Any, output: Sequence[Any]) -> ApiResponse:
    content: list[Any] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for item in output:
        kind = _field(item, "type")
        if kind == "message":
            content.extend(map(_content_part, _field(item, "content") or ()))
        elif kind in ("function_call", "custom_tool_call"):
            calls.append(_call(item))
        elif kind == "reasoning":
            thoughts.extend(_thoughts(item))
        else:
            content.append(item)  # such as a search by the server: kept as a part of its type
    message: dict[str, Any] = {"role": "assistant", "content": _joined(content)}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    termination, parse_error = _end_of_output(response, bool(calls))
    return ApiResponse(message, termination, parse_error, _field(response, "usage"), _facts(response))


def _content_part(part: Any) -> Any:
    if _field(part, "type") != "output_text":
        return part
    marks = _field(part, "annotations")
    text = {"type": "text", "text": _field(part, "text")}
    return {**text, "annotations": marks} if marks else text


def _joined(content: list[Any]) -> Any:
    """A lone text as text, which is what a chat history would hold."""
    if not content:
        return ""
    only = content[0]
    return only["text"] if len(content) == 1 and isinstance(only, dict) and set(only) == {"type", "text"} else content


def _call(item: Any) -> dict[str, Any]:
    arguments = _field(item, "arguments")
    body = {"name": _field(item, "name"), "arguments": _field(item, "input") if arguments is None else arguments}
    return {"id": _field(item, "call_id"), "type": "function", "function": body}


def _thoughts(item: Any) -> list[str]:
    """The reasoning itself if the server gives it, else its summary."""
    pieces = _field(item, "content") or _field(item, "summary") or ()
    return [text for piece in pieces if isinstance(text := _field(piece, "text"), str)]


def _end_of_output(response: Any, has_calls: bool) -> tuple[Termination | None, str | None]:
    status = _field(response, "status")
    if status is None or status == "completed":
        return (Termination.TOOL_CALLS if has_calls else Termination.EOS), None
    reason = _field(_field(response, "incomplete_details"), "reason")
    if status == "incomplete" and reason == "max_output_tokens":
        return Termination.LENGTH, None
    message = _field(_field(response, "error"), "message") or reason
    return Termination.MALFORMED, f"status is {status}" + (f": {message}" if message else "")


def _facts(response: Any, reason: Any = None) -> dict[str, Any]:
    facts = {name: _field(response, name) for name in _FACTS}
    facts["finish_reason"] = reason
    return {name: value for name, value in facts.items() if isinstance(value, str | int | float)}


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
