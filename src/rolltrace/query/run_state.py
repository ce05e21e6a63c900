"""The state of a run and of its sessions: running, complete, interrupted or died."""

from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec.structs import replace

from rolltrace.store.layout import RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.store.sessions import Sessions
from rolltrace.trace.codec import utc_now

SILENT_SECONDS = 30.0
"""An open session writes its ledger at least every ten seconds; one that was silent for longer has died."""


class RunState(StrEnum):
    """The state of a run, over all its sessions."""

    RUNNING = "running"
    """A session is open, wrote its ledger recently, and no other session states to continue it."""
    COMPLETE = "complete"
    """Every session was closed, and all planned episodes are finished, if there is a plan."""
    INTERRUPTED = "interrupted"
    """Every session was closed, and some planned episodes are not finished."""
    DIED = "died"
    """A session was never closed and is silent, and no later session supersedes it."""
    UNKNOWN = "unknown"
    """There is no ledger."""


class SessionState(StrEnum):
    """The state of one session."""

    RUNNING = "running"
    CLOSED = "closed"
    DIED = "died"
    CONTINUED = "continued by a later session"
    """It was never closed, and another session states to continue it."""


def session_state(
    ledger: Ledger, now: datetime | None = None, continued: Collection[str] = frozenset()
) -> SessionState:
    """The state of the session with this last ledger; `continued` are the `continued_sessions` of its run."""
    if ledger.closed:
        return SessionState.CLOSED
    if ledger.session in continued:
        return SessionState.CONTINUED
    is_silent = (now or utc_now()) - ledger.written_at > timedelta(seconds=SILENT_SECONDS)
    return SessionState.DIED if is_silent else SessionState.RUNNING


def continued_sessions(ledgers: Collection[Ledger]) -> frozenset[str]:
    """The sessions that another one states to continue."""
    return Sessions(ledgers).continued if any(ledger.continues for ledger in ledgers) else frozenset()


def settle_continued(ledgers: Collection[Ledger]) -> list[Ledger]:
    """The ledgers with nothing in flight in sessions that another one continues: that one plays it again."""
    continued = continued_sessions(ledgers)
    return [replace(ledger, in_flight=0) if ledger.session in continued else ledger for ledger in ledgers]


def run_state(
    ledgers: Collection[Ledger], planned: int | None, finished: int | None, now: datetime | None = None
) -> RunState:
    """The state of the run with these last ledgers, one for each session.

    `planned` and `finished` count episodes (see `planned_episodes` and `RunTotals.finished`). If `finished` is not
    known, the number of recorded lines is used: a run with fewer of them than planned is interrupted in any case.
    """
    if not ledgers:
        return RunState.UNKNOWN
    now = now or utc_now()
    continued = continued_sessions(ledgers)
    if any(session_state(ledger, now, continued) is SessionState.RUNNING for ledger in ledgers):
        return RunState.RUNNING
    if died_sessions(ledgers, now):
        return RunState.DIED
    done = sum(ledger.recorded for ledger in ledgers) if finished is None else finished
    return RunState.COMPLETE if planned is None or done >= planned else RunState.INTERRUPTED


def died_sessions(ledgers: Collection[Ledger], now: datetime | None = None) -> list[Ledger]:
    """The sessions that died and that no later session continued or restarted."""
    died = [ledger for ledger in ledgers if session_state(ledger, now) is SessionState.DIED]
    if not died:
        return []
    superseded = Sessions(ledgers).superseded_by_any
    return [ledger for ledger in died if ledger.session not in superseded]


def needs_count(ledgers: Collection[Ledger], planned: int | None) -> bool:
    """Whether the state depends on how many episodes are finished."""
    return planned is not None and run_state(ledgers, planned, None) is RunState.COMPLETE


def planned_episodes(info: RunInfo) -> int | None:
    """How many episodes a run is to have, as stated when it was created; None without a plan."""
    return info.planned
