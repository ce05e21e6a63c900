"""The runs below a directory, with the few numbers that can be had quickly."""

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import RolltraceError, RunNotFoundError
from rolltrace.query.run import open_run
from rolltrace.query.run_state import RunState, planned_episodes, run_state, settle_continued
from rolltrace.query.run_totals import RunTotals, query_totals, read_totals
from rolltrace.store.layout import CACHE, ROLLOUTS, RUN_FILE, is_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.json_numbers import Float

MAX_BYTES = 32_000_000
"""A run with more bytes of rollouts is not read for a listing: its numbers are those of its tables, or none."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a listing. What could not be had quickly is None; the rest is as in `totals.Totals`."""

    name: str
    """Where it is, from the directory on that was listed."""
    path: str
    run: str
    """The run's id."""
    created_at: datetime
    written_at: datetime | None
    """When a ledger was last written."""
    state: RunState
    planned: int | None
    """How many rollouts (of games: episodes) the run is to have, where that is known."""
    recorded: int
    """How many lines the ledgers say were written, each attempt of each session counting."""
    lost: int
    """How many rollouts were begun and are not there, as the ledgers tell and the files, where read, do not refute."""
    maybe_lost: int
    """How many sessions that are not closed had in flight: being played, or lost with a writer that died.

    What a session had in flight that another one continues is played again, and in neither number."""
    finished: int | None = None
    """How many of the planned ones are there, were not cancelled, and had no interrupted grading."""
    rollouts: int | None = None
    """How many count: of each place in a group the last attempt that no later session repeated."""
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
    """On disk, with all that was derived."""


class RunListing(msgspec.Struct, frozen=True):
    """Runs, the newest first."""

    runs: tuple[ListedRun, ...]
    total: int
    """How many there are, of which these are the newest."""
    unreadable: tuple[str, ...] = ()
    """What is wrong with each directory whose `run.json` is not valid."""


def list_runs(folder: str | Path, limit: int | None = None) -> RunListing:
    """The runs in or below a directory; with a limit, only the newest are looked into."""
    place = Path(folder)
    if not place.is_dir():
        raise RunNotFoundError(
            f"Expected a directory that holds runs, found {'a file' if place.exists() else 'none'} at {place}."
        )
    unreadable: list[str] = []
    readers = sorted(_open(find_runs(place), unreadable), key=_age, reverse=True)
    runs = tuple(describe_run(reader, place, _totals) for reader in readers[:limit])
    return RunListing(runs, len(readers), tuple(unreadable))


def find_runs(folder: Path) -> Iterator[Path]:
    """Where the runs are; links are not followed, hidden directories and what is inside a run not entered."""
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
            if is_run(path):  # else it went since it was found
                unreadable.append(str(error))
        else:
            yield reader


def _age(reader: RunReader) -> tuple[float, str]:
    """Sorts by the time of creation."""
    return reader.info.created_at.timestamp(), str(reader.path)


def describe_run(reader: RunReader, folder: Path, ask: Callable[[Path], RunTotals | None]) -> ListedRun:
    """One run below a directory; `ask` gives its totals, or None where they cannot be had quickly."""
    info, path, planned = reader.info, reader.path, planned_episodes(reader.info)
    ledgers = settle_continued(reader.ledgers().values())  # before the files, which may be written to
    totals = ask(path)
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


_SAME = ("rollouts", "retried", "superseded", "collides", "finished", "groups", "mean_reward")


def _numbers(totals: RunTotals | None) -> dict[str, Any]:
    if totals is None:
        return {}
    plain = {name: getattr(totals, name) for name in _SAME}
    return plain | {"envs": tuple(totals.envs), "policies": tuple(totals.policies)}


def _totals(path: Path) -> RunTotals | None:
    """What the run comes to, where that can be had quickly."""
    if _size(path / ROLLOUTS) <= MAX_BYTES:
        return read_totals(path)
    if not any((path / CACHE).glob("rollouts-*.parquet")):
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
                continue  # gone since it was listed
    return total
