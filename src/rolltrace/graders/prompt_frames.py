"""Renders conversations for a grader, in frames that no text inside them can close."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from rolltrace.trace.message import Message

TAG_LENGTH = 12
_HIDDEN_PARTS = ("text", "thinking")
"""The content has the text parts already, and thinking is as private as `reasoning`."""


def render_transcript(messages: Sequence[Message]) -> str:
    """The messages in order, each in a frame labelled with its role; with tool calls, without reasoning.

    The frames have a tag that occurs in no text of the conversation, so that no message can close its frame.
    """
    blocks = [block for message in messages for block in _blocks(message)]
    tag = unused_tag(text for block in blocks for text in block)
    return "\n\n".join(frame("message", text, tag, label) for label, text in blocks)


def frame(kind: str, text: str, tag: str, label: str = "") -> str:
    """The text between an opening and a closing line with the tag."""
    opening = f"<{kind} {tag}: {label}>" if label else f"<{kind} {tag}>"
    return f"{opening}\n{text}\n</{kind} {tag}>"


def unused_tag(texts: Iterable[str], length: int = TAG_LENGTH) -> str:
    """A short word that occurs in none of the texts: deterministic, but not predictable from one of the texts.

    It has a fixed length, unlike a fence that must be longer than any fence in the text.
    """
    texts = tuple(texts)
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    tags = (_tag(digest, number)[:length] for number in count())
    return next(tag for tag in tags if not any(tag in text for text in texts))


def _tag(digest: "hashlib.blake2b", number: int) -> str:
    numbered = digest.copy()
    numbered.update(str(number).encode())
    return numbered.hexdigest()


def _blocks(message: Message) -> Iterator[tuple[str, str]]:
    """The labels and texts of a message."""
    speaker = _word(message.role) if message.name is None else f"{_word(message.role)} {_quoted(message.name)}"
    parts = [part for part in message.parts if part.type not in _HIDDEN_PARTS]
    if message.content or not (message.tool_calls or parts):
        yield speaker, message.content
    for part in parts:
        yield f"{speaker}, a part of type {_quoted(part.type)}", "(not shown)" if part.text is None else part.text
    for call in message.tool_calls:
        action = "calls a tool" if call.error is None else "calls a tool, in a way that could not be read"
        yield f"{speaker} {action}", f"{call.name}({call.arguments})"


def _word(role: str) -> str:
    return role if role.isidentifier() else _quoted(role)


def _quoted(name: str) -> str:
    """The name in quotes on one line: a policy can put anything into the name of a tool."""
    return json.dumps(name)
