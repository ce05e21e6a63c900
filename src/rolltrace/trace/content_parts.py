"""A message's content, a text or a list of parts, into text, parts, reasoning and tool calls, and back."""

from typing import Any

from rolltrace.trace.freeform import Note, as_text, clean_text, object_fields
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.media import part_to_openai, read_part
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.tool_calls import read_tool_call, read_unparsed_call


class ContentReader:
    """Reads the content of one message, part by part."""

    def __init__(self, path: str, notes: list[Note], reasoning: str) -> None:
        self.text = ""
        self.reasoning = reasoning
        self.parts: list[Part] = []
        self.tool_calls: list[ToolCall] = []
        self._path = path
        self._notes = notes
        self._in_text = False

    def read(self, content: Any) -> None:
        """Read the whole content."""
        if not isinstance(content, list | tuple):
            self.text = as_text(content, self._path, self._notes)
            return
        for position, part in enumerate(content):
            self._read_part(part, f"{self._path}[{position}]")

    def _read_part(self, part: Any, path: str) -> None:
        if isinstance(part, str):
            self._read_text(part, {}, path)
            return
        if (given := object_fields(part)) is None:
            given = {"type": "unreadable", "value": part}
        fields = dict(given)
        kind = fields.pop("type", None)
        if not isinstance(kind, str):
            kind = "text" if isinstance(fields.get("text"), str) else "untyped"
        if kind == "text":
            self._read_text(fields.pop("text", None), fields, path)
        elif kind in ("thinking", "reasoning"):
            self._read_thought(kind, fields, path)
        elif kind == "tool_call":
            self.tool_calls.append(read_tool_call(fields.get("tool_call"), path, self._notes))
        elif kind == "unparsed_tool_call":
            self.tool_calls.append(read_unparsed_call(fields, path, self._notes))
        else:
            self._in_text = False
            kind = clean_text(kind, path, self._notes)
            self.parts.append(read_part(kind, fields, len(self.text), path, self._notes))

    def _read_text(self, text: Any, fields: dict[Any, Any], path: str) -> None:
        text = as_text(text, f"{path}.text", self._notes)
        other = self._other(fields, path)
        if self._in_text or other is not None:
            self.parts.append(Part("text", offset=len(self.text), other=other))
        self._in_text = self._in_text or other is not None or bool(text)
        self.text += text

    def _read_thought(self, kind: str, fields: dict[Any, Any], path: str) -> None:
        named = fields.pop(kind, None)
        thought = as_text(named if named is not None else fields.pop("text", None), path, self._notes)
        other = self._other(fields, path)
        if self.text or self.parts or self.reasoning or other is not None or not thought:
            self._in_text = False
            self.parts.append(Part("thinking", offset=len(self.text), text=thought, other=other))
        else:
            self.reasoning = thought

    def _other(self, fields: dict[Any, Any], path: str) -> FrozenMap | None:
        rest = {key: value for key, value in fields.items() if value is not None}
        return FrozenMap.of(rest, path, self._notes) if rest else None


def content_to_openai(message: Message) -> list[dict[str, Any]]:
    """Text and parts in the order in which they stand."""
    content: list[dict[str, Any]] = []
    done = 0
    mark: Part | None = None

    def end_text(at: int) -> None:
        nonlocal done, mark
        if at > done or mark is not None:
            rest = {} if mark is None or mark.other is None else mark.other.to_dict()
            content.append({"type": "text", **rest, "text": message.content[done:at]})
        done, mark = max(done, at), None

    for part in message.parts:
        end_text(part.offset)
        if part.type == "text":
            mark = part
        else:
            content.append(part_to_openai(part))
    end_text(len(message.content))
    return content
