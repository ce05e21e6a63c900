"""Which session of a run supersedes which: by the sessions that it states to continue, otherwise by time."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from rolltrace.store.ledger import Ledger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GENERATED_ID = re.compile(r"[0-9a-f]{32}")

RolloutTime = tuple[str, datetime, datetime]
"""A session, and when its first rollout started and its last one ended."""


class _Session(NamedTuple):
    id: str
    job: str
    continues: tuple[str, ...] | None
    start: int
    end: int
    """Microseconds since 1970."""


class Sessions:
    """The sessions of one run, from the last line of each ledger.

    A session that states what it continues supersedes those sessions, and what they supersede. One that states nothing
    supersedes every session that ended before it started. Sessions of one job (a writer, and those forked or unpickled
    from it) count as one span of time, and supersede each other only if they state so.

    A session starts at the time in its id and ends with the last line of its ledger. A session without a ledger starts
    and ends with its rollouts; `rollout_times` of sessions that have a ledger are ignored.
    """

    def __init__(self, ledgers: Iterable[Ledger], rollout_times: Iterable[RolloutTime] = ()) -> None:
        known = {ledger.session: _of_ledger(ledger) for ledger in ledgers}
        spans: dict[str, tuple[datetime, datetime]] = {}
        for session, start, end in rollout_times:
            first, last = spans.get(session, (start, end))
            spans[session] = min(first, start), max(last, end)
        for session, (start, end) in spans.items():
            known.setdefault(session, _Session(session, session, None, _microseconds(start), _microseconds(end)))
        self._known = known
        self._jobs: dict[str, list[_Session]] = {}
        for one in known.values():
            self._jobs.setdefault(one.job, []).append(one)
        self._start = {job: min(one.start for one in some) for job, some in self._jobs.items()}
        self._end = {job: max(one.end for one in some) for job, some in self._jobs.items()}
        self._by_end = sorted(self._jobs, key=lambda job: (self._end[job], job))
        self._ends = [self._end[job] for job in self._by_end]
        self._superseded_by: dict[str, frozenset[str]] = {}
        self._stated: dict[str, frozenset[str]] = {}

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """Equal for two states of a run in which the same sessions supersede the same others."""
        starts = sorted(self._start.values())
        order = {
            job: (bisect_left(starts, start), bisect_left(starts, self._end[job])) for job, start in self._start.items()
        }
        return tuple(sorted((one.id, one.job, str(one.continues), order[one.job]) for one in self._known.values()))

    def unknown(self, sessions: Iterable[str]) -> set[str]:
        """Those of these sessions that have neither a ledger nor a rollout time."""
        return set(sessions) - self._known.keys()

    def job_of(self, session: str) -> str:
        """The job of a session, which is the id of the job's first session."""
        known = self._known.get(session)
        return session if known is None else known.job

    def superseded(self, sessions: Collection[str]) -> set[str]:
        """Those of the sessions that another of them supersedes."""
        return {one for one in sessions if any(self.supersedes(other, one) for other in sessions)}

    @property
    def continued(self) -> frozenset[str]:
        """The sessions that another one states to continue, directly or not. They have ended, closed or not."""
        if self._is_ordered:
            return self._directly_continued
        stated = ((one, earlier) for one in self._known for earlier in self._stated_by(one))
        return frozenset(earlier for one, earlier in stated if one not in self._stated_by(earlier))

    @cached_property
    def superseded_by_any(self) -> frozenset[str]:
        """The sessions that any other one supersedes."""
        if not self._is_ordered:
            pairs = ((one, earlier) for one in self._known for earlier in self._known.keys() & self._earlier(one))
            return frozenset(earlier for one, earlier in pairs if one not in self._earlier(earlier))
        # No session supersedes one that supersedes it, so the latest of those that state nothing decides by time.
        latest = max(
            ((self._start[one.job], one.job) for one in self._known.values() if one.continues is None), default=None
        )
        by_time = set() if latest is None else {one for one in self._known if self._is_before(one, latest)}
        return frozenset(self._known.keys() & self._directly_continued | by_time)

    @cached_property
    def _directly_continued(self) -> frozenset[str]:
        return frozenset(name for one in self._known.values() for name in self._named(one))

    @cached_property
    def _is_ordered(self) -> bool:
        """Whether each session continues only sessions of jobs that started before its own."""
        return all(
            (self._start[self._known[name].job], self._known[name].job) < (self._start[one.job], one.job)
            for one in self._known.values()
            for name in self._named(one)
            if name in self._known
        )

    def supersedes(self, later: str, earlier: str) -> bool:
        """Whether a rollout that `later` recorded replaces one of the same slot that `earlier` recorded."""
        return earlier in self._earlier(later) and later not in self._earlier(earlier)  # a cycle supersedes nothing

    def _earlier(self, session: str) -> frozenset[str]:
        """Every session that this one continues, directly or not, by statement or by time."""
        earlier = self._superseded_by.get(session)
        if earlier is None:
            earlier = self._superseded_by[session] = self._search(session)
        return earlier

    def _search(self, session: str) -> frozenset[str]:
        below: set[str] = set()
        reached = (-math.inf, "")  # all jobs before this one are known, except those of the sessions in `refused`
        refused: set[str] = set()
        waiting = [session]
        while waiting:
            one = self._known.get(waiting.pop())
            if one is None:
                continue
            fresh = self._named(one)
            if one.continues is None:
                earlier, here = refused, (self._start[one.job], one.job)
                if here > reached:
                    earlier, reached = self._before(one.job) | refused, here
                # A statement overrides the time of a clock that was wrong.
                fresh = {
                    name for name in earlier if self._is_before(name, here) and one.id not in self._stated_by(name)
                }
                refused = earlier - fresh
            fresh -= below
            below |= fresh
            waiting += fresh
        return frozenset(below)

    def _named(self, one: _Session) -> set[str]:
        """The sessions that one states to continue, with those that were forked from them."""
        named = set(one.continues or ())
        for name in one.continues or ():
            if name != one.job:
                named |= {other.id for other in self._jobs.get(name, ())}
        return named

    def _stated_by(self, session: str) -> frozenset[str]:
        """Every session that one states to continue, directly or not."""
        stated = self._stated.get(session)
        if stated is None:
            below: set[str] = set()
            waiting = [session]
            while waiting:
                one = self._known.get(waiting.pop())
                fresh = set() if one is None else self._named(one) - below
                below |= fresh
                waiting += fresh
            stated = self._stated[session] = frozenset(below)
        return stated

    def _before(self, job: str) -> set[str]:
        """The sessions of the jobs that ended before this one started."""
        here = self._start[job], job
        ended = self._by_end[: bisect_right(self._ends, here[0])]
        return {one.id for other in ended if (self._start[other], other) < here for one in self._jobs[other]}

    def _is_before(self, session: str, start: tuple[int, str]) -> bool:
        """Whether the session's job ended before `start`, the time and job of another. Job ids break ties."""
        job = self._known[session].job
        return self._end[job] <= start[0] and (self._start[job], job) < start


def _of_ledger(ledger: Ledger) -> _Session:
    last = _microseconds(ledger.written_at)
    # An id has whole milliseconds: a session that starts in the one in which another was closed comes after it.
    start = int(ledger.session[:12], 16) * 1000 + 999 if _GENERATED_ID.fullmatch(ledger.session) else last
    # If the clock was set back meanwhile, the last line is older than the session.
    return _Session(ledger.session, ledger.job or ledger.session, ledger.continues, min(start, last), max(start, last))


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
