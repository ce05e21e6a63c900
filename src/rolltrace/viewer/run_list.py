"""The list of runs: a few numbers of each and a sparkline of its reward, cached until its files change."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import RolltraceError
from rolltrace.query.list_numbers import ListNumbers
from rolltrace.query.run import Run
from rolltrace.query.run_listing import ListedRun, NumbersReader, describe_run, settled_ledgers
from rolltrace.query.run_state import RunState
from rolltrace.store.reader import RunReader
from rolltrace.version import __version__
from rolltrace.viewer.open_runs import OpenRuns, RunStamp
from rolltrace.viewer.schemas import RunListEntry, RunsResponse

MAX_RUNS = 2_000
READ_SECONDS = 1.0
"""For how long one request reads runs that are not known yet; the page repeats it until all are."""

_logger = logging.getLogger("rolltrace.viewer")


class RunList:
    """The entries of all runs below a folder."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._cache: dict[str, tuple[str, RunListEntry]] = {}

    def list(self) -> RunsResponse:
        """All entries, the newest first. Runs that are not known yet are read for some time, the newest first."""
        folder = self._library.folder
        runs = folder.runs()
        with self._lock:
            self._cache = {key: cached for key, cached in self._cache.items() if key in runs}
        nothing = NumbersReader(0.0)
        entries = {key: self._entry(key, *run, nothing) for key, run in runs.items()}
        if self._reading.acquire(blocking=False):  # otherwise another request reads them
            try:
                numbers = NumbersReader(READ_SECONDS)
                for entry in _newest_first(entries.values()):
                    if entry.is_pending and not numbers.is_over:
                        entries[entry.key] = self._entry(entry.key, *runs[entry.key], numbers)
            finally:
                self._reading.release()
        shown = _newest_first(entries.values())[:MAX_RUNS]
        return RunsResponse(
            folder=str(folder.path),
            version=__version__,
            runs=tuple(shown),
            total=len(entries),
            pending=sum(entry.is_pending for entry in entries.values()),
        )

    def one(self, key: str) -> RunListEntry:
        """The entry of one run."""
        return self._entry(key, *self._library.folder.find(key), NumbersReader())

    def _entry(self, key: str, path: Path, stamp: RunStamp, numbers: NumbersReader) -> RunListEntry:
        with self._lock:
            revision, known = self._cache.get(key, ("", None))
        if known is not None and revision == stamp.revision and (not known.is_pending or numbers.is_over):
            return known
        entry = self._make(key, path, numbers)
        if entry.is_pending and known is not None and known.run == entry.run:  # its old numbers are shown until then
            entry = msgspec.structs.replace(known, is_pending=True)
        with self._lock:
            self._cache[key] = stamp.revision, entry
        return entry

    def _make(self, key: str, path: Path, numbers: NumbersReader) -> RunListEntry:
        refused = numbers.refused
        try:
            reader = RunReader(path)
            ledgers = settled_ledgers(reader)
            found = numbers.get(reader, ledgers, lambda _: self._tables(key))
            listed = describe_run(reader, path, ledgers, found)
        except (RolltraceError, OSError) as error:
            if isinstance(error, OSError):
                self._library.folder.retry_later(path)
            return _unreadable(key, path, f"{type(error).__name__}: {error}")
        except Exception as error:
            _logger.exception("The run %r cannot be read.", key)  # and the others can
            return _unreadable(key, path, type(error).__name__)
        if reader.errors.failures:
            self._library.folder.retry_later(path)
        return _entry(key, listed, found, is_pending=numbers.refused > refused)

    @contextmanager
    def _tables(self, key: str) -> Iterator[Run]:
        with self._library.open(key) as opened:
            yield opened.run


def _newest_first(entries: Iterable[RunListEntry]) -> list[RunListEntry]:
    return sorted(entries, key=lambda entry: (entry.created_at is not None, entry.created_at, entry.key), reverse=True)


def _entry(key: str, listed: ListedRun, numbers: ListNumbers | None, *, is_pending: bool) -> RunListEntry:
    fields = msgspec.structs.asdict(listed)
    more: dict[str, Any] = {} if numbers is None else {"errors": numbers.failed, "sparkline": numbers.sparkline}
    return RunListEntry(
        **{name: fields[name] for name in RunListEntry.__struct_fields__ if name in fields},
        **more,
        key=key,
        live=listed.state is RunState.RUNNING,
        problem=damage_text(listed.problem_count or 0),
        is_pending=is_pending,
    )


def damage_text(count: int) -> str | None:
    """A sentence about read errors, if there are any."""
    if not count:
        return None
    return f"Its files are damaged in {'one place' if count == 1 else f'{count:,} places'}: its page lists them."


def _unreadable(key: str, path: Path, problem: str) -> RunListEntry:
    return RunListEntry(key=key, name=path.name, state=RunState.UNKNOWN, problem=problem)
