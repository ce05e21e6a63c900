"""Media types of blobs: images of formats that cannot contain scripts are shown, all others are downloaded."""

from typing import NamedTuple

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class MediaType(NamedTuple):
    """How a blob is sent."""

    media_type: str
    is_attachment: bool


def detect_media_type(data: bytes) -> MediaType:
    """The media type by the first bytes alone; what a record says about a blob is not trusted."""
    for beginning, media_type in _MAGIC:
        if data.startswith(beginning):
            return MediaType(media_type, False)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return MediaType("image/webp", False)
    return MediaType("application/octet-stream", True)
