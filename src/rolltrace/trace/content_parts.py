"""Converts message content, a text or a list of parts, to text, parts, reasoning and tool calls, and back."""

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

from rolltrace.errors import RecordError
from rolltrace.trace.blob import Blob
from rolltrace.trace.freeform import Note, as_text, clean_text, describe, object_fields
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.tool_calls import read_tool_call, read_unparsed_call

_MEDIA = {
    "image_url": "image", "image": "image", "input_image": "image", "video_url": "video", "video": "video",
    "input_audio": "audio", "audio": "audio", "audio_url": "audio", "file": "file", "input_file": "file",
}  # fmt: skip
_DATA = ("data", "file_data", "base64", "bytes")
_SOURCES = {
    "image": ("url", *_DATA, "image_url", "image", "path"),
    "video": ("url", *_DATA, "video_url", "video", "path"),
    "audio": ("data", "url", *_DATA, "audio_url", "audio", "path"),
    "file": ("file_data", "url", *_DATA, "file_url", "path"),
}
"""Fields that may hold the bytes or the URL, in the order of preference; `part_to_openai` writes the first."""
_INNER = {"detail", "format", "filename", "file_id", "id", "min_pixels", "max_pixels", "fps"}
"""Fields that the chat API has beside the URL; other fields are beside the part's type."""
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif",
    b"%PDF-": "application/pdf", b"ID3": "audio/mp3", b"OggS": "audio/ogg", b"fLaC": "audio/flac",
}  # fmt: skip
_UNKNOWN = "application/octet-stream"
_BLOB = "blob:"


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
        known = object_fields(part)
        fields = {"type": "unreadable", "value": part} if known is None else dict(known)
        kind = fields.pop("type", None)
        if not isinstance(kind, str):
            kind = "text" if isinstance(fields.get("text"), str) else "untyped"
        if kind == "text":
            self._read_text(fields.pop("text", None), fields, path)
        elif kind in ("thinking", "reasoning"):
            self._read_reasoning(kind, fields, path)
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

    def _read_reasoning(self, kind: str, fields: dict[Any, Any], path: str) -> None:
        value = fields.pop(kind, None)
        reasoning = as_text(value if value is not None else fields.pop("text", None), path, self._notes)
        other = self._other(fields, path)
        if self.text or self.parts or self.reasoning or other is not None or not reasoning:
            self._in_text = False
            self.parts.append(Part("thinking", offset=len(self.text), text=reasoning, other=other))
        else:
            self.reasoning = reasoning

    def _other(self, fields: dict[Any, Any], path: str) -> FrozenMap | None:
        rest = {key: value for key, value in fields.items() if value is not None}
        return FrozenMap.of(rest, path, self._notes) if rest else None


def content_to_openai(message: Message) -> list[dict[str, Any]]:
    """Convert text and parts of a message to the list of parts of the chat API."""
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


def read_part(kind: str, fields: Mapping[Any, Any], at: int, path: str, notes: list[Note]) -> Part:
    """Convert a part that is not text; its bytes become a blob, and unknown fields are kept."""
    if kind == "refusal":
        rest = _rest(fields, "type", "refusal")
        text = as_text(fields.get("refusal"), f"{path}.refusal", notes)
        return Part("refusal", offset=at, text=text, other=FrozenMap.of(rest, path, notes) if rest else None)
    if kind in _MEDIA:
        return _media_part(kind, fields, at, path, notes)
    rest = {key: value for key, value in fields.items() if key != "type"}
    return Part(kind, offset=at, other=FrozenMap.of(rest, path, notes) if rest else None)


def part_to_openai(part: Part) -> dict[str, Any]:
    """Convert a part to the chat API; a blob without data becomes a `blob:` URL with its name."""
    rest = {} if part.other is None else part.other.to_dict()
    if part.type in ("thinking", "refusal"):
        return {"type": part.type, **rest, part.type: part.text or ""}
    if part.type not in _SOURCES:
        return {"type": part.type, **rest}
    inner = {key: rest.pop(key) for key in list(rest) if key in _INNER}
    media_type = part.media_type or _UNKNOWN
    data = None if part.blob is None or part.blob.data is None else base64.b64encode(part.blob.data).decode()
    if part.type == "audio" and data is not None and media_type.startswith("audio/"):
        audio = {"data": data, "format": media_type.removeprefix("audio/"), **inner}
        return {"type": "input_audio", **rest, "input_audio": audio}
    address = part.url if data is None else f"data:{media_type};base64,{data}"
    if part.blob is not None and data is None:
        address = f"{_BLOB}{media_type};{part.blob.name}"
    kind, place = ("file", "file_data") if part.type == "file" else (f"{part.type}_url", "url")
    return {"type": kind, **rest, kind: inner if address is None else {place: address, **inner}}


