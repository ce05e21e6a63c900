"""Other people's messages into ours and back: chat dicts, content parts, pydantic objects.

Understood are the chat format of the OpenAI API, the message shape of tinker-cookbook, and objects of either whose
`model_dump()` gives such a dict. What is not understood is kept in `other`; what cannot be kept is noted.
"""

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

import msgspec

from rolltrace.trace.blob import Blob
from rolltrace.trace.freeform import Note, clean_text, describe, plain_mapping, plain_value
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall, ToolSpec

_MESSAGE_KEYS = {
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "reasoning_content",
    "unparsed_tool_calls", "parts", "other",
}  # fmt: skip
_PLAIN_MESSAGE = (str, str)


def as_message(value: Any, path: str, notes: list[Note]) -> Message:
    """Any message as an immutable one that shares nothing with it; never raises."""
    if type(value) is Message:
        return value if _is_sound(value) else clean_message(value, path, notes)
    fields = _fields(value)
    if fields is None:
        notes.append(Note(path, f"expected a message, got {describe(value)}"))
        return Message("user", str(plain_value(value, path, notes)))
    try:
        return _message(fields, path, notes)
    except Exception as error:  # noqa: BLE001 - a hostile mapping may raise anywhere
        notes.append(Note(path, f"{type(error).__name__} while reading a message: {describe(value)}"))
        return Message("user", f"[unreadable message: {type(error).__name__}]")


def clean_message(message: Message, path: str, notes: list[Note]) -> Message:
    """A message whose fields were set by hand, with each made what a record can hold."""
    shape = {name: getattr(message, name) for name in message.__struct_fields__}
    return _message(shape, path, notes)


