"""The runs below a folder: which there are, when their files change, and those that are open for queries."""

import contextlib
import hashlib
import math
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rolltrace.errors import RunNotFoundError, StorageError
from rolltrace.query.list_numbers import stamp_files
from rolltrace.query.run import Run, open_run
from rolltrace.query.run_listing import MAX_BYTES, RunFinder
from rolltrace.query.run_state import SILENT_SECONDS
from rolltrace.store.layout import LEDGER, ROLLOUTS, RUN_FILE, SCORES
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.object_files import files_of
from rolltrace.viewer.columns import query_measures
from rolltrace.viewer.schemas import Measure

Value = TypeVar("Value")

MAX_CACHE_BYTES = 96 << 20
_ENTRY_BYTES = 200
"""The overhead of one cache entry."""

LIVE_SECONDS = SILENT_SECONDS + 1
"""A run that was written to so recently may be running. After that, its revision changes once more."""
RESCAN_SECONDS = 0.4
"""How long the result of a scan is reused: several pages poll."""
_SCAN_SECONDS = 0.008
"""A scan that takes longer is repeated less often, so that scans take 2 % of a core at most."""
_RECHECK_SECONDS = 20.0
"""How long the files of a run that is not being written to are not looked at, if its directories have not changed."""
_RETRY_SECONDS = 1.0
"""When a run that could not be read is read again; twice as long after each time, up to `_MAX_RETRY_SECONDS`."""
_MAX_RETRY_SECONDS = 30.0

MAX_WEIGHT = 8
"""How many runs may be open at once; a large one counts as four."""
_LARGE_WEIGHT = 4
_MEMORY = "640MB"
"""The memory limit of one run: half is for making its tables, of which one line may have 80 MB or more."""
_ADD_SECONDS = 0.5
"""How often what processes have read is added to the tables of a run that was just opened."""
_MAX_WAITS = 10
"""How many times in a row adding is put off because requests about the run are being answered."""
_THREADS = min(4, os.cpu_count() or 1)


class LruCache:
    """Thread-safe LRU cache bounded in bytes. It has one value for a key: of the state it was last computed for."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int, Hashable]] = OrderedDict()
        """By key, the value, its size and its state."""
        self._computing: dict[Hashable, threading.Lock] = {}
        self._bytes = 0

    def get_or_compute(
        self, key: Hashable, compute: Callable[[], Value], size: Callable[[Value], int], state: Hashable = None
    ) -> Value:
        """The cached value of this state, or the result of `compute`. Threads that need it wait for one computation."""
        with self._lock:
            if self._has(key, state):
                self._values.move_to_end(key)
                return self._values[key][0]  # type: ignore[no-any-return]
            turn = self._computing.setdefault((key, state), threading.Lock())
        with turn:
            with self._lock:
                if self._has(key, state):
                    return self._values[key][0]  # type: ignore[no-any-return]
            try:
                value = compute()
                self._put(key, value, size(value) + _ENTRY_BYTES, state)
            finally:
                with self._lock:
                    if self._computing.get((key, state)) is turn:  # not the lock of a retry after `compute` failed
                        del self._computing[key, state]
        return value

    def _has(self, key: Hashable, state: Hashable) -> bool:
        return key in self._values and self._values[key][2] == state

    def _put(self, key: Hashable, value: Any, size: int, state: Hashable) -> None:
        with self._lock:
            self._bytes += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, size, state
            while self._bytes > self._max_bytes and self._values:
                self._bytes -= self._values.popitem(last=False)[1][1]


class RunStamp(NamedTuple):
    """The state of a run's files."""

    identity: str
    """Changes if another run is put at the same path."""
    data: str
    """Changes with rollouts and scores and, if there are several sessions, with ledgers: they decide which count."""
    revision: str
    """Changes with all of these, with ledgers, with retries, and when the run is no longer written to."""
    bytes: int
    """The size of its rollouts."""
    retries: int
    """How often it was to be read again because something could not be read."""

    @property
    def is_recent(self) -> bool:
        """Whether the files changed lately, so that the run may be running."""
        return self.revision.endswith("+")


