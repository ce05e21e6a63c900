"""Audits of sessions that recorded the same place in a group."""

import json
import sqlite3
from collections.abc import Iterator

from rolltrace.check.audit import audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.check.finding import Finding, Severity
from rolltrace.check.record_index import rollout_finding
from rolltrace.query.deduplication import Attempt, resolve_slot
from rolltrace.query.table_schema import GROUP_COLUMNS

_SHARED = f"""
    select *, json_group_array(json_array(session, attempt)) as plays from rollouts
    group by run, {GROUP_COLUMNS}, "index" having count(distinct session) > 1
    order by {GROUP_COLUMNS}, "index"
"""  # noqa: S608 - our own names
_MAX_SESSIONS = 20


@audit(
    Severity.ERROR,
    "Sessions that were at work at the same time recorded the same place in a group. All of these rollouts count, so "
    "groups are larger than they should be and their statistics mix what should be apart. Give each rank or worker "
    "groups or indices of its own. Where a session resumed another, state it: create_run(…, join=True, continues=[…]).",
)
def colliding_sessions(run: AuditedRun) -> Iterator[Finding]:
    """No two sessions recorded the same place, unless one supersedes the other."""
    for row, plays in _shared(run):
        collides = resolve_slot(plays, run.sessions).collides
        if collides:
            sessions = sorted({plays[place][0] for place in collides})
            message = f"{len(sessions)} sessions recorded it, and none supersedes another: all {len(collides)} count"
            yield rollout_finding(row, message, rollouts=len(collides), sessions=sessions[:_MAX_SESSIONS])


@audit(
    Severity.WARNING,
    "A later session went on with the attempts of an earlier one that it supersedes, so the earlier attempts are in no "
    "table, and error rates come out too low. Let the session that played an attempt play the next.",
)
def split_attempts(run: AuditedRun) -> Iterator[Finding]:
    """A session that supersedes another played all attempts itself."""
    for row, plays in _shared(run):
        superseded = resolve_slot(plays, run.sessions).superseded
        left = [play for place, play in enumerate(plays) if place not in superseded]
        first = min(attempt for _, attempt in left)
        if first > 0 and any(plays[place][1] < first for place in superseded):
            session = next(session for session, attempt in left if attempt == first)
            message = f"attempt {first} is of session {session}, the attempts before it of sessions that it supersedes"
            yield rollout_finding(row, message, session=session, attempt=first)


def _shared(run: AuditedRun) -> Iterator[tuple[sqlite3.Row, list[Attempt]]]:
    """Each place that several sessions recorded, with its plays."""
    for row in run.records.rows(_SHARED):
        yield row, [(session, int(attempt)) for session, attempt in json.loads(row["plays"])]
