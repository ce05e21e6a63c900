"""Blobs: the bytes of message parts, each once, in a file named by its SHA-256."""

import hashlib
import stat
from pathlib import Path

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.layout import BLOBS
from rolltrace.store.run_files import RunFiles
from rolltrace.store.safe_files import publish_file, refuse_link, unfinished_file
from rolltrace.trace.blob import validate_blob_name
from rolltrace.trace.limits import MAX_BLOB_BYTES


def blob_path(folder: Path, name: str) -> Path:
    """The path of a blob. A name that is not a digest is refused: a record could name any path."""
    return folder / validate_blob_name(name)


def read_blob(files: RunFiles, name: str) -> bytes:
    """Read a blob and check its digest."""
    path = blob_path(files.path / BLOBS, name)
    try:
        data = files.read(f"{BLOBS}/{name}", 0, MAX_BLOB_BYTES + 1)
    except OSError as error:
        raise RecordError(f"Expected a blob at {path}, got: {error.strerror or error}.") from error
    if len(data) > MAX_BLOB_BYTES:
        raise RecordError(f"Expected a blob of at most {MAX_BLOB_BYTES} bytes at {path}, got a longer one.")
    digest = hashlib.sha256(data).hexdigest()
    if name != f"sha256-{digest}":
        raise ChecksumError(f"Expected bytes of digest {name} in {path}, got sha256-{digest}.")
    return data


def write_blob(folder: Path, name: str, data: bytes, writer: str) -> None:
    """Write a blob atomically, without fsync; `writer` makes the temporary name unique."""
    path = blob_path(refuse_link(folder), name)
    if _has_content(path, data):
        return
    with unfinished_file(folder / f".{name}.{writer}") as unfinished:
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as file:
            file.write(data)
        publish_file(unfinished, path, sync=False)


def _has_content(path: Path, data: bytes) -> bool:
    """Whether the file has these bytes; after a power loss before fsync it may have others."""
    try:
        status = path.stat()
        return stat.S_ISREG(status.st_mode) and status.st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False