class FoundRun(NamedTuple):
    """A run below the folder."""

    path: Path
    stamp: RunStamp


class _Scanned(NamedTuple):
    """A run and when its files were looked at."""

    run: FoundRun
    folders: tuple[int, ...]
    """When its directory and those of its files were last changed, in ns."""
    recheck_at: float


class _Retry(NamedTuple):
    """When a run that could not be read is to be read again."""

    number: int
    """Which retry it is, from 1. It is part of the stamp once it is due."""
    at: float
    pause: float


class RunFolder:
    """Finds the runs below a folder. A key is looked up among them, and never used as a path."""

    def __init__(self, path: str | Path) -> None:
        self.path = as_path(path)
        self._lock = threading.Lock()
        self._finder = RunFinder(path)
        self._scanned: dict[str, _Scanned] = {}
        self._runs: dict[str, FoundRun] = {}
        self._next_scan = 0.0
        self._retries: dict[Path, _Retry] = {}

    def runs(self) -> dict[str, FoundRun]:
        """The runs, by key."""
        with self._lock:
            if time.monotonic() >= self._next_scan:
                before = time.thread_time()  # not the time on the clock: a busy machine must not make answers old
                self._try_scan()
                pause = RESCAN_SECONDS * max(1.0, (time.thread_time() - before) / _SCAN_SECONDS)
                self._next_scan = time.monotonic() + pause
            return self._runs

    def retry_later(self, run: Path) -> None:
        """Let the stamp of a run that could not be read change some seconds from now, so that it is read again."""
        now = time.monotonic()
        with self._lock:
            last = self._retries.get(run, _Retry(0, -math.inf, 0.0))
            if now >= last.at:
                is_new = now - last.at > 2 * _MAX_RETRY_SECONDS
                pause = _RETRY_SECONDS if is_new else min(2 * last.pause, _MAX_RETRY_SECONDS)
                self._retries[run] = _Retry(last.number + 1, now + pause, pause)

    def _due_retries(self, run: Path, now: float) -> int:
        """How many retries of a run are due by now."""
        last = self._retries.get(run)
        return 0 if last is None else last.number - (now < last.at)

    def _try_scan(self) -> None:
        """Scan; if an object store does not answer, what was found before stays."""
        try:
            self._scan(time.monotonic())
        except StorageError:
            if not self._runs:
                raise

    def _scan(self, now: float) -> None:
        """Look for new runs, and at the files of those that may have changed."""
        scanned: dict[str, _Scanned] = {}
        for run, changed in self._finder.find().items():
            path = as_path(run) if (known := self._scanned.get(run)) is None else known.run.path
            folders = (changed, *(_changed_at(f"{run}/{folder}") for folder in (ROLLOUTS, SCORES, LEDGER)))
            retries = self._due_retries(path, now)
            # A run that is not being written to changes only if a session begins, which adds a file.
            is_same = known is not None and known.folders == folders and known.run.stamp.retries == retries
            if known is None or not is_same or known.run.stamp.is_recent or now >= known.recheck_at:
                recheck_at = now + _RECHECK_SECONDS * (1 + random.random())  # noqa: S311
                known = _Scanned(FoundRun(path, _stamp(path, retries)), folders, recheck_at)
            scanned[run] = known
        self._scanned = scanned
        runs: dict[str, FoundRun] = {}
        for one in scanned.values():
            runs.setdefault(self._key(one.run.path), one.run)
        self._runs = runs

    def find(self, key: str) -> FoundRun:
        """The run with this key."""
        run = self.runs().get(key)
        if run is None:
            raise RunNotFoundError(f"There is no run {key!r} below {self.path}: it may have been removed.")
        return run

    def _key(self, run: Path) -> str:
        relative = Path(run.resolve().name) if run == self.path else run.relative_to(self.path)
        return os.fsencode(relative.as_posix()).decode("utf-8", "backslashreplace")


