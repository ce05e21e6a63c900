"""The numbers of a run in a listing: read from its lines or its tables, and stored until its files change."""

import hashlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, RunTotals, SmallRun, query_totals, read_small_run, totals_of
from rolltrace.store.cache_key import cache_folders, read_cached, store_cached
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES
from rolltrace.store.ledger import Ledger
from rolltrace.store.object_files import files_of
from rolltrace.store.read_errors import ReadError, ReadErrorKind

NUMBERS_FILE = "list.msgpack"
"""The name of the file in a run's `cache/` in which its numbers are stored."""
MAX_POINTS = 60
"""How many points a sparkline has at most."""
_MAX_PROBLEMS = 3
_SETTLED_SECONDS = 2.0
"""A file that changed so recently may change again without a new modification time."""
_CURVE = f"""
    select iteration, count(*) as n, avg(reward) as mean
    from {COUNTED_ROLLOUTS} and isfinite(reward) and iteration is not null
    group by iteration
"""
_FAILED = f"select count(*) filter (status = 'error') from {COUNTED_ROLLOUTS}"

Curve = Sequence[tuple[int, int, float]]
"""Iterations, each with the number of rewards and their mean."""


class ListNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run that a listing shows, besides those of its ledgers."""

    totals: RunTotals
    failed: int
    """How many rollouts that count have the status `error`."""
    sparkline: tuple[float | None, ...]
    """The mean reward over iterations, in at most `MAX_POINTS` points; None for a point without rewards."""
    problems: tuple[str, ...]
    """The first read errors."""
    problem_count: int
    is_incomplete: bool = False
    """Whether something could not be read: then they are not stored."""


class FileStamp(NamedTuple):
    """The state of a run's files, by their names, sizes and times."""

    data: str
    """Changes with rollouts and scores and, if there are several sessions, with ledgers: they decide which count."""
    files: str
    """Changes with all of these, and with ledgers."""
    bytes: int
    """The size of its rollouts."""
    changed_at: float
    """The newest time of a file."""
    is_complete: bool
    """Whether all folders could be listed."""


def stamp_files(run: Path) -> FileStamp:
    """The state of a run's files now."""
    data, everything = hashlib.blake2b(digest_size=12), hashlib.blake2b(digest_size=12)
    newest, size, is_complete = 0, 0, True
    for folder in (ROLLOUTS, SCORES, LEDGER):
        try:
            files = files_of(run).list_files(folder)
        except FileNotFoundError:
            files = []
        except OSError:
            files, is_complete = [], False
        for entry in files:
            text = f"{folder}/{entry.name}:{entry.size}:{entry.changed}{entry.tag};"
            file = text.encode("utf-8", "surrogateescape")
            everything.update(file)
            if folder != LEDGER or len(files) > 1:
                data.update(file)
            if folder == ROLLOUTS:
                size += entry.size
            newest = max(newest, entry.changed)
    data.update(b"%d" % is_complete)
    everything.update(b"%d" % is_complete)
    return FileStamp(data.hexdigest(), everything.hexdigest(), size, newest / 1e9, is_complete)


class _StoredNumbers(msgspec.Struct):
    stamp: str
    numbers: ListNumbers


def read_list_numbers(path: Path, ledgers: Collection[Ledger]) -> ListNumbers | None:
    """The numbers of a small run, from its lines; None if that needs tables. `ledgers` were read before."""
    small = read_small_run(path)
    recorded, scores = (sum(getattr(ledger, name) for ledger in ledgers) for name in ("recorded", "scores_recorded"))
    if small is None or len(small.rollouts) < recorded or small.scores < scores:
        return None
    failed = sum(head.status == "error" for head in small.counted)
    return _list_numbers(totals_of(small), failed, _curve_of(small), ())


def query_list_numbers(run: Run) -> ListNumbers:
    """The numbers of a run of any size, from its tables; queried twice if something could not be read."""
    numbers = _query_once(run)
    return _query_once(run) if numbers.is_incomplete else numbers


def _query_once(run: Run) -> ListNumbers:
    failures = run.failures
    totals, curve = query_totals(run), run.sql(_CURVE).fetchall()
    [(failed,)] = run.sql(_FAILED).fetchall()
    is_incomplete = run.is_incomplete or run.failures > failures  # before `problems`, which reads again what is missing
    numbers = _list_numbers(totals, failed, curve, run.problems)
    return msgspec.structs.replace(numbers, is_incomplete=is_incomplete or numbers.is_incomplete)


def _list_numbers(totals: RunTotals, failed: int, curve: Curve, problems: Sequence[ReadError]) -> ListNumbers:
    return ListNumbers(
        totals=totals,
        failed=failed,
        sparkline=sparkline(curve),
        problems=tuple(map(str, problems[:_MAX_PROBLEMS])),
        problem_count=len(problems),
        is_incomplete=any(problem.kind is ReadErrorKind.UNREADABLE for problem in problems),
    )


def stored_numbers(path: Path, run: str, compute: Callable[[], ListNumbers | None]) -> ListNumbers | None:
    """The numbers that were stored for the run with this id, unless its files have changed; else those of `compute`."""
    stamp = stamp_files(path)
    if not stamp.is_complete:
        return compute()
    folders = cache_folders(path, run)
    for stored in read_cached(folders, NUMBERS_FILE, run, _StoredNumbers):
        if stored.stamp == stamp.files:
            return stored.numbers
    numbers = compute()
    if numbers is not None and not numbers.is_incomplete and abs(time.time() - stamp.changed_at) > _SETTLED_SECONDS:
        store_cached(folders, NUMBERS_FILE, run, _StoredNumbers(stamp.files, numbers))
    return numbers


def _curve_of(run: SmallRun) -> Curve:
    rewards: dict[int, list[float]] = {}
    for head in run.counted:
        reward = run.rewards[head.id]
        if reward is not None and math.isfinite(reward):
            rewards.setdefault(head.iteration, []).append(float(reward))
    return [(iteration, len(some), sum(some) / len(some)) for iteration, some in rewards.items()]


def sparkline(curve: Curve) -> tuple[float | None, ...]:
    """The mean reward over iterations, in at most `MAX_POINTS` points; None for a point without rewards."""
    if not curve:
        return ()
    first, last = min(one[0] for one in curve), max(one[0] for one in curve)
    width = -(-(last - first + 1) // MAX_POINTS)
    sums: dict[int, tuple[int, float]] = {}
    for iteration, n, mean in curve:
        point = (iteration - first) // width
        count, total = sums.get(point, (0, 0.0))
        sums[point] = count + n, total + n * mean
    return tuple(_mean(sums.get(point)) for point in range((last - first) // width + 1))


def _mean(count_and_sum: tuple[int, float] | None) -> float | None:
    return None if count_and_sum is None else count_and_sum[1] / count_and_sum[0]
