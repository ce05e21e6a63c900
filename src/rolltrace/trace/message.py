"""Messages, tool calls and tools, as immutable records.

What they hold cannot hold them, so the garbage collector need not look at them: a run keeps millions.
"""

from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.field_types import Text
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import Float


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True, gc=False):
    """One call of a tool that the policy asked for."""

    name: str
    """The tool's name as the policy wrote it; empty where it could not be read."""
    arguments: Text = "{}"
    """The arguments exactly as the policy wrote them: JSON if it was careful."""
    id: str | None = None
    """What the tool's answer refers to."""
    error: Text | None = None
    """Why the call could not be parsed; `arguments` then holds its raw text."""
    other: FrozenMap | None = None
    """Its other fields, as they came."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True, gc=False):
    """A part of a message that is not plain text, or a mark where a new text part begins."""

    type: str
    """`image`, `audio`, `video`, `file`, `thinking`, `refusal`, `text` (a mark), or the name a provider gave it."""
    offset: int = 0
    """Where it stands: the number of characters of the message's `content` before it."""
    text: Text | None = None
    """Text of its own, such as a thought between two pieces of text."""
    url: Text | None = None
    """The address of something that is not carried, kept as an address."""
    blob: Blob | None = None
    """The bytes it carries."""
    media_type: str | None = None
    """Such as `image/png`."""
    other: FrozenMap | None = None
    """Its other fields, as they came."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True, gc=False):
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant`, `tool`, or another that a policy understands."""
    content: Text
    """Its text: what a reader sees of it; never null."""
    parts: tuple[Part, ...] = ()
    """What is not text, in order."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What the policy asked for."""
    tool_call_id: str | None = None
    """In a tool's answer, the call it answers."""
    name: str | None = None
    """Who speaks, where the role does not say it; in a tool's answer, the tool."""
    reasoning: Text | None = None
    """What the policy thought before it spoke, where that is known apart from the content."""
    other: FrozenMap | None = None
    """Its other fields, as they came."""


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True, gc=False):
    """A tool that a policy may call."""

    name: str
    description: Text
    parameters: FrozenMap
    """The arguments, as a JSON schema of an object."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True, gc=False):
    """How a policy is asked to sample; None leaves it to the policy."""

    temperature: Float | None = None
    top_p: Float | None = None
    top_k: int | None = None
    min_p: Float | None = None
    max_tokens: int | None = None
    stop: tuple[Text, ...] = ()
    other: FrozenMap | None = None
    """Settings that only some policies know."""


def encode_hook(value: Any) -> Any:
    """How msgspec writes the types it does not know."""
    if isinstance(value, FrozenMap):
        return msgspec.Raw(value.json_bytes)
    if isinstance(value, Blob):
        return value.name
    raise NotImplementedError(f"expected a record, got {type(value).__name__}")


def decode_hook(kind: type, value: Any) -> Any:
    """How msgspec reads the types it does not know."""
    if kind is FrozenMap and isinstance(value, dict):
        frozen = FrozenMap(msgspec.json.encode(value))
        frozen.to_dict()  # raises now if it is nested too deeply to be read
        return frozen
    if kind is Blob and isinstance(value, str):
        return Blob(value)
    raise ValueError(f"Expected `{'object' if kind is FrozenMap else 'str'}`, got `{type(value).__name__}`")
