"""Lists the runs below a directory, with those numbers that can be computed quickly."""

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import RolltraceError, RunNotFoundError
from rolltrace.query.parts import part_folders
from rolltrace.query.run import open_run
from rolltrace.query.run_state import RunState, planned_episodes, run_state, settle_continued
from rolltrace.query.run_totals import RunTotals, query_totals, read_totals
from rolltrace.store.layout import ROLLOUTS, RUN_FILE, is_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.json_numbers import Float

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


class RunListing(msgspec.Struct, frozen=True):
    """Runs, the newest first."""

    runs: tuple[ListedRun, ...]
    total: int
    """How many runs there are; `runs` are the newest of them."""
    unreadable: tuple[str, ...] = ()
    """An error for each directory whose `run.json` is not valid."""


def list_runs(folder: str | Path, limit: int | None = None) -> RunListing:
    """The runs in or below a directory; with a limit, only the newest are read."""
    parent = Path(folder)
    if not parent.is_dir():
        raise RunNotFoundError(
            f"Expected a directory of runs at {parent}, got {'a file' if parent.exists() else 'nothing'}."
        )
    unreadable: list[str] = []
    readers = sorted(_open(find_runs(parent), unreadable), key=_age, reverse=True)
    runs = tuple(describe_run(reader, parent, _totals) for reader in readers[:limit])
    return RunListing(runs, len(readers), tuple(unreadable))


def find_runs(folder: Path) -> Iterator[Path]:
    """The paths of the runs in or below a folder, without links, hidden directories and folders inside runs."""
    for path, folders, files in os.walk(folder):
        if RUN_FILE in files and is_run(Path(path)):
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


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


def describe_run(reader: RunReader, folder: Path, get_totals: Callable[[Path], RunTotals | None]) -> ListedRun:
    """One run below a directory; `get_totals` returns its totals, or None if they cannot be computed quickly."""
    info, path, planned = reader.info, reader.path, planned_episodes(reader.info)
    ledgers = settle_continued(reader.ledgers().values())  # before the files, which may be written to
    totals = get_totals(path)
    if totals is not None:
        ledgers = [totals.reconcile(ledger) for ledger in ledgers]
    return ListedRun(
        name=path.name if path == folder else str(path.relative_to(folder)),
        path=str(path),
        run=info.id,
        created_at=info.created_at,
        written_at=max((ledger.written_at for ledger in ledgers), default=None),
        state=run_state(ledgers, planned, None if totals is None else totals.finished),
        planned=planned,
        recorded=sum(ledger.recorded for ledger in ledgers),
        lost=sum(ledger.lost for ledger in ledgers),
        maybe_lost=sum(ledger.maybe_lost for ledger in ledgers),
        bytes=_size(path),
        **_numbers(totals),
    )


_TOTALS = ("rollouts", "retried", "superseded", "collides", "finished", "groups", "mean_reward")


def _numbers(totals: RunTotals | None) -> dict[str, Any]:
    if totals is None:
        return {}
    plain = {name: getattr(totals, name) for name in _TOTALS}
    return plain | {"envs": tuple(totals.envs), "policies": tuple(totals.policies)}


def _totals(path: Path) -> RunTotals | None:
    """The totals of a run, if they can be computed quickly."""
    if _size(path / ROLLOUTS) <= MAX_BYTES:
        return read_totals(path)
    if not part_folders(path):
        return None
    try:
        with open_run(path) as run:
            return query_totals(run)
    except RolltraceError:
        return None


def _size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - one of very many
            except OSError:
                continue  # deleted since it was listed
    return total
