"""Lists the runs below a directory, with those numbers that can be computed quickly."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import RolltraceError, RunNotFoundError
from rolltrace.query.list_numbers import ListNumbers, query_list_numbers, read_list_numbers, stored_numbers
from rolltrace.query.run import Run, open_run
from rolltrace.query.run_state import RunState, planned_episodes, run_state, settle_continued
from rolltrace.store.cache_key import cache_folders
from rolltrace.store.layout import FOLDERS, ROLLOUTS, RUN_FILE, find_object_runs, is_run
from rolltrace.store.ledger import Ledger
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.parts import part_folders
from rolltrace.store.reader import RunReader
from rolltrace.trace.json_numbers import Float

OpenTables = Callable[[Path], AbstractContextManager[Run]]

_SETTLED_NS = 2_000_000_000
"""A directory that changed so recently may change again without a new modification time."""

MIN_STORED_BYTES = 256_000
"""A run with fewer bytes of rollouts is read as quickly as its stored numbers would be, unless that needs tables."""
MAX_BYTES = 32_000_000
"""A run with more bytes of rollouts is not read for a listing: its numbers come from its tables, or are missing."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a listing. Numbers that cannot be computed quickly are None; the others are as in `RunTotals`."""

    name: str
    """Its path, relative to the directory that was listed."""
    path: str
    run: str
    """The run's id."""
    created_at: datetime
    written_at: datetime | None
    """When a ledger was last written."""
    state: RunState
    planned: int | None
    """How many rollouts (in games: episodes) the run is to have, if that is known."""
    recorded: int
    """How many lines were written by the ledgers; each attempt of each session counts."""
    lost: int
    """How many rollouts were started and are missing, by the ledgers and, if they were read, the files."""
    maybe_lost: int
    """How many rollouts open sessions have in flight: they are being played, or were lost when a writer died.

    Rollouts in flight in a session that another one continues are played again, and in neither number."""
    finished: int | None = None
    """How many of the planned ones exist, were not cancelled, and had no interrupted grading."""
    rollouts: int | None = None
    """How many count: for each index of a group the last attempt that is not superseded."""
    retried: int | None = None
    superseded: int | None = None
    collides: int | None = None
    groups: int | None = None
    envs: tuple[str, ...] | None = None
    """The most frequent first."""
    policies: tuple[str, ...] | None = None
    mean_reward: Float | None = None
    """Over the rollouts that count and have a finite reward."""
    bytes: int = 0
    """The size on disk, including derived files."""
    problems: tuple[str, ...] = ()
    """The first read errors."""
    problem_count: int | None = None


class RunListing(msgspec.Struct, frozen=True):
    """Runs, the newest first."""

    runs: tuple[ListedRun, ...]
    total: int
    """How many runs there are; `runs` are the newest of them."""
    unreadable: tuple[str, ...] = ()
    """An error for each directory whose `run.json` is not valid."""
    unread: int = 0
    """How many of `runs` were not read because the time was over."""


def list_runs(folder: str | Path, limit: int | None = None, seconds: float | None = None) -> RunListing:
    """The runs in or below a directory; with a limit, only the newest.

    Runs that were never listed have to be read. After `seconds`, the numbers of the others are left out.
    """
    parent = as_path(folder)
    if not is_address(parent) and not parent.is_dir():
        raise RunNotFoundError(
            f"Expected a directory of runs at {parent}, got {'a file' if parent.exists() else 'nothing'}."
        )
    unreadable: list[str] = []
    readers = sorted(_open(map(as_path, RunFinder(parent).find()), unreadable), key=_age, reverse=True)
    numbers = NumbersReader(seconds)
    runs = tuple(_describe(reader, parent, numbers) for reader in readers[:limit])
    return RunListing(runs, len(readers), tuple(unreadable), numbers.refused)


