"""Signatures of derived files: only those made with the user's key are used, wherever the run comes from."""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.errors import ChecksumError, StorageError
from rolltrace.store.layout import CACHE
from rolltrace.store.object_address import is_address
from rolltrace.store.safe_files import open_regular, publish_file, refuse_link, unfinished_file

ENVIRONMENT_KEY = "ROLLTRACE_CACHE_KEY"
"""The environment variable with the key that a team shares; any text."""
SIGNATURE_LENGTH = 64

_KEY_BYTES = 32
_MAX_VALUE_BYTES = 1 << 20

Value = TypeVar("Value")


def sign(data: bytes, context: str = "") -> bytes:
    """The signature of some bytes, in hexadecimal digits. `context` says what they are for, such as a run's id."""
    prefix = hashlib.blake2b(context.encode(), digest_size=16).digest()  # of one length, so that no two inputs agree
    return hashlib.blake2b(prefix + data, key=_key(), digest_size=SIGNATURE_LENGTH // 2).hexdigest().encode()


def add_signature(data: bytes, context: str) -> bytes:
    """A signature, and the bytes that it is of."""
    return sign(data, context) + data


def check_signature(signed: bytes, context: str) -> bytes:
    """The bytes after a signature; raises `ChecksumError` unless it is of the user's key, for this context."""
    signature, data = signed[:SIGNATURE_LENGTH], signed[SIGNATURE_LENGTH:]
    if not hmac.compare_digest(sign(data, context), signature):
        raise ChecksumError("Expected bytes that were signed with the user's key.")
    return data


def read_signed(path: Path, context: str, max_bytes: int) -> bytes:
    """The bytes of a file after its signature; raises `ChecksumError` or `OSError`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size  # to ask for the maximum would take memory for it
        return check_signature(file.read(min(size, max_bytes)), context)


def read_cached(
    folders: Iterable[Path], name: str, context: str, kind: type[Value], max_bytes: int = _MAX_VALUE_BYTES
) -> Iterator[Value]:
    """The values in the files of this name in cache folders. What is damaged or has another signature is skipped."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            yield msgspec.msgpack.decode(read_signed(folder / name, context, max_bytes), type=kind)


def store_cached(folders: Iterable[Path], name: str, context: str, value: object) -> None:
    """Put a signed file with a value into the first cache folder that can be written to, if any.

    It is not synced: damage by a power loss is detected.
    """
    data = add_signature(msgspec.msgpack.encode(value), context)
    for folder in folders:
        with (
            contextlib.suppress(OSError),
            unfinished_file(make_cache_folder(folder) / f".{name}-{secrets.token_hex(8)}") as unfinished,
        ):
            unfinished.write_bytes(data)
            publish_file(unfinished, folder / name, sync=False)
            return


def cache_folders(run: Path, run_id: str) -> list[Path]:
    """The folders for a run's derived files: its own, and the user's, for runs that cannot be written to."""
    folders = [] if is_address(run) else [run / CACHE]
    with contextlib.suppress(OSError):
        name = hashlib.blake2b(os.fsencode(run.resolve()) + b"\0" + run_id.encode(), digest_size=16).hexdigest()
        folders.append(user_cache_folder() / "runs" / name)
    return folders


def user_cache_folder() -> Path:
    """Rolltrace's folder in the user's cache directory."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def make_cache_folder(folder: Path) -> Path:
    """Make one of these folders if it is missing. A link is refused, and a run that was deleted stays deleted."""
    if folder.name == CACHE:
        refuse_link(folder).mkdir(exist_ok=True)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _key() -> bytes:
    if text := os.environ.get(ENVIRONMENT_KEY):
        return hashlib.blake2b(os.fsencode(text), digest_size=_KEY_BYTES).digest()
    return _stored_key(_user_folder("XDG_CONFIG_HOME", ".config") / "cache.key")


@cache
def _stored_key(path: Path) -> bytes:
    """The key in this file, which is made if it is missing."""
    if not path.exists():
        _make_key(path)
    with open_regular(path) as file:
        key = file.read(_KEY_BYTES)
    if len(key) < _KEY_BYTES:
        raise StorageError(f"Expected a key of {_KEY_BYTES} bytes in {path}, got {len(key)}. Delete the file.")
    return key


def _make_key(path: Path) -> None:
    """Make a key that only the user can read. Of several processes that do this at once, one succeeds."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with unfinished_file(path.with_name(f".{path.name}-{secrets.token_hex(8)}")) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(_KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(unfinished, path)  # unlike renaming, this never replaces the key of another process
        except FileExistsError:
            return
        except OSError:  # some file systems have no links
            unfinished.replace(path)


def _user_folder(variable: str, default: str) -> Path:
    """Rolltrace's folder in a base directory of the user (XDG): the one that the variable names, or the default."""
    base = os.environ.get(variable, "")
    try:
        return (Path(base) if Path(base).is_absolute() else Path.home() / default) / "rolltrace"
    except RuntimeError as error:  # there is no home
        raise StorageError(f"Expected a home directory, or {variable}: {error}.") from error
