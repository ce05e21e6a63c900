"""Audits of the ledgers: every rollout that was started is accounted for."""

import time
from collections.abc import Iterator

from msgspec.structs import asdict

from rolltrace.check.audit import Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.query.run_state import RunState, continued_sessions, died_sessions, planned_episodes, session_state
from rolltrace.query.run_totals import query_totals
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES, SegmentName, ledger_name
from rolltrace.store.ledger import Ledger

_FIRST_LEDGER_SECONDS = 5.0
"""A writer's first ledger is written within a second; this leaves it some time."""


@audit(
    Severity.ERROR,
    "A ledger must account for every rollout: dispatched = recorded + unrecordable + dropped + in flight.",
    "Unless the file was edited, this is a bug in the writer: please report it.",
)
def ledger_sums(run: AuditedRun) -> Iterator[Finding]:
    """Every ledger adds up."""
    for ledger in run.ledgers.values():
        if not ledger.is_balanced:
            parts = (
                f"{ledger.recorded} recorded + {sum(ledger.unrecordable.values())} unrecordable + "
                f"{sum(ledger.dropped.values())} dropped + {ledger.in_flight} in flight"
            )
            yield _finding(ledger, f"{ledger.dispatched} dispatched, but {parts}", dispatched=ledger.dispatched)


@audit(
    Severity.ERROR,
    "The session wrote more lines than its files have now: they were deleted, truncated or damaged after that.",
    "Restore the files from a copy.",
)
def lost_lines(run: AuditedRun) -> Iterator[Finding]:
    """Every line that a ledger counts can be read."""
    rollouts, scores = run.count_by_session(ROLLOUTS), run.count_by_session(SCORES)
    for ledger in run.ledgers.values():
        for kind, recorded, readable in (
            (ROLLOUTS, ledger.recorded, rollouts[ledger.session]),
            (SCORES, ledger.scores_recorded, scores[ledger.session]),
        ):
            if recorded > readable:
                message = f"{recorded} {kind} were recorded, {readable} can be read, {recorded - readable} lost"
                yield _finding(ledger, message, kind, recorded=recorded, found=readable)


@audit(
    Severity.WARNING,
    "A session that was closed has more lines than its ledger counts: another process wrote to its files, or the "
    "last lines of its ledger are lost.",
    "The files are right. Let each process write a session of its own.",
)
def uncounted_lines(run: AuditedRun) -> Iterator[Finding]:
    """A session that was closed counted all its lines."""
    for ledger in run.ledgers.values():
        lines = run.rollouts_by_session[ledger.session]
        if ledger.closed and lines > ledger.recorded:
            message = f"{ledger.recorded} rollouts were counted when it was closed, its files have {lines}"
            yield _finding(ledger, message, recorded=ledger.recorded, found=lines)


@audit(
    Severity.WARNING,
    "Rollouts, scores, blobs or texts could not be written, so they are in no statistic of this run. Lines whose "
    "fsync failed (sync_failed) exist, unless the machine lost power.",
    "Remove the cause that is named, such as a full disk (ENOSPC) or a full queue.",
)
def dropped(run: AuditedRun) -> Iterator[Finding]:
    """Nothing was dropped."""
    for ledger in run.ledgers.values():
        for name, reasons in asdict(ledger).items():
            if isinstance(reasons, dict):  # every count by reason is a loss
                for reason, count in reasons.items():
                    if count > 0:
                        message = f"{count} {name.replace('_', ' ')}: {reason}"
                        yield _finding(ledger, message, f"{name}/{reason}", count=count, reason=reason)


@audit(
    Severity.WARNING,
    "Rollouts were started and have no record: they are being played, or, if the session has ended, they are lost.",
    "End every rollout, also on errors. `rolltrace run --resume RUN` plays those of a session that was killed.",
)
def unfinished_rollouts(run: AuditedRun) -> Iterator[Finding]:
    """Every rollout that was started has a record, unless a later session continues its session."""
    continued = continued_sessions(run.ledgers.values())
    for ledger in run.ledgers.values():
        if ledger.session in continued:  # its rollouts in flight were played again
            continue
        known = max(ledger.recorded, run.rollouts_by_session[ledger.session]) + run.recorded_by_forks[ledger.session]
        ended = known + sum(ledger.unrecordable.values()) + sum(ledger.dropped.values())
        if ledger.dispatched > ended and ledger.in_flight > 0:
            count = ledger.dispatched - ended
            state = "when it was closed" if ledger.closed else "in its last ledger, and lost if it has ended"
            yield _finding(ledger, f"{count} still in flight {state}", in_flight=count)


