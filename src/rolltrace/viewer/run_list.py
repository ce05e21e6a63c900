"""The list of runs: a few numbers of each and a sparkline of its reward, cached until its files change."""

import logging
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rolltrace.errors import RolltraceError
from rolltrace.query.parts import part_folders
from rolltrace.query.run import Run
from rolltrace.query.run_listing import MAX_BYTES, ListedRun, describe_run
from rolltrace.query.run_state import RunState
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, RunTotals, SmallRun, query_totals, read_small_run, totals_of
from rolltrace.store.reader import RunReader
from rolltrace.version import __version__
from rolltrace.viewer.open_runs import FileStamp, OpenRuns
from rolltrace.viewer.schemas import RunListEntry, RunsResponse

POINTS = 60
"""How many points a sparkline has at most."""
MAX_RUNS = 2_000

_CURVE = f"""
    select iteration, count(*) as n, avg(reward) as mean
    from {COUNTED_ROLLOUTS} and isfinite(reward) and iteration is not null
    group by iteration
"""
_FAILED = f"select count(*) filter (status = 'error') from {COUNTED_ROLLOUTS}"

_logger = logging.getLogger("rolltrace.viewer")

Curve = Sequence[tuple[int, int, float]]
"""Iterations, each with the number of rewards and their mean."""


class _ListNumbers:
    """The numbers of an entry besides the totals, which are computed together with them."""

    errors: int | None = None
    curve: Curve = ()
    problems = 0


class RunList:
    """The entries of all runs below a folder."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[str, RunListEntry]] = {}

    def list(self) -> RunsResponse:
        """All entries, the newest first."""
        folder = self._library.folder
        runs = folder.runs()
        with self._lock:
            self._cache = {key: cached for key, cached in self._cache.items() if key in runs}
        entries = [self._entry(key, *run) for key, run in runs.items()]
        entries.sort(key=lambda entry: (entry.created_at is not None, entry.created_at, entry.key), reverse=True)
        return RunsResponse(
            folder=str(folder.path), version=__version__, runs=tuple(entries[:MAX_RUNS]), total=len(entries)
        )

    def one(self, key: str) -> RunListEntry:
        """The entry of one run."""
        return self._entry(key, *self._library.folder.find(key))

    def _entry(self, key: str, path: Path, stamp: FileStamp) -> RunListEntry:
        with self._lock:
            revision, entry = self._cache.get(key, ("", None))
        if entry is None or revision != stamp.revision:
            entry = self._make(key, path, stamp)
            with self._lock:
                self._cache[key] = stamp.revision, entry
        return entry

    def _make(self, key: str, path: Path, stamp: FileStamp) -> RunListEntry:
        numbers = _ListNumbers()
        try:
            reader = RunReader(path)
            listed = describe_run(reader, path, lambda _: self._totals(key, path, stamp, numbers))
        except (RolltraceError, OSError) as error:
            return _unreadable(key, path, f"{type(error).__name__}: {error}")
        except Exception as error:
            _logger.exception("The run %r cannot be read.", key)  # and the others can
            return _unreadable(key, path, type(error).__name__)
        return _entry(key, listed, numbers, _problem(numbers))

    def _totals(self, key: str, path: Path, stamp: FileStamp, numbers: _ListNumbers) -> RunTotals | None:
        """The totals of the run, if they can be computed quickly."""
        if stamp.bytes <= MAX_BYTES:
            small = read_small_run(path)
            numbers.errors = sum(head.status == "error" for head in small.counted)
            numbers.curve = _curve_of(small)
            numbers.problems = small.problems
            return totals_of(small)
        if not part_folders(path):
            return None
        with self._library.open(key) as run:
            return _query(run.run, numbers)


def _problem(numbers: _ListNumbers) -> str | None:
    """A sentence about read errors, if there are any."""
    if not numbers.problems:
        return None
    places = "one place" if numbers.problems == 1 else f"{numbers.problems:,} places"
    return f"Its files are damaged in {places}: its page lists them."


def _query(run: Run, numbers: _ListNumbers) -> RunTotals:
    numbers.curve = run.sql(_CURVE).fetchall()
    [(numbers.errors,)] = run.sql(_FAILED).fetchall()
    return query_totals(run)


def _curve_of(run: SmallRun) -> Curve:
    rewards: dict[int, list[float]] = {}
    for head in run.counted:
        reward = run.rewards[head.id]
        if reward is not None and math.isfinite(reward):
            rewards.setdefault(head.iteration, []).append(float(reward))
    return [(iteration, len(some), math.fsum(some) / len(some)) for iteration, some in rewards.items()]


def sparkline(curve: Curve) -> tuple[float | None, ...]:
    """The mean reward over iterations, in at most `POINTS` points; None for a point without rewards."""
    if not curve:
        return ()
    first, last = min(one[0] for one in curve), max(one[0] for one in curve)
    width = -(-(last - first + 1) // POINTS)
    sums: dict[int, tuple[int, float]] = {}
    for iteration, n, mean in curve:
        point = (iteration - first) // width
        count, total = sums.get(point, (0, 0.0))
        sums[point] = count + n, total + n * mean
    return tuple(_mean(sums.get(point)) for point in range((last - first) // width + 1))


def _mean(count_and_sum: tuple[int, float] | None) -> float | None:
    return None if count_and_sum is None else count_and_sum[1] / count_and_sum[0]


def _entry(key: str, listed: ListedRun, numbers: _ListNumbers, problem: str | None) -> RunListEntry:
    fields = msgspec.structs.asdict(listed)
    return RunListEntry(
        **{name: fields[name] for name in RunListEntry.__struct_fields__ if name in fields},
        key=key,
        live=listed.state is RunState.RUNNING,
        errors=numbers.errors,
        sparkline=sparkline(numbers.curve),
        problem=problem,
    )


def _unreadable(key: str, path: Path, problem: str) -> RunListEntry:
    return RunListEntry(key=key, name=path.name, state=RunState.UNKNOWN, problem=problem)
