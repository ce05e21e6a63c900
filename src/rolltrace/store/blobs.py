"""The bytes that messages carry, each once, in a file named by its content."""

import hashlib
import stat
from pathlib import Path

from rolltrace.errors import ChecksumError, RecordError
from rolltrace.store.run_info import refuse_link
from rolltrace.store.segment_reader import open_regular
from rolltrace.trace.blob import validate_blob_name


def blob_path(folder: Path, name: str) -> Path:
    """Where a blob is; a name that is not a digest is refused, so that no path in a record is ever followed."""
    return folder / validate_blob_name(name)


def read_blob(folder: Path, name: str) -> bytes:
    """The bytes of that name, and no others."""
    path = blob_path(folder, name)
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise RecordError(f"Expected a blob at {path}, got: {error.strerror}.") from error
    found = hashlib.sha256(data).hexdigest()
    if name != f"sha256-{found}":
        raise ChecksumError(f"Expected bytes of digest {name} in {path}, found sha256-{found}.")
    return data


def write_blob(folder: Path, name: str, data: bytes, writer: str) -> None:
    """Put the bytes in place by renaming, so that nobody ever sees half of them; they are not yet safe on the disk."""
    path = blob_path(refuse_link(folder), name)
    if _holds(path, data):
        return
    unfinished = folder / f".{name}.{writer}"
    try:
        unfinished.unlink(missing_ok=True)
        with unfinished.open("xb") as file:
            file.write(data)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _holds(path: Path, data: bytes) -> bool:
    """Whether the bytes are there already; where a power loss came before they were safe, others may be."""
    try:
        status = path.stat()
        return stat.S_ISREG(status.st_mode) and status.st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False
