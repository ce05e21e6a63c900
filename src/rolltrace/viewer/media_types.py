"""Media types of blobs: images of formats that cannot contain scripts are shown, all others are downloaded."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def detect_image_type(data: bytes) -> str | None:
    """The media type of an image by its first bytes alone; what a record says about a blob is not trusted."""
    for beginning, media_type in _MAGIC:
        if data.startswith(beginning):
            return media_type
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None
