"""Bytes that a message carries, named by their content."""

import hashlib
import re
from typing import Any

from rolltrace.errors import RecordError

_NAME = re.compile(r"sha256-[0-9a-f]{64}")


def validate_blob_name(name: str) -> str:
    """The name, if it is one: it becomes a file's name, a record may hold anything, and no path is ever followed."""
    if not _NAME.fullmatch(name):
        raise RecordError(f"Expected a blob's name, `sha256-` and 64 hexadecimal digits, got {name!r}.")
    return name


class Blob:
    """Image, audio or other bytes: the record holds the name, the run's `blobs/` holds the bytes, once.

    A blob that was read back from a record has a name and no data.
    """

    __slots__ = ("data", "name")

    def __init__(self, name: str, data: bytes | None = None) -> None:
        self.name = validate_blob_name(name)
        """`sha256-` and the hexadecimal digest of the bytes; also the file's name in `blobs/`."""
        self.data = data

    @classmethod
    def of(cls, data: bytes) -> "Blob":
        """The blob of these bytes."""
        return cls(f"sha256-{hashlib.sha256(data).hexdigest()}", data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Blob({self.name!r}, {'no data' if self.data is None else f'{len(self.data)} bytes'})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Blob, (self.name, self.data)