class NumbersReader:
    """The numbers of runs: those that are stored, and others until some seconds have passed."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.refused = 0
        """How many runs were not read because the time was over."""

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def get(
        self, reader: RunReader, ledgers: Collection[Ledger], open_tables: OpenTables = open_run
    ) -> ListNumbers | None:
        """The numbers of a run; None if the time is over, or if it is large and has no tables yet."""
        path = reader.path
        size = sum(file.size for file in reader.files.existing(ROLLOUTS))
        is_tiny = size < min(MIN_STORED_BYTES, MAX_BYTES) and not self.is_over
        if is_tiny and (numbers := read_list_numbers(path, ledgers)) is not None:
            return numbers

        def compute() -> ListNumbers | None:
            if self.is_over:
                self.refused += 1
                return None
            if not is_tiny and size <= MAX_BYTES and (numbers := read_list_numbers(path, ledgers)) is not None:
                return numbers
            if size > MAX_BYTES and not any(map(part_folders, cache_folders(path, reader.info.id))):
                return None
            try:
                with open_tables(path) as run:
                    return query_list_numbers(run)
            except RolltraceError:
                return None

        return compute() if reader.errors.failures else stored_numbers(path, reader.info.id, compute)


class FoundFolder(NamedTuple):
    """What a directory holds, as far as the search for runs is concerned."""

    changed: int
    """When an entry was last added or removed, in ns."""
    is_run: bool
    folders: tuple[str, ...]
    links: tuple[str, ...]


class RunFinder:
    """Finds the runs in or below a folder, without hidden directories and folders inside runs.

    A link to a directory is followed, unless that directory was found before. Directories that have not changed since
    the last search are not listed again.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        self._known: dict[str, FoundFolder] = {}

    def find(self) -> dict[str, int]:
        """By path of a run, when an entry was last added to its directory or removed from it, in ns."""
        if is_address(self._folder):
            return {str(run): changed for run, changed in find_object_runs(as_path(self._folder)).items()}
        known: dict[str, FoundFolder] = {}
        seen: set[tuple[int, int]] = set()
        runs: dict[str, int] = {}
        paths, links = [self._folder], list[str]()
        while paths or links:
            path = paths.pop() if paths else links.pop()
            try:
                status = os.stat(path)  # noqa: PTH116 - one of very many
                found = self._known.get(path)
                if found is None or found.changed != status.st_mtime_ns:
                    found = _list_folder(path, status.st_mtime_ns)
            except OSError:  # it was deleted, may not be listed, or is a link to a file
                continue
            if (place := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(place)
            if time.time_ns() - found.changed > _SETTLED_NS:
                known[path] = found
            if found.is_run:
                runs[path] = found.changed
            else:
                paths += [f"{path}/{name}" for name in reversed(found.folders)]
                links += [f"{path}/{name}" for name in reversed(found.links)]
        self._known = known
        return runs


def _list_folder(path: str, changed: int) -> FoundFolder:
    with os.scandir(path) as entries:
        named = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    has_info = any(entry.name == RUN_FILE for entry in named) and is_run(Path(path))
    links = tuple(entry.name for entry in named if entry.is_symlink())
    folders = tuple(entry.name for entry in named if entry.is_dir(follow_symlinks=False))
    return FoundFolder(changed, has_info, () if has_info else folders, () if has_info else links)


def _open(paths: Iterable[Path], unreadable: list[str]) -> Iterator[RunReader]:
    for path in paths:
        try:
            reader = RunReader(path)
        except (RunNotFoundError, OSError) as error:
            if is_run(path):  # it was not deleted meanwhile
                unreadable.append(str(error))
        else:
            yield reader


def _age(reader: RunReader) -> tuple[float, str]:
    """The sort key: by time of creation."""
    return reader.info.created_at.timestamp(), str(reader.path)


def _describe(reader: RunReader, folder: Path, numbers: NumbersReader) -> ListedRun:
    ledgers = settled_ledgers(reader)
    return describe_run(reader, folder, ledgers, numbers.get(reader, ledgers))


def settled_ledgers(reader: RunReader) -> list[Ledger]:
    """The last ledger of each session. Read them before the numbers: the files may be written to meanwhile."""
    return settle_continued(reader.ledgers().values())


def describe_run(
    reader: RunReader, folder: Path, ledgers: Collection[Ledger], numbers: ListNumbers | None
) -> ListedRun:
    """One run below a directory."""
    info, path, planned = reader.info, reader.path, planned_episodes(reader.info)
    fields = _fields(numbers)
    if unreadable := [str(error) for error in reader.read_errors if error.is_retryable]:  # of ledgers
        fields["problems"] = tuple(dict.fromkeys([*unreadable, *fields.get("problems", ())]))
        fields["problem_count"] = max(fields.get("problem_count", 0), len(fields["problems"]))
    if numbers is not None:
        ledgers = [numbers.totals.reconcile(ledger) for ledger in ledgers]
    return ListedRun(
        name=path.name if path == folder else str(path.relative_to(folder)),
        path=str(path),
        run=info.id,
        created_at=info.created_at,
        written_at=max((ledger.written_at for ledger in ledgers), default=None),
        state=run_state(ledgers, planned, None if numbers is None else numbers.totals.finished),
        planned=planned,
        recorded=sum(ledger.recorded for ledger in ledgers),
        lost=sum(ledger.lost for ledger in ledgers),
        maybe_lost=sum(ledger.maybe_lost for ledger in ledgers),
        bytes=_size(reader),
        **fields,
    )


_TOTALS = ("rollouts", "retried", "superseded", "collides", "finished", "groups", "mean_reward")


def _fields(numbers: ListNumbers | None) -> dict[str, Any]:
    if numbers is None:
        return {}
    totals = numbers.totals
    return {
        **{name: getattr(totals, name) for name in _TOTALS},
        "envs": tuple(totals.envs),
        "policies": tuple(totals.policies),
        "problems": numbers.problems,
        "problem_count": numbers.problem_count,
    }


def _size(reader: RunReader) -> int:
    if is_address(reader.path):
        return sum(file.size for folder in ("", *FOLDERS) for file in reader.files.existing(folder))
    total = 0
    for path, _, names in os.walk(reader.path):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - one of very many
            except OSError:
                continue  # deleted since it was listed
    return total
