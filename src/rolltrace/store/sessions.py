"""Which session of a run supersedes which: by what it says that it continues, else by time."""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rolltrace.store.ledger import Ledger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OWN_ID = re.compile(r"[0-9a-f]{32}")

RolloutTime = tuple[str, datetime, datetime]
"""A session, and when one of its rollouts, or the first and last of several, began and ended."""


class _Session(NamedTuple):
    id: str
    job: str
    continues: tuple[str, ...] | None
    start: int
    end: int
    """Microseconds since 1970."""


class Sessions:
    """The sessions of one run, from the last line of each ledger.

    A session that says what it continues supersedes those sessions, and what they supersede. One that does not say
    so supersedes every session that ended before it began. Sessions of one job (a writer, and those forked or
    unpickled from it) count as one span of time, and supersede each other only where they say so.

    A session begins at the time in its id and ends with the last line of its ledger. A session without a ledger
    begins and ends with its rollouts; `rollout_times` of sessions that have a ledger are ignored.
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
        self._found: dict[str, frozenset[str]] = {}
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
        """Of these sessions, those of which neither a ledger nor a time is known."""
        return set(sessions) - self._known.keys()

    def job_of(self, session: str) -> str:
        """The job that a session belongs to: the first session of it."""
        known = self._known.get(session)
        return session if known is None else known.job

    def superseded(self, together: Collection[str]) -> set[str]:
        """Of sessions that recorded the same rollout, those of which another one supersedes it."""
        return {one for one in together if any(self.supersedes(other, one) for other in together)}

    @property
    def continued(self) -> frozenset[str]:
        """The sessions that another one states that it continues, directly or not. They are over, closed or not."""
        stated = ((one, below) for one in self._known for below in self._stated_by(one))
        return frozenset(below for one, below in stated if one not in self._stated_by(below))

    def supersedes(self, later: str, earlier: str) -> bool:
        """Whether what `later` recorded stands for what `earlier` recorded at the same place."""
        return earlier in self._below(later) and later not in self._below(earlier)  # a circle supersedes nothing

    def _below(self, session: str) -> frozenset[str]:
        """Every session that this one continues, directly or not, by statement or by time."""
        found = self._found.get(session)
        if found is None:
            found = self._found[session] = self._search(session)
        return found

    def _search(self, session: str) -> frozenset[str]:
        below: set[str] = set()
        reached = (
            -math.inf,
            "",
        )  # all jobs before this one are known already, but for those of the sessions in `refused`
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
                # A statement is right where a clock says the opposite.
                fresh = {
                    name for name in earlier if self._is_before(name, here) and one.id not in self._stated_by(name)
                }
                refused = earlier - fresh
            fresh -= below
            below |= fresh
            waiting += fresh
        return frozenset(below)

    def _named(self, one: _Session) -> set[str]:
        """The sessions that one states; a session that others were forked from stands for them, too."""
        named = set(one.continues or ())
        for name in one.continues or ():
            if name != one.job:
                named |= {other.id for other in self._jobs.get(name, ())}
        return named

    def _stated_by(self, session: str) -> frozenset[str]:
        """Every session that one states, and that those state."""
        found = self._stated.get(session)
        if found is None:
            below: set[str] = set()
            waiting = [session]
            while waiting:
                one = self._known.get(waiting.pop())
                fresh = set() if one is None else self._named(one) - below
                below |= fresh
                waiting += fresh
            found = self._stated[session] = frozenset(below)
        return found

    def _before(self, job: str) -> set[str]:
        """The sessions of the jobs that ended before this one began."""
        here = self._start[job], job
        ended = self._by_end[: bisect_right(self._ends, here[0])]
        return {one.id for other in ended if (self._start[other], other) < here for one in self._jobs[other]}

    def _is_before(self, session: str, start: tuple[int, str]) -> bool:
        """Whether the session's job ended before one that began then; one that lasted no time, by its id."""
        job = self._known[session].job
        return self._end[job] <= start[0] and (self._start[job], job) < start


def _of_ledger(ledger: Ledger) -> _Session:
    last = _microseconds(ledger.written_at)
    # An id has whole milliseconds: a session that is begun in the one in which another was closed comes after it.
    begun = int(ledger.session[:12], 16) * 1000 + 999 if _OWN_ID.fullmatch(ledger.session) else last
    # A clock that was set back meanwhile makes the last line older than the session.
    return _Session(ledger.session, ledger.job or ledger.session, ledger.continues, min(begun, last), max(begun, last))


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
