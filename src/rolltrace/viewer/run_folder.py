"""The runs below a folder by their keys, and what changes when their files do; no file is opened for it."""

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from rolltrace.errors import RunNotFoundError
from rolltrace.query.run_listing import find_runs
from rolltrace.query.run_state import SILENT_SECONDS
from rolltrace.store.layout import LEDGER, ROLLOUTS, RUN_FILE, SCORES

LIVE_SECONDS = SILENT_SECONDS + 1
"""A run that was written to so recently may be running; after that, its state is asked again."""

FRESH_SECONDS = 0.4
"""So long what was found is not looked for again: several pages ask every second."""


class FileStamp(NamedTuple):
    """How the files of a run stand."""

    identity: str
    """Another one where another run was put in the same place."""
    data: str
    """Changes with rollouts and scores and, where there are several sessions, with ledgers: they say which count."""
    revision: str
    """Changes with these, with ledgers, and when the run is no longer written to."""
    bytes: int
    """The size of its rollouts."""


class RunFolder:
    """Finds runs; a key is looked up in what was found, and never made into a path."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._standings: dict[str, FileStamp] = {}
        self._looked = -FRESH_SECONDS

    def runs(self) -> dict[str, Path]:
        """By key, where the runs are."""
        self._rescan()
        with self._lock:
            return self._found

    def stamps(self) -> dict[str, FileStamp]:
        """By key, how the runs stand."""
        self._rescan()
        with self._lock:
            return self._standings

    def find(self, key: str) -> tuple[Path, FileStamp]:
        """Where a run is and how it stands."""
        self._rescan()
        with self._lock:
            if key not in self._found:
                raise RunNotFoundError(f"There is no run {key!r} below {self.path}: it may have been removed.")
            return self._found[key], self._standings[key]

    def _rescan(self) -> None:
        with self._lock:
            if time.monotonic() - self._looked < FRESH_SECONDS:
                return
            found: dict[str, Path] = {}
            for run in find_runs(self.path):
                found.setdefault(self._key(run), run)
            standings = {key: _standing(run) for key, run in found.items()}
            self._found, self._standings, self._looked = found, standings, time.monotonic()

    def _key(self, run: Path) -> str:
        inside = Path(run.resolve().name) if run == self.path else run.relative_to(self.path)
        return os.fsencode(inside.as_posix()).decode("utf-8", "backslashreplace")


def _standing(run: Path) -> FileStamp:
    identity, data, everything = _identity(run), hashlib.blake2b(digest_size=12), hashlib.blake2b(digest_size=12)
    newest, size = 0.0, 0
    for folder in (ROLLOUTS, SCORES, LEDGER):
        files = _files(run / folder)
        for name, length, changed in files:
            told = f"{folder}/{name}:{length}:{changed};".encode("utf-8", "surrogateescape")
            everything.update(told)
            if folder != LEDGER or len(files) > 1:
                data.update(told)
            if folder == ROLLOUTS:
                size += length
            newest = max(newest, changed / 1e9)
    is_recent = abs(time.time() - newest) < LIVE_SECONDS
    revision = f"{identity[:8]}{everything.hexdigest()}{'+' if is_recent else ''}"
    return FileStamp(identity, f"{identity[:8]}{data.hexdigest()}", revision, size)


def _identity(run: Path) -> str:
    """What another run in the same place has different."""
    told = []
    for path in (run, run / RUN_FILE):
        try:
            status = path.stat()
            told.append(f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns if path is not run else 0}")
        except OSError:
            told.append("none")
    return hashlib.blake2b(";".join(told).encode(), digest_size=12).hexdigest()


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """The names, sizes and times of a folder's files."""
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # gone since it was listed
                    continue
                files.append((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:
        return []
    return sorted(files)
