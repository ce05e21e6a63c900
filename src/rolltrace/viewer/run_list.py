"""The list of runs: a few numbers of each and how its reward moved, kept until its files change."""

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rolltrace.errors import RolltraceError
from rolltrace.query.run import Run
from rolltrace.query.run_listing import MAX_BYTES, ListedRun, describe_run
from rolltrace.query.run_state import RunState
from rolltrace.query.run_totals import COUNTED_ROLLOUTS, RunTotals, SmallRun, query_totals, read_small_run, totals_of
from rolltrace.store.layout import CACHE
from rolltrace.store.reader import RunReader
from rolltrace.version import __version__
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.run_folder import FileStamp
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
"""Iterations, and of each how many rewards there are and their mean."""


class _ListNumbers:
    """What a card says beside the totals; they are found on the way to these."""

    errors: int | None = None
    curve: Curve = ()
    problems = 0


class RunList:
    """The cards of all runs below a folder."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, RunListEntry]] = {}

    def list(self) -> RunsResponse:
        """The newest first."""
        folder = self._library.folder
        standings = folder.stamps()
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if key in standings}
        cards = [self._card(key, path, standings[key]) for key, path in folder.runs().items() if key in standings]
        cards.sort(key=lambda card: (card.created_at is not None, card.created_at, card.key), reverse=True)
        return RunsResponse(
            folder=str(folder.path), version=__version__, runs=tuple(cards[:MAX_RUNS]), total=len(cards)
        )

    def one(self, key: str) -> RunListEntry:
        """The card of one run."""
        return self._card(key, *self._library.folder.find(key))

    def _card(self, key: str, path: Path, standing: FileStamp) -> RunListEntry:
        with self._lock:
            revision, card = self._known.get(key, ("", None))
        if card is None or revision != standing.revision:
            card = self._make(key, path, standing)
            with self._lock:
                self._known[key] = standing.revision, card
        return card

    def _make(self, key: str, path: Path, standing: FileStamp) -> RunListEntry:
        facts = _ListNumbers()
        try:
            reader = RunReader(path)
            listed = describe_run(reader, path, lambda _: self._totals(key, path, standing, facts))
        except (RolltraceError, OSError) as error:
            return _unreadable(key, path, f"{type(error).__name__}: {error}")
        except Exception as error:
            _logger.exception("The run %r cannot be read.", key)  # and the others can
            return _unreadable(key, path, type(error).__name__)
        return _card(key, listed, facts, _problem(facts))

    def _totals(self, key: str, path: Path, standing: FileStamp, facts: _ListNumbers) -> RunTotals | None:
        """What the run comes to, where that can be had quickly."""
        if standing.bytes <= MAX_BYTES:
            read = read_small_run(path)
            facts.errors = sum(head.status == "error" for head in read.counted)
            facts.curve = _curve_of(read)
            facts.problems = read.problems
            return totals_of(read)
        if not any((path / CACHE).glob("rollouts-*.parquet")):
            return None
        with self._library.open(key) as run:
            return _ask(run.run, facts)


def _problem(facts: _ListNumbers) -> str | None:
    """What of the run cannot be read, in a sentence."""
    if not facts.problems:
        return None
    places = "one place" if facts.problems == 1 else f"{facts.problems:,} places"
    return f"Its files are damaged in {places}: its page says what could not be read."


def _ask(run: Run, facts: _ListNumbers) -> RunTotals:
    facts.curve = run.sql(_CURVE).fetchall()
    [(facts.errors,)] = run.sql(_FAILED).fetchall()
    return query_totals(run)


def _curve_of(read: SmallRun) -> Curve:
    rewards: dict[int, list[float]] = {}
    for head in read.counted:
        reward = read.rewards[head.id]
        if reward is not None and math.isfinite(reward):
            rewards.setdefault(head.iteration, []).append(float(reward))
    return [(iteration, len(some), math.fsum(some) / len(some)) for iteration, some in rewards.items()]


def sparkline(curve: Curve) -> tuple[float | None, ...]:
    """The mean reward over iterations, at most so many points; None where a point stands for no rewards."""
    if not curve:
        return ()
    first, last = min(one[0] for one in curve), max(one[0] for one in curve)
    width = -(-(last - first + 1) // POINTS)
    sums: dict[int, tuple[int, float]] = {}
    for iteration, n, mean in curve:
        place = (iteration - first) // width
        count, total = sums.get(place, (0, 0.0))
        sums[place] = count + n, total + n * mean
    return tuple(_mean(sums.get(place)) for place in range((last - first) // width + 1))


def _mean(found: tuple[int, float] | None) -> float | None:
    return None if found is None else found[1] / found[0]


def _card(key: str, listed: ListedRun, facts: _ListNumbers, problem: str | None) -> RunListEntry:
    fields: Mapping[str, object] = msgspec.structs.asdict(listed)
    same = (
        "run",
        "created_at",
        "written_at",
        "rollouts",
        "recorded",
        "planned",
        "finished",
        "groups",
        "lost",
        "maybe_lost",
        "mean_reward",
        "collides",
    )
    return RunListEntry(
        key=key,
        name=listed.name,
        state=listed.state,
        live=listed.state is RunState.RUNNING,
        errors=facts.errors,
        sparkline=sparkline(facts.curve),
        envs=listed.envs,
        policies=listed.policies,
        bytes=listed.bytes,
        problem=problem,
        **{name: fields[name] for name in same},  # type: ignore[arg-type]
    )


def _unreadable(key: str, path: Path, problem: str) -> RunListEntry:
    return RunListEntry(
        key=key, name=path.name, run=None, created_at=None, written_at=None, state=RunState.UNKNOWN, live=False,
        rollouts=None, recorded=0, planned=None, finished=None, groups=None, lost=0, maybe_lost=0, collides=None,
        errors=None, mean_reward=None, sparkline=(), envs=None, policies=None, bytes=0, problem=problem,
    )  # fmt: skip