def _stamp(run: Path, retries: int) -> RunStamp:
    identity, files = _identity(run), stamp_files(run)
    is_recent = abs(time.time() - files.changed_at) < LIVE_SECONDS or not files.is_complete
    revision = f"{identity[:8]}{files.files}{retries or ''}{'+' if is_recent else ''}"
    return RunStamp(identity, f"{identity[:8]}{files.data}", revision, files.bytes, retries)


def _changed_at(folder: str) -> int:
    """When an entry was last added to a directory or removed from it, in ns; 0 if it is missing."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - one of very many
    except OSError:
        return 0


def _identity(run: Path) -> str:
    """A hash that differs for another run at the same path."""
    if is_address(run):
        statuses = [repr(file) for file in files_of(run).existing("") if file.name == RUN_FILE]
        return hashlib.blake2b(";".join(statuses).encode(), digest_size=12).hexdigest()
    statuses = []
    for path in (run, run / RUN_FILE):
        try:
            status = path.stat()
            statuses.append(f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns if path is not run else 0}")
        except OSError:
            statuses.append("none")
    return hashlib.blake2b(";".join(statuses).encode(), digest_size=12).hexdigest()


_numbers = count()


class OpenRun:
    """One run that is open. Any thread may use it."""

    def __init__(self, key: str, path: Path, stamp: RunStamp, cache: LruCache, partial: bool) -> None:
        self.key = key
        self.path = path
        self.identity = stamp.identity
        self.stamp = stamp
        """The state of its files when it was last requested."""
        self.weight = _LARGE_WEIGHT if stamp.bytes > MAX_BYTES else 1
        self.users = 0
        self.is_read_in_background = False
        self.failed_state: Hashable = None
        """The state of its files in which it could not be read in the background."""
        self.run: Run = open_run(path, memory=_MEMORY, threads=_THREADS, partial=partial)
        """If it is partial, it answers from what was read by now; `Run.coverage` says how much that is."""
        self.run.revision = lambda: self.state  # many requests follow a change, which is read once
        self._cache = cache
        self._number = next(_numbers)

    def cached(self, key: Hashable, compute: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """The result of `compute`, cached until rollouts or scores change, or more of a long run was read."""
        return self._cache.get_or_compute((self.key, key), compute, size, self.content)

    @property
    def state(self) -> Hashable:
        """Changes when the tables are to be read again."""
        return self.identity, self.stamp.data, self.stamp.retries

    @property
    def content(self) -> Hashable:
        """Changes with the state, when more of a long run was read, and when the run is opened again."""
        return self.state, self._number, self.run.version

    @property
    def revision(self) -> str:
        """A text that changes when answers about the run may change."""
        return self.revision_at(self.stamp)

    def revision_at(self, stamp: RunStamp) -> str:
        """The revision in another state of the files. Pages that have answers about a part must see it change."""
        was_partial = self.run.version or self.run.coverage < 1
        return f"{stamp.revision}~{self.run.version}" if was_partial else stamp.revision

    def close(self) -> None:
        """Free memory and files; statements that are running are interrupted."""
        self.run.close()


def find_measures(run: OpenRun) -> tuple[Measure, ...]:
    """Every measure of the run, cached."""
    return run.cached("measures", lambda: query_measures(run.run), lambda measures: 200 * len(measures))


class OpenRuns:
    """Opens the runs below a folder when they are requested, and closes those that were not used for longest."""

    def __init__(self, folder: str | Path, partial: bool = False, max_weight: int = MAX_WEIGHT) -> None:
        self.folder = RunFolder(folder)
        self._cache = LruCache()
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, OpenRun] = OrderedDict()
        self._is_closed = False
        self._closing = threading.Event()
        self._max_weight = max_weight
        self._partial = partial
        """Whether answers about a large run do not wait until it is read, which is then done in the background."""

    def revisions(self) -> dict[str, str]:
        """By run, a text that changes when answers about it may change."""
        with self._lock:
            opened = dict(self._opened)
        return {
            key: opened[key].revision_at(run.stamp) if key in opened else run.stamp.revision
            for key, run in self.folder.runs().items()
        }

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[OpenRun]:
        """The run with this key, which stays open inside the block."""
        run = self._acquire(key)
        failures = run.run.failures
        try:
            yield run
            self._continue_in_background(run)
        finally:
            self._release(run, failures)

    def close(self) -> None:
        """Close all runs, also those in use."""
        self._closing.set()
        with self._lock:
            self._is_closed = True
            opened = list(self._opened.values())
            self._opened.clear()
        for run in opened:
            run.close()

    def _acquire(self, key: str) -> OpenRun:
        evicted: list[OpenRun] = []
        try:
            path, stamp = self.folder.find(key)
            try:
                with self._lock:
                    if self._is_closed:
                        raise RunNotFoundError("The server is shutting down.")
                    run = self._open(key, path, stamp, evicted)
                    run.users += 1
                    return run
            except StorageError:
                self.folder.retry_later(path)
                raise
        except RunNotFoundError:
            with self._lock:
                evicted += [self._opened.pop(key)] if key in self._opened else []
            raise
        finally:
            for one in evicted:
                if not one.users:
                    one.close()

    def _open(self, key: str, path: Path, stamp: RunStamp, evicted: list[OpenRun]) -> OpenRun:
        """The open run; runs that are replaced or make room for it are added to `evicted`."""
        run = self._opened.get(key)
        if run is None or run.identity != stamp.identity or run.path != path:
            if run is not None:
                evicted.append(self._opened.pop(key))
            run = self._opened[key] = OpenRun(key, path, stamp, self._cache, self._partial)
        if run.stamp.retries != stamp.retries:
            run.run.clear_failures()
        run.stamp = stamp
        self._opened.move_to_end(key)
        while sum(one.weight for one in self._opened.values()) > self._max_weight and len(self._opened) > 1:
            evicted.append(self._opened.popitem(last=False)[1])
        return run

    def _continue_in_background(self, run: OpenRun) -> None:
        """If the run was not read to the end, let a thread do that; not again if that failed, until files change."""
        with self._lock:
            is_wanted = self._partial and run.run.is_unfinished and run.failed_state != run.state
            if not is_wanted or run.is_read_in_background:
                return
            run.is_read_in_background = True
            run.users += 1
        threading.Thread(target=self._read_in_background, args=(run,), name="rolltrace-reader", daemon=True).start()

    def _read_in_background(self, run: OpenRun) -> None:
        """Add what processes have read to the tables, until everything is read."""
        failures, waited = run.run.failures, 0
        try:
            while self._is_unfinished(run) and not self._closing.wait(_ADD_SECONDS):
                # What is added while a request runs makes its next statement create its views again.
                waited = waited + 1 if run.users > 1 and waited < _MAX_WAITS else 0
                if not waited:
                    run.run.continue_reading()
        except Exception:  # noqa: BLE001 - statements that read the same report it; the run is read on later
            run.failed_state, run.is_read_in_background = run.state, False
            self.folder.retry_later(run.path)
        finally:
            self._release(run, failures)

    def _is_unfinished(self, run: OpenRun) -> bool:
        """Whether the thread that reads a run has more to do; if not, another one may be started from now on."""
        with self._lock:
            run.is_read_in_background = run.run.is_unfinished
            return run.is_read_in_background

    def _release(self, run: OpenRun, failures: int) -> None:
        """End the use of a run; `failures` were those at the beginning."""
        if run.run.failures > failures:
            self.folder.retry_later(run.path)
        with self._lock:
            run.users -= 1
            is_unused = not run.users and self._opened.get(run.key) is not run
        if is_unused:
            run.close()
