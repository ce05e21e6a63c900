"""The files of a run in an object store (S3 and compatible ones), read by range requests."""

import contextlib
import errno
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rolltrace.errors import InputError
from rolltrace.store.object_address import ObjectAddress, is_address, store_variables
from rolltrace.store.run_files import FileEntry, LocalFiles, RunFile, RunFiles

LISTING_SECONDS = 1.0
"""How long the listing of a folder is reused."""
READ_AHEAD_BYTES = 8 << 20
"""How much one request gets of a file that is read from one end to the other."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_LISTINGS = 4_096
_REQUESTS_AT_ONCE = 16
_LEDGERS = "ledger/"  # as in layout.py, which imports this module
_MAX_LEDGER_BYTES = 1 << 16
"""A ledger that was uploaded by its writer has one line; one that was copied may be longer."""
_CONNECT_SECONDS = 5
_REQUEST_SECONDS = 30
_RETRY_SECONDS = 15
_RETRIES: Any = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}
_LISTING_RETRIES = 5
_BROKEN_OFF = "response body error"
"""In the text of the client's error if the connection ended in the middle of an answer."""
_ACCESS = "check the credentials and what they allow"
_REASONS = (
    ("NoSuchBucket", "there is no such bucket"),
    ("AccessKey", "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("/latest/", "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("403 Forbidden", f"access is denied: {_ACCESS}"),
    ("404 Not Found", "there is no such bucket or folder"),
    ("error sending request", "the server cannot be reached"),
    ("timed out", "the server did not answer in time"),
)
"""What errors of the client mean, by a part of their text."""


class Listing(NamedTuple):
    """What is directly in a folder."""

    folders: list[str]
    files: list[FileEntry]


class ObjectFiles(RunFiles):
    """The files of a run, or of a folder of runs, at an address. Its listings may be a second old."""

    path: ObjectAddress

    def __init__(self, address: str | Path) -> None:
        self.path = ObjectAddress(address)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickles with the settings of this process: worker processes start without them."""
        return _unpickled_files, (str(self.path), {name: os.environ[name] for name in store_variables(self.path)})

    def list_files(self, folder: str) -> list[FileEntry]:
        """The files of a folder, by name; a folder without files does not exist, and is empty."""
        return self.listing(folder).files

    def listing(self, folder: str) -> Listing:
        """The folders and the files of a folder."""
        place = str(self.path / folder)
        if (known := _fresh_listing(place)) is not None:
            return known
        began = time.monotonic()
        with self._explain(folder):
            found = self._request_listing(folder)
        listing = Listing(
            sorted(one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]),
            sorted(map(_entry, found["objects"])),
        )
        if len(_listings) >= _MAX_LISTINGS:
            _listings.clear()
        if began >= _listings.get(place, (0.0,))[0]:  # or another thread has a newer one
            _listings[place] = began, listing
        return listing

    def _request_listing(self, folder: str) -> Any:
        """List a folder. The client itself does not retry if the connection ends in the middle of the answer."""
        retries = _LISTING_RETRIES
        while True:
            try:
                return _client().list_with_delimiter(self._store, self._key(folder) or None)
            except _client().exceptions.GenericError as error:
                if not retries or _BROKEN_OFF not in str(error):
                    raise
                retries -= 1

    def size(self, name: str) -> int:
        """The size of a file now, or when its folder was last listed, if that was just now."""
        folder, _, file = name.rpartition("/")
        listing = _fresh_listing(str(self.path / folder))
        if listing is not None:
            if (size := next((one.size for one in listing.files if one.name == file), None)) is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", str(self.path / name))
            return size
        with self._explain(name):
            return int(_client().head(self._store, self._key(name))["size"])

    def read(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of a file, by one request; fewer at its end."""
        if length <= 0:
            return b""
        with self._explain(name):
            try:
                return bytes(_client().get_range(self._store, self._key(name), start=start, length=length))
            except Exception as error:
                if "416 " in str(error) or "InvalidRange" in str(error):  # it starts at the end, or the file is empty
                    return b""
                raise

    def open(self, name: str) -> "ObjectFile":
        """Open a file for several reads."""
        return ObjectFile(self, name)

    def put(self, name: str, data: bytes | Path, *, overwrite: bool = True) -> None:
        """Store a file, all of it at once. Without `overwrite`, one that exists raises `FileExistsError`."""
        with self._explain(name):
            try:
                if overwrite:
                    _client().put(self._store, self._key(name), data)
                else:
                    _client().put(self._store, self._key(name), data, mode="create", use_multipart=False)
            except _client().exceptions.AlreadyExistsError as error:
                raise FileExistsError(errno.EEXIST, "there is such an object", str(self.path / name)) from error
        self._forget_listing(name)

    def delete(self, name: str) -> None:
        """Delete a file; one that is missing is no error."""
        with self._explain(name), contextlib.suppress(FileNotFoundError):
            _client().delete(self._store, self._key(name))
        self._forget_listing(name)

    def _forget_listing(self, name: str) -> None:
        _listings.pop(str(self.path / name.rpartition("/")[0]), None)

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self.path.key, name) if part)

    @property
    def _store(self) -> Any:
        return _connect(self.path.bucket)

    @contextlib.contextmanager
    def _explain(self, name: str) -> Iterator[None]:
        """Raise an `OSError` with one clear sentence for any error of the client."""
        place, errors = str(self.path / name), _client().exceptions
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise OSError(errno.ENXIO, f"there is no bucket {self.path.bucket}", place) from error
            raise FileNotFoundError(errno.ENOENT, "there is no such object", place) from error
        except FileExistsError:
            raise
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, f"access is denied: {_ACCESS}", place) from error
        except (errors.BaseError, ValueError) as error:  # not `EIO`, which stands for damage to a disk
            raise OSError(errno.ECONNABORTED, _reason(str(error), self.path.bucket), place) from error