def to_openai(message: Message) -> dict[str, Any]:
    """A message as a fresh chat dict, the caller's to change."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        chat["content"] = _content_list(message)
    if message.tool_calls:
        chat["tool_calls"] = [_tool_call_dict(call) for call in message.tool_calls]
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        chat["name"] = message.name
    if message.other is not None:
        chat.update(message.other.thaw())
    return chat


def as_tool(value: Any, path: str, notes: list[Note]) -> ToolSpec:
    """A tool in the shape of the OpenAI API, or flat, or ours, as an immutable one."""
    if type(value) is ToolSpec:
        return value
    fields = _fields(value) or {}
    body = fields.get("function")
    body = body if isinstance(body, Mapping) else fields
    return ToolSpec(
        _text(body.get("name"), f"{path}.name", notes),
        _text(body.get("description"), f"{path}.description", notes),
        FrozenMap.of(plain_mapping(body.get("parameters") or {}, f"{path}.parameters", notes)),
    )


def _is_sound(message: Message) -> bool:
    """Whether the fields are of their types; text is looked at only when it is encoded."""
    return (type(message.role), type(message.content)) == _PLAIN_MESSAGE and (
        not (message.parts or message.tool_calls)
        or (
            type(message.parts) is tuple
            and type(message.tool_calls) is tuple
            and all(type(part) is Part for part in message.parts)
            and all(type(call) is ToolCall and type(call.arguments) is str for call in message.tool_calls)
        )
    )


def _fields(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if callable(dump := getattr(value, "model_dump", None)):
        try:
            dumped = dump()
        except Exception:  # noqa: BLE001 - as above
            return None
        return dumped if isinstance(dumped, Mapping) else None
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return None


def _message(fields: Mapping[str, Any], path: str, notes: list[Note]) -> Message:
    reasoning = fields.get("reasoning") or fields.get("reasoning_content")
    reader = _ContentReader(path, notes, "" if reasoning is None else _text(reasoning, f"{path}.reasoning", notes))
    reader.read(fields.get("content"))
    reader.parts.extend(part for part in fields.get("parts") or () if isinstance(part, Part))
    for position, call in enumerate(fields.get("tool_calls") or ()):
        reader.tool_calls.append(_tool_call(call, f"{path}.tool_calls[{position}]", notes))
    for position, call in enumerate(fields.get("unparsed_tool_calls") or ()):
        reader.tool_calls.append(_unparsed(call, f"{path}.unparsed_tool_calls[{position}]", notes))
    return Message(
        role=_text(fields.get("role") or "user", f"{path}.role", notes),
        content=reader.text,
        parts=tuple(reader.parts),
        tool_calls=tuple(reader.tool_calls),
        tool_call_id=_optional_text(fields.get("tool_call_id"), f"{path}.tool_call_id", notes),
        name=_optional_text(fields.get("name"), f"{path}.name", notes),
        reasoning=reader.reasoning or None,
        other=_other(fields, _MESSAGE_KEYS, path, notes),
    )


def _other(fields: Mapping[str, Any], known: set[str], path: str, notes: list[Note]) -> FrozenMap | None:
    """The fields that have no place of their own; empty ones, as API objects have many, say nothing."""
    if isinstance(kept := fields.get("other"), FrozenMap):
        return kept
    rest = {key: value for key, value in fields.items() if key not in known and value is not None}
    return FrozenMap.of(plain_mapping(rest, path, notes)) if rest else None


def _text(value: Any, path: str, notes: list[Note]) -> str:
    """Text as it is; anything else as JSON."""
    if isinstance(value, str):
        return clean_text(value, path, notes)
    if value is None:
        return ""
    notes.append(Note(path, f"expected text, got {type(value).__name__}: kept as JSON"))
    return msgspec.json.encode(plain_value(value, path, notes)).decode()


def _optional_text(value: Any, path: str, notes: list[Note]) -> str | None:
    return None if value is None else _text(value, path, notes)


def _tool_call(call: Any, path: str, notes: list[Note]) -> ToolCall:
    if type(call) is ToolCall and type(call.arguments) is str and call.arguments.isascii():
        return call
    fields = _fields(call)
    if fields is None:
        return ToolCall("", _text(call, path, notes), error="not a tool call")
    body = fields.get("function")
    body = (_fields(body) if body is not None else None) or fields
    arguments = body.get("arguments")
    if isinstance(arguments, Mapping):  # parsed by whoever called the model: the model's own text is gone
        text = msgspec.json.encode(plain_mapping(arguments, f"{path}.arguments", notes)).decode()
    else:
        text = _text("{}" if arguments is None else arguments, f"{path}.arguments", notes)
    return ToolCall(
        name=_text(body.get("name"), f"{path}.name", notes),
        arguments=text,
        id=_optional_text(fields.get("id"), f"{path}.id", notes),
        error=_optional_text(fields.get("error"), f"{path}.error", notes),
    )


def _unparsed(call: Any, path: str, notes: list[Note]) -> ToolCall:
    fields = _fields(call) or {"raw_text": call}
    return ToolCall(
        "",
        _text(fields.get("raw_text"), f"{path}.raw_text", notes),
        error=_text(fields.get("error") or "could not be parsed", f"{path}.error", notes),
    )


class _ContentReader:
    """Reads a message's content, a text or a list of parts, into text, parts, reasoning and tool calls."""

    def __init__(self, path: str, notes: list[Note], reasoning: str) -> None:
        self.path = f"{path}.content"
        self.notes = notes
        self.text = ""
        self.reasoning = reasoning
        self.parts: list[Part] = []
        self.tool_calls: list[ToolCall] = []
        self._text_was_last = False

    def read(self, content: Any) -> None:
        if not isinstance(content, list | tuple):
            self.text = _text(content, self.path, self.notes)
            return
        for position, part in enumerate(content):
            self._read_part(part, f"{self.path}[{position}]")

    def _read_part(self, part: Any, path: str) -> None:
        fields = {"type": "text", "text": part} if isinstance(part, str) else _fields(part)
        if fields is None:
            fields = {"type": "unreadable", "value": part}
        kind = fields.get("type")
        text_was_last, self._text_was_last = self._text_was_last, kind == "text"
        if kind == "text":
            if text_was_last:
                self.parts.append(Part("text", at=len(self.text)))
            self.text += _text(fields.get("text"), f"{path}.text", self.notes)
        elif kind in ("thinking", "reasoning"):
            self._read_thought(_text(fields.get(kind) or fields.get("text"), path, self.notes))
        elif kind == "tool_call":
            self.tool_calls.append(_tool_call(fields.get("tool_call"), path, self.notes))
        elif kind == "unparsed_tool_call":
            self.tool_calls.append(_unparsed(fields, path, self.notes))
        else:
            self.parts.append(_media_part(str(kind), fields, len(self.text), path, self.notes))

    def _read_thought(self, thought: str) -> None:
        if self.text or self.parts or self.reasoning:
            self.parts.append(Part("thinking", at=len(self.text), text=thought))
        else:
            self.reasoning = thought


_MEDIA = {"image_url": "image", "image": "image", "input_image": "image", "input_audio": "audio", "audio": "audio",
          "audio_url": "audio", "video_url": "video", "video": "video", "file": "file", "input_file": "file"}  # fmt: skip