@audit(
    Severity.WARNING,
    "The session was not closed, and has written nothing for half a minute: its process was killed, or the machine "
    "died. What it had flushed is safe, what was in flight is lost, and no later session supersedes it.",
    "`rolltrace run --resume RUN` completes a run that `rolltrace run` started.",
)
def dead_sessions(run: AuditedRun) -> Iterator[Finding]:
    """No session died, unless a later one supersedes it."""
    for ledger in died_sessions(run.ledgers.values()):
        yield _finding(ledger, f"died; the last line of its ledger is of {ledger.written_at:%Y-%m-%d %H:%M:%S} UTC")


@audit(
    Severity.INFO,
    "The session is not closed: it is running, or it died and a later session supersedes it. What it flushed is safe.",
    "Nothing to do.",
)
def open_sessions(run: AuditedRun) -> Iterator[Finding]:
    """Every session was closed."""
    died = {ledger.session for ledger in died_sessions(run.ledgers.values())}
    continued = continued_sessions(run.ledgers.values())
    for ledger in run.ledgers.values():
        if not ledger.closed and ledger.session not in died:
            state, at = session_state(ledger, continued=continued), ledger.written_at
            yield _finding(ledger, f"{state}; the last line of its ledger is of {at:%Y-%m-%d %H:%M:%S} UTC")


@audit(
    Severity.INFO,
    "The run was closed before all planned episodes were finished. Its records are valid; statistics are of a part "
    "of the plan.",
    "`rolltrace run --resume RUN` completes a run that `rolltrace run` started.",
)
def interrupted_run(run: AuditedRun) -> Iterator[Finding]:
    """What was planned is there."""
    planned = planned_episodes(run.info)
    if planned is None:
        return
    for (state,) in run.tables.sql("select state from runs"):
        if state == RunState.INTERRUPTED:
            finished = query_totals(run.tables).finished
            data = {"planned": planned, "finished": finished}
            yield Finding(f"{finished:,} of {planned:,} planned episodes are finished", data=data)


@audit(
    Severity.WARNING,
    "A session has files but no ledger, so it is unknown whether its files are complete.",
    "Restore ledger/ from a copy.",
)
def missing_ledgers(run: AuditedRun) -> Iterator[Finding]:
    """Every session that wrote something has a ledger."""
    counted = run.rollouts_by_session + run.scores_by_session
    without = sorted(counted.keys() - run.ledgers.keys())
    written_at = _last_writes(run) if without else {}
    for session in without:
        # The first ledger of a session that wrote lately may still be due.
        if time.time() - written_at.get(session, 0.0) >= _FIRST_LEDGER_SECONDS:
            file = f"{LEDGER}/{ledger_name(session, 0)}"
            yield Finding(f"{counted[session]} records of a session without a ledger", session=session, file=file)


def _last_writes(run: AuditedRun) -> dict[str, float]:
    """By session, when one of its segments was last written to."""
    newest: dict[str, float] = {}
    for folder in (ROLLOUTS, SCORES):
        for entry in run.entries(folder):
            if (name := SegmentName.parse(entry.name)) is not None:
                newest[name.session] = max(newest.get(name.session, 0.0), entry.changed / 1e9)
    return newest


def _finding(ledger: Ledger, message: str, subject: str = "", **data: int | str) -> Finding:
    """A finding about a session; `subject` tells several of one audit apart."""
    file = f"{LEDGER}/{ledger_name(ledger.session, 0)}"
    about = f"{ledger.session}/{subject}" if subject else ""
    return Finding(message, subject=about, session=ledger.session, file=file, data=dict(data))
