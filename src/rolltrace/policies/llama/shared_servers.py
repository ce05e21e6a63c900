"""Lets the processes of a job share one llama.cpp server on each machine: the first one that needs it starts it."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.llama.server_settings import ServerSettings
from rolltrace.temp_folders import FileLock


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a server listens, and the key that it requires."""

    address: str
    key: str


class SharedServerFiles:
    """The address of a server, in a file, and the lock of the process that started it.

    The system releases the lock when that process dies, and its server ends with it.
    """

    def __init__(self, job: str, settings: ServerSettings) -> None:
        folder = Path(tempfile.gettempdir()) / f"rolltrace_models_{job}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise PolicyError(f"The folder {folder} belongs to another user: remove it.")
        name = hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:16]
        self._path = folder / f"{name}.json"
        self._lock = FileLock(folder / f"{name}.lock")

    def is_owned(self) -> bool:
        """Whether this process starts the server; if no other process does, it will from now on."""
        return self._lock.acquire()

    def read(self) -> ServerAddress | None:
        """The server of the process that has the lock; None if it is not ready."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ServerAddress)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, address: ServerAddress | None) -> None:
        """Tell other processes the address, or with None that there is no server."""
        if address is None:
            self._path.unlink(missing_ok=True)
            return
        unfinished = self._path.with_suffix(".new")
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(address))
        unfinished.rename(self._path)

    def release(self) -> None:
        """Let another process start the server."""
        self._lock.release()

    def leave(self) -> None:
        """Release the lock, if this process has it, and remove the files."""
        if self._lock.acquire():
            self._path.unlink(missing_ok=True)
            self._lock.path.unlink(missing_ok=True)
            self._lock.release()
        with contextlib.suppress(OSError):  # other files are in use
            self._path.parent.rmdir()
