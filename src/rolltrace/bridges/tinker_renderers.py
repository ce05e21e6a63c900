"""Watches renderers of tinker-cookbook: which messages an env rendered to a prompt, and how it parsed a response."""

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Protocol

from rolltrace.bridges.guard import Guard
from rolltrace.bridges.tinker_package import Renderer

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
                setattr(renderer, name, partial(recorded, getattr(renderer, name)))


def unwatch_renderers() -> None:
    """Give all renderers their own methods back."""
    for renderer in filter(None, (reference() for reference in _watched)):
        for name in _METHODS:
            vars(renderer).pop(name, None)
    _watched.clear()


def _recorded_render(original: Callable[..., Any], messages: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    prompt = original(messages, *args, **kwargs)
    if (listener := listening.get()) is not None:
        prefill = args[1] if len(args) > 1 else kwargs.get("prefill")
        listener.guard(_tell, listener, prompt, messages, prefill, original)
    return prompt


def _tell(listener: Listener, prompt: Any, messages: Sequence[Any], prefill: str | None, original: Any) -> None:
    listener.rendered(Rendered(prompt, tuple(messages), prefill, original.__self__))


def _recorded_parse(original: Callable[..., Any], response: list[int], *args: Any, **kwargs: Any) -> Any:
    parsed = original(response, *args, **kwargs)
    if (listener := listening.get()) is not None:
        listener.guard(listener.parsed, response, parsed)
    return parsed
