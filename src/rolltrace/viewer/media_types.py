"""Bytes that messages carry: shown where they are an image of a kind that cannot run anything, else only saved."""

from typing import NamedTuple

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class MediaType(NamedTuple):
    """How bytes are sent."""

    media_type: str
    is_attachment: bool


def detect_media_type(data: bytes) -> MediaType:
    """How bytes are sent, by what they begin with and by nothing that anybody says about them."""
    for beginning, media_type in _MAGIC:
        if data.startswith(beginning):
            return MediaType(media_type, False)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return MediaType("image/webp", False)
    return MediaType("application/octet-stream", True)