def _entry(found: Any) -> FileEntry:
    changed = int(found["last_modified"].timestamp() * 1e9)
    return FileEntry(found["path"].rpartition("/")[2], found["size"], changed, tag=found["e_tag"] or "")


class ObjectFile(RunFile):
    """A file of an object store that is open: consecutive reads get more than was asked for."""

    def __init__(self, files: ObjectFiles, name: str) -> None:
        super().__init__(files, name)
        self._start = 0
        self._data = b""
        if name.startswith(_LEDGERS) and self.size < _MAX_LEDGER_BYTES:
            # The only files that do not grow but are replaced, so the size of a listing may be that of another one.
            self._data = files.read(name, 0, _MAX_LEDGER_BYTES)
            self.size = len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Some bytes; fewer at the end of the file."""
        length = max(min(length, self.size - start), 0)
        end = self._start + len(self._data)
        if not self._start <= start <= start + length <= end:
            ahead = max(length, READ_AHEAD_BYTES) if self._data and start == end else length
            self._data = self._files.read(self.name, start, min(ahead, self.size - start))
            self._start = start
        return self._data[start - self._start : start - self._start + length]


_lock = threading.Lock()
_is_forked = False
_listings: dict[str, tuple[float, Listing]] = {}
"""By address of a folder, when it was listed, and what was there."""
_held = threading.local()
"""In a thread inside `listed_at_once`, since when."""


def _unpickled_files(address: str, settings: dict[str, str]) -> ObjectFiles:
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    return ObjectFiles(address)


def _fresh_listing(place: str) -> Listing | None:
    listed_at, listing = _listings.get(place, (0.0, None))
    oldest = min(time.monotonic() - LISTING_SECONDS, getattr(_held, "since", math.inf))
    return listing if listing is not None and listed_at >= oldest else None


@contextlib.contextmanager
def listed_at_once(runs: Iterable[RunFiles], folders: Collection[str]) -> Iterator[None]:
    """List these folders of all runs that are in object stores, many at once; in the block, the listings are reused."""
    remote = [files for files in runs if isinstance(files, ObjectFiles)]
    if len(remote) <= 1:
        yield
        return
    before = getattr(_held, "since", math.inf)
    _held.since = min(before, time.monotonic())
    try:
        map_requests(lambda place: place[0].existing(place[1]), list(itertools.product(remote, folders)))
        yield
    finally:
        _held.since = before


def map_requests(action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of an action for many items, in their order; the requests of several are under way at once."""
    if len(items) <= 1:
        return [action(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _REQUESTS_AT_ONCE)) as pool:
        return list(pool.map(action, items))


def files_of(run: str | Path | RunFiles) -> RunFiles:
    """The files of the run at a path, or at an address such as `s3://bucket/run`."""
    if isinstance(run, RunFiles):
        return run
    return ObjectFiles(run) if is_address(run) else LocalFiles(run)


@cache
def _client() -> Any:
    """The package obstore, which needs an extra."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        message = f"Runs in object stores need the package obstore ({error}): pip install 'rolltrace[s3]'."
        raise InputError(message) from error
    os.register_at_fork(after_in_child=_refuse_after_fork)
    return obstore


def _refuse_after_fork() -> None:
    """The threads of the client do not exist in a forked process, where it would hang."""
    global _is_forked
    _is_forked = True


def _connect(bucket: str) -> Any:
    if _is_forked:
        message = "object stores cannot be used in a process that was forked: start processes with `spawn`"
        raise OSError(errno.ENOTSUP, message)
    with _lock:
        return _store_of(bucket)


@cache
def _store_of(bucket: str) -> Any:
    """The client of a bucket, with the settings of the environment (AWS_…, GOOGLE_…, AZURE_…)."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    options: Any = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "allow_http": endpoint.startswith("http://"),
    }
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint and bucket.startswith("s3:") else {}
    try:
        return _client().store.from_url(bucket, client_options=options, retry_config=_RETRIES, **settings)
    except (_client().exceptions.BaseError, ValueError) as error:
        raise OSError(errno.EINVAL, _reason(str(error), bucket)) from error


def _reason(text: str, bucket: str) -> str:
    """What an error of the client means, in a line."""
    for part, reason in _REASONS:
        if part in text:
            return f"{reason} ({bucket})"
    return " ".join(text.partition("\n\nDebug source")[0].split())[:300]


def forget_connections() -> None:
    """Read the settings of the environment again for the next request."""
    _client.cache_clear()
    _store_of.cache_clear()
    _listings.clear()