_SOURCES = ("url", "data", "file_data", "base64", "image", "audio", "video", "path", "bytes")


def _media_part(kind: str, fields: Mapping[str, Any], at: int, path: str, notes: list[Note]) -> Part:
    """A part that is not text: its bytes as a blob, its address as an address, the rest as it came."""
    body = fields.get(kind)
    inner = body if isinstance(body, Mapping) else {key: value for key, value in fields.items() if key != "type"}
    if kind == "refusal":
        return Part("refusal", at=at, text=_text(fields.get("refusal"), path, notes))
    if kind not in _MEDIA:
        return Part(kind, at=at, other=FrozenMap.of(plain_mapping(inner, path, notes)))
    if body is not None and not isinstance(body, Mapping):
        inner = {**inner, kind: None, "url": body}
    source = next((key for key in _SOURCES if inner.get(key) is not None), None)
    rest = {key: value for key, value in inner.items() if key != source and value is not None}
    medium = _MEDIA[kind]
    blob, url, media_type = _carried(inner.get(source) if source else None, f"{path}.{source}", notes)
    if media_type is None and medium == "audio" and isinstance(rest.get("format"), str):
        media_type = f"audio/{rest['format']}"
    other = FrozenMap.of(plain_mapping(rest, path, notes)) if rest else None
    return Part(medium, at=at, url=url, blob=blob, media_type=media_type, other=other)


def _carried(source: Any, path: str, notes: list[Note]) -> tuple[Blob | None, str | None, str | None]:
    """The blob, or the address, and the media type of what a part points at."""
    if isinstance(source, bytes | bytearray | memoryview):
        return Blob.of(bytes(source)), None, None
    if isinstance(source, str):
        if source.startswith("data:"):
            return _data_address(source, path, notes)
        if "://" in source or len(source) < 128 or not (data := _base64(source)):
            return None, clean_text(source, path, notes), None
        return Blob.of(data), None, None
    if callable(getattr(source, "save", None)) and hasattr(source, "size"):  # an image of PIL
        try:
            buffer = io.BytesIO()
            source.save(buffer, format="PNG")
            return Blob.of(buffer.getvalue()), None, "image/png"
        except Exception as error:  # noqa: BLE001 - a foreign object may do anything
            notes.append(Note(path, f"{type(error).__name__} while saving {describe(source)}"))
            return None, None, None
    notes.append(Note(path, f"expected bytes, an address or an image, got {describe(source)}"))
    return None, None, None


def _data_address(source: str, path: str, notes: list[Note]) -> tuple[Blob | None, str | None, str | None]:
    head, _, body = source.partition(",")
    media_type = head.removeprefix("data:").split(";")[0] or None
    if head.endswith(";base64") and (data := _base64(body)) is not None:
        return Blob.of(data), None, media_type
    if not head.endswith(";base64"):
        return None, clean_text(source, path, notes), media_type
    notes.append(Note(path, "expected base64 after `;base64,`, got something else: its text is kept as bytes"))
    return Blob.of(source.encode("utf-8", "replace")), None, "text/plain"


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _content_list(message: Message) -> list[dict[str, Any]]:
    """Text and parts in the order in which they stand."""
    content: list[dict[str, Any]] = []
    done = 0
    for part in message.parts:
        if part.at > done:
            content.append({"type": "text", "text": message.content[done : part.at]})
            done = part.at
        if part.type != "text":
            content.append(_part_dict(part))
    if done < len(message.content):
        content.append({"type": "text", "text": message.content[done:]})
    return content


def _part_dict(part: Part) -> dict[str, Any]:
    rest = {} if part.other is None else part.other.thaw()
    if part.type in ("thinking", "refusal"):
        return {"type": part.type, part.type: part.text or ""}
    data = None if part.blob is None or part.blob.data is None else base64.b64encode(part.blob.data).decode()
    if part.type == "audio" and data is not None:
        audio_format = (part.media_type or "audio/wav").removeprefix("audio/")
        return {"type": "input_audio", "input_audio": {"format": audio_format, **rest, "data": data}}
    address = part.url if data is None else f"data:{part.media_type or 'application/octet-stream'};base64,{data}"
    if part.type == "file":
        return {"type": "file", "file": {**rest, "file_data": address}}
    if part.type in ("image", "video", "audio"):
        return {"type": f"{part.type}_url", f"{part.type}_url": {"url": address, **rest}}
    return {"type": part.type, **rest}


def _tool_call_dict(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
