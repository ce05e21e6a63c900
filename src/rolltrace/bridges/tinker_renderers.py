"""Watches renderers of tinker-cookbook: which messages an env rendered to a prompt, and how it parsed a response."""

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol

from rolltrace.bridges.guard import Guard, copied
from rolltrace.bridges.tinker_package import (
    EncodedTextChunk,
    Renderer,
    ToolCall,
    UnparsedToolCall,
    classify_parse_failure,
)
from rolltrace.trace.content_parts import content_to_openai
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Termination

_METHODS = ("build_generation_prompt", "parse_response")
_watched: "list[weakref.ref[Any]]" = []


class Rendered(NamedTuple):
    """A prompt that was rendered."""

    prompt: Any
    messages: tuple[Any, ...]
    prefill: str | None
    renderer: Renderer


class Listener(Protocol):
    """What hears of a renderer's work."""

    guard: Guard

    def rendered(self, rendered: Rendered) -> None:
        """A prompt was rendered."""

    def parsed(self, tokens: Sequence[int], parsed: tuple[Any, Any]) -> None:
        """A response was parsed."""


listening: "ContextVar[Listener | None]" = ContextVar("rolltrace_tinker_env", default=None)
"""What renders and parses now; threads that `asyncio.to_thread` starts have it, too."""


def renderers_of(*owners: Any) -> list[Renderer]:
    """The renderers among the attributes of these objects, and of the objects in their attributes."""
    values = [value for owner in owners for value in list(getattr(owner, "__dict__", {}).values())]
    inner = [one for value in values for one in list(getattr(value, "__dict__", {}).values())]
    return [value for value in (*values, *inner) if isinstance(value, Renderer)]


def watch_renderers(*owners: Any) -> None:
    """Watch the renderers of these objects. Their pickles and copies by `get_renderer` are as before."""
    for renderer in renderers_of(*owners):
        if not isinstance(vars(renderer).get(_METHODS[0]), partial):
            _watched.append(weakref.ref(renderer))
            for name, recorded in zip(_METHODS, (_recorded_render, _recorded_parse), strict=True):
                setattr(renderer, name, partial(recorded, renderer, getattr(renderer, name)))


def unwatch_renderers() -> None:
    """Give all renderers their own methods back."""
    for renderer in filter(None, (reference() for reference in _watched)):
        for name in _METHODS:
            _, original = vars(renderer).pop(name).args
            if getattr(renderer, name) != original:  # the renderer had one of its own, not of its class
                setattr(renderer, name, original)
    _watched.clear()


def _recorded_render(
    renderer: Renderer, original: Callable[..., Any], messages: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    prompt = original(messages, *args, **kwargs)
    if (listener := listening.get()) is not None:
        prefill = args[1] if len(args) > 1 else kwargs.get("prefill")
        listener.guard(_tell, listener, prompt, messages, prefill, renderer)
    return prompt


def _tell(listener: Listener, prompt: Any, messages: Sequence[Any], prefill: str | None, renderer: Renderer) -> None:
    listener.rendered(Rendered(prompt, tuple(copied([*messages])), prefill, renderer))


def _recorded_parse(
    _renderer: Renderer, original: Callable[..., Any], response: list[int], *args: Any, **kwargs: Any
) -> Any:
    parsed = original(response, *args, **kwargs)
    if (listener := listening.get()) is not None:
        listener.guard(_tell_parsed, listener, response, parsed)
    return parsed


def _tell_parsed(listener: Listener, response: Sequence[int], parsed: tuple[Any, Any]) -> None:
    message, termination = parsed
    listener.parsed(response, (copied(message), termination))


class Response(NamedTuple):
    """A response as a renderer reads it; named as the fields of a step."""

    response: Any
    termination: Termination
    parse_error: str | None = None
    raw: str | None = None
    """Its text, where the message does not have it."""


def read_response(
    renderer: Renderer, tokens: Sequence[int], is_cut: bool, stop: Any = None, parsed: tuple[Any, Any] | None = None
) -> Response:
    """Read a response, or what the env parsed of it. `is_cut` says that the token limit ended it.

    `stop` are the signs that sampling was to end at. Where they are not those of the renderer, it cannot know that a
    response ended well.
    """
    if parsed is None:
        try:
            parsed = type(renderer).parse_response(renderer, list(tokens))
        except Exception as error:  # noqa: BLE001 - a renderer may refuse what was sampled
            termination = Termination.LENGTH if is_cut else Termination.MALFORMED
            text = str(renderer.tokenizer.decode(list(tokens)))
            return Response({"role": "assistant", "content": text}, termination, f"{type(error).__name__}: {error}")
    message, ended = parsed
    termination = Termination(str(ended))
    failure = classify_parse_failure(message, ended)
    if termination is Termination.MALFORMED and (is_cut or stop not in (None, list(renderer.get_stop_sequences()))):
        termination, failure = Termination.STOP_SEQUENCE, None
    is_plain = failure is None and isinstance(message["content"], str)
    return Response(
        message,
        Termination.LENGTH if is_cut else termination,
        None if failure is None else failure[1],
        None if is_plain else str(renderer.tokenizer.decode(list(tokens))),
    )


def token_ids(prompt: Any) -> tuple[int, ...]:
    """The ids of the text in a prompt, without its images."""
    texts = [chunk.tokens for chunk in prompt.chunks if isinstance(chunk, EncodedTextChunk)]
    return tuple(token for tokens in texts for token in tokens)


def image_tokens(prompt: Any) -> list[list[int]]:
    """Of each image in a prompt, its place among the ids of the text, and how many tokens it has."""
    places, position = [], 0
    for chunk in prompt.chunks:
        if isinstance(chunk, EncodedTextChunk):
            position += len(chunk.tokens)
        else:
            places.append([position, chunk.length])
    return places


def to_chat(message: Message) -> dict[str, Any]:
    """A message of ours as one of tinker-cookbook."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None or message.parts:
        parts: list[dict[str, Any]] = [{"type": "thinking", "thinking": message.reasoning}] if message.reasoning else []
        parts += content_to_openai(message) if message.parts else [{"type": "text", "text": message.content}]
        chat["content"] = [
            {"type": "image", "image": part["image_url"]["url"]} if part["type"] == "image_url" else part
            for part in parts
        ]
    if good := [call for call in message.tool_calls if call.error is None]:
        chat["tool_calls"] = [
            ToolCall(id=call.id, function=ToolCall.FunctionBody(name=call.name, arguments=call.arguments))
            for call in good
        ]
    if bad := [call for call in message.tool_calls if call.error is not None]:
        chat["unparsed_tool_calls"] = [UnparsedToolCall(raw_text=one.arguments, error=str(one.error)) for one in bad]
    names = {"tool_call_id": message.tool_call_id, "name": message.name}
    return {**chat, **{name: value for name, value in names.items() if value is not None}}
