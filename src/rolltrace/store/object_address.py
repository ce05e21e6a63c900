"""Addresses of runs and folders in object stores, such as `s3://bucket/runs/gsm8k`."""

import os
import re
from pathlib import Path, PosixPath
from typing import Self

from rolltrace.errors import InputError

_ADDRESS = re.compile(r"(s3|gs|az):/{1,2}(?=[^/])")  # `Path("s3://bucket")` is `s3:/bucket`
_OTHER_URL = re.compile(r"(s3[an]?|gs|gcs|az|abfss?|https?|file|hf):(/|$)", re.IGNORECASE)


class ObjectAddress(PosixPath):
    """An address as a path: it can be joined and compared, but no file of this machine is at it."""

    def __str__(self) -> str:
        return _ADDRESS.sub(r"\1://", super().__str__(), count=1)

    def resolve(self, strict: bool = False) -> Self:
        """Return the address, which has no links."""
        return self

    def absolute(self) -> Self:
        """Return the address, which does not depend on the current directory."""
        return self

    @property
    def bucket(self) -> str:
        """The scheme and the bucket, such as `s3://bucket`."""
        scheme, name = self.parts[:2]
        return f"{scheme}//{name}"

    @property
    def key(self) -> str:
        """The name inside the bucket; empty for the bucket itself."""
        return "/".join(self.parts[2:])


def is_address(path: str | Path) -> bool:
    """Whether this names a place in an object store."""
    return isinstance(path, ObjectAddress) or _ADDRESS.match(str(path)) is not None


def store_variables(path: Path) -> tuple[str, ...]:
    """The names of the environment variables that a process needs to read this path: settings and credentials."""
    if not is_address(path):
        return ()
    return tuple(name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_")))


def as_path(path: str | Path) -> Path:
    """The path, as an `ObjectAddress` if it is one. Raises `InputError` for another URL, or one without a bucket."""
    if is_address(path):
        return ObjectAddress(path)
    if _OTHER_URL.match(str(path)):
        raise InputError(f"Expected a path, or an address such as s3://bucket/run (or gs://, az://), got {path}.")
    return Path(path)