def _media_part(kind: str, fields: Mapping[Any, Any], at: int, path: str, notes: list[Note]) -> Part:
    medium = _MEDIA[kind]
    body = fields.get(kind)
    details = {key: value for key, value in fields.items() if key not in ("type", kind) and value is not None}
    if isinstance(body, Mapping):
        details.update((key, value) for key, value in body.items() if value is not None)
    elif body is not None:
        details = {"url": body, **_rest(details, "url")}
    place = next((key for key in _SOURCES[medium] if key in details), None)
    blob, url, media_type = None, None, None
    if place is not None:
        blob, url, media_type = _read_source(details.pop(place), place in _DATA, f"{path}.{place}", notes)
    elif "file_id" not in details and "id" not in details:
        notes.append(Note(path, f"expected bytes or an address in a part of type {kind}, got neither"))
    audio_format = details.get("format")
    is_format_text = medium == "audio" and type(audio_format) is str
    if blob is not None and is_format_text and media_type in (None, f"audio/{audio_format}"):
        media_type = f"audio/{clean_text(details.pop('format'), path, notes)}"
    if blob is not None and media_type is None:
        media_type = _guess_media_type(blob.data or b"")
    # In the order of `part_to_openai`, because the order of keys counts.
    details = {**_rest(details, *_INNER), **{key: value for key, value in details.items() if key in _INNER}}
    other = FrozenMap.of(details, path, notes) if details else None
    return Part(medium, offset=at, url=url, blob=blob, media_type=media_type, other=other)


def _rest(fields: Mapping[Any, Any], *known: str) -> dict[Any, Any]:
    return {key: value for key, value in fields.items() if key not in known and value is not None}


_Source = tuple[Blob | None, str | None, str | None]
"""The blob or the URL, and the media type if it is known."""


def _read_source(source: Any, is_data: bool, path: str, notes: list[Note]) -> _Source:
    if isinstance(source, bytes | bytearray | memoryview):
        return Blob.of(bytes(source)), None, None
    if isinstance(source, str):
        return _read_source_text(source, is_data, path, notes)
    if callable(getattr(source, "save", None)):  # a PIL image
        try:
            buffer = io.BytesIO()
            source.save(buffer, format="PNG")
            return Blob.of(buffer.getvalue()), None, "image/png"
        except Exception as error:  # noqa: BLE001 - the object may raise anything
            notes.append(Note(path, f"{type(error).__name__} while saving {describe(source)}"))
            return None, None, None
    notes.append(Note(path, f"expected bytes, an address or an image, got {describe(source)}"))
    return None, None, None


def _read_source_text(source: str, is_data: bool, path: str, notes: list[Note]) -> _Source:
    if source.startswith("data:"):
        return _read_data_url(source, path, notes)
    if source.startswith(_BLOB):
        media_type, _, name = source.removeprefix(_BLOB).rpartition(";")
        try:
            return Blob(name), None, clean_text(media_type, path, notes) or None
        except RecordError:
            return None, clean_text(source, path, notes), None
    # Base64 without a prefix is distinguished from a file name or path by its field, or by its length.
    if "://" not in source and (is_data or len(source) >= 128) and (data := _base64(source)):
        return Blob.of(data), None, None
    return None, clean_text(source, path, notes), None


def _read_data_url(source: str, path: str, notes: list[Note]) -> _Source:
    head, _, body = source.partition(",")
    if not head.endswith(";base64"):
        return None, clean_text(source, path, notes), None
    media_type = clean_text(head.removeprefix("data:").removesuffix(";base64"), path, notes)
    if (data := _base64(body)) is not None:
        return Blob.of(data), None, media_type or None
    notes.append(Note(path, "expected base64 after `;base64,`, got something else: its text is kept as bytes"))
    return Blob.of(source.encode("utf-8", "replace")), None, "text/plain"


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _guess_media_type(data: bytes) -> str:
    """Guess the media type from the first bytes."""
    if data[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(data[8:12], _UNKNOWN)
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), _UNKNOWN)
