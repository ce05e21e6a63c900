"""A conversation as text for a grader to read, in frames that nothing written inside them can close."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from rolltrace.trace.message import Message

_TAG_LENGTH = 12
_HIDDEN_PARTS = ("text", "thinking")
"""A mark within the content, which is shown anyway; and thoughts, which are no more shown than `reasoning` is."""


def render_transcript(messages: Sequence[Message]) -> str:
    """The messages in order, each in a frame that says who speaks; tool calls are shown, private reasoning is not.

    The frames bear a tag that no text of the conversation contains, so whatever a message says stays inside its own.
    """
    blocks = [block for message in messages for block in _blocks(message)]
    tag = unused_tag(text for block in blocks for text in block)
    return "\n\n".join(frame("message", text, tag, label) for label, text in blocks)


def frame(kind: str, text: str, tag: str | None = None, label: str = "") -> str:
    """The text between an opening and a closing line that bear the tag; without one, a tag is found for it."""
    tag = unused_tag((text, label)) if tag is None else tag
    opening = f"<{kind} {tag}: {label}>" if label else f"<{kind} {tag}>"
    return f"{opening}\n{text}\n</{kind} {tag}>"


def unused_tag(texts: Iterable[str]) -> str:
    """A short word that occurs in none of the texts: the same for the same texts, and nothing to be guessed from one.

    Of fixed length, unlike a fence that outgrows what it holds: a text made of fences would make that one endless.
    """
    texts = tuple(texts)
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    tags = (_tag(digest, number) for number in count())
    return next(tag for tag in tags if not any(tag in text for text in texts))


def _tag(digest: "hashlib.blake2b", number: int) -> str:
    again = digest.copy()
    again.update(str(number).encode())
    return again.hexdigest()[:_TAG_LENGTH]


def _blocks(message: Message) -> Iterator[tuple[str, str]]:
    """What is shown of a message: labels, and the text under each."""
    speaker = _word(message.role) if message.name is None else f"{_word(message.role)} {_quoted(message.name)}"
    parts = [part for part in message.parts if part.type not in _HIDDEN_PARTS]
    if message.content or not (message.tool_calls or parts):
        yield speaker, message.content
    for part in parts:
        yield f"{speaker}, a part of type {_quoted(part.type)}", "(not shown)" if part.text is None else part.text
    for call in message.tool_calls:
        what = "calls a tool" if call.error is None else "calls a tool, in a way that could not be read"
        yield f"{speaker} {what}", f"{call.name}({call.arguments})"


def _word(role: str) -> str:
    return role if role.isidentifier() else _quoted(role)


def _quoted(name: str) -> str:
    """On one line whatever it is: a policy can name a tool that does not exist as it likes."""
    return json.dumps(name)
