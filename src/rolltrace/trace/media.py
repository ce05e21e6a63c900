"""Images, audio, files and other parts of a message that are not text, into ours and back."""

import base64
import binascii
import io
from collections.abc import Mapping
from typing import Any

from rolltrace.errors import RecordError
from rolltrace.trace.blob import Blob
from rolltrace.trace.freeform import Note, as_text, clean_text, describe
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Part

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
"""Where the bytes or the address may stand; first the place that `part_to_openai` gives them."""
_INNER = {"detail", "format", "filename", "file_id", "id", "min_pixels", "max_pixels", "fps"}
"""Settings of the thing itself, which the chat API has beside its address; others stand beside the part's type."""
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif",
    b"%PDF-": "application/pdf", b"ID3": "audio/mp3", b"OggS": "audio/ogg", b"fLaC": "audio/flac",
}  # fmt: skip
_UNKNOWN = "application/octet-stream"
_BLOB = "blob:"


def read_part(kind: str, fields: Mapping[Any, Any], at: int, path: str, notes: list[Note]) -> Part:
    """A part that is not text: its bytes as a blob, its address as an address, the rest as it came."""
    if kind == "refusal":
        rest = _rest(fields, "type", "refusal")
        text = as_text(fields.get("refusal"), f"{path}.refusal", notes)
        return Part("refusal", offset=at, text=text, other=FrozenMap.of(rest, path, notes) if rest else None)
    if kind in _MEDIA:
        return _media_part(kind, fields, at, path, notes)
    rest = {key: value for key, value in fields.items() if key != "type"}
    return Part(kind, offset=at, other=FrozenMap.of(rest, path, notes) if rest else None)


def part_to_openai(part: Part) -> dict[str, Any]:
    """A part as the chat API has it, or as it came; bytes that are not at hand are named `blob:` and their name."""
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
    given = {key: value for key, value in fields.items() if key not in ("type", kind) and value is not None}
    if isinstance(body, Mapping):
        given.update((key, value) for key, value in body.items() if value is not None)
    elif body is not None:
        given = {"url": body, **_rest(given, "url")}
    place = next((key for key in _SOURCES[medium] if key in given), None)
    blob, url, media_type = None, None, None
    if place is not None:
        blob, url, media_type = _carried(given.pop(place), place in _DATA, f"{path}.{place}", notes)
    elif "file_id" not in given and "id" not in given:
        notes.append(Note(path, f"expected bytes or an address in a part of type {kind}, got neither"))
    spoken = given.get("format")
    if blob is not None and medium == "audio" and type(spoken) is str and media_type in (None, f"audio/{spoken}"):
        media_type = f"audio/{clean_text(given.pop('format'), path, notes)}"
    if blob is not None and media_type is None:
        media_type = _guess(blob.data or b"")
    # In the order in which `part_to_openai` gives them, because the order of keys counts.
    given = {**_rest(given, *_INNER), **{key: value for key, value in given.items() if key in _INNER}}
    other = FrozenMap.of(given, path, notes) if given else None
    return Part(medium, offset=at, url=url, blob=blob, media_type=media_type, other=other)


def _rest(fields: Mapping[Any, Any], *known: str) -> dict[Any, Any]:
    return {key: value for key, value in fields.items() if key not in known and value is not None}


_Carried = tuple[Blob | None, str | None, str | None]
"""The blob, or the address, and the media type where it was said."""


def _carried(source: Any, is_data: bool, path: str, notes: list[Note]) -> _Carried:
    if isinstance(source, bytes | bytearray | memoryview):
        return Blob.of(bytes(source)), None, None
    if isinstance(source, str):
        return _from_text(source, is_data, path, notes)
    if callable(getattr(source, "save", None)):  # an image of PIL
        try:
            buffer = io.BytesIO()
            source.save(buffer, format="PNG")
            return Blob.of(buffer.getvalue()), None, "image/png"
        except Exception as error:  # noqa: BLE001 - a foreign object may do anything
            notes.append(Note(path, f"{type(error).__name__} while saving {describe(source)}"))
            return None, None, None
    notes.append(Note(path, f"expected bytes, an address or an image, got {describe(source)}"))
    return None, None, None


def _from_text(source: str, is_data: bool, path: str, notes: list[Note]) -> _Carried:
    if source.startswith("data:"):
        return _data_address(source, path, notes)
    if source.startswith(_BLOB):
        media_type, _, name = source.removeprefix(_BLOB).rpartition(";")
        try:
            return Blob(name), None, clean_text(media_type, path, notes) or None
        except RecordError:
            return None, clean_text(source, path, notes), None
    # Base64 without a heading is told from a short name or a path by where it stands, or by its length.
    if "://" not in source and (is_data or len(source) >= 128) and (data := _base64(source)):
        return Blob.of(data), None, None
    return None, clean_text(source, path, notes), None


def _data_address(source: str, path: str, notes: list[Note]) -> _Carried:
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


def _guess(data: bytes) -> str:
    """The media type by the first bytes, where nobody said it."""
    if data[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(data[8:12], _UNKNOWN)
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), _UNKNOWN)
