"""Audits of identity: each record belongs to this run, exists once, and was recorded by one session."""

import json
import sqlite3
from collections.abc import Iterator

from rolltrace.check.audit import Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.check.record_index import group_address_of, rollout_finding, score_finding
from rolltrace.query.deduplication import Attempt, resolve_slot
from rolltrace.query.table_schema import GROUP_COLUMNS

_KEY = f'run, session, {GROUP_COLUMNS}, "index", attempt'
_SHARED = f"""
    select *, json_group_array(json_array(session, attempt)) as attempts from rollouts where "index" is not null
    group by run, {GROUP_COLUMNS}, "index" having count(distinct session) > 1
    order by {GROUP_COLUMNS}, "index"
"""  # noqa: S608 - our own names
_MAX_SESSIONS = 20


@audit(
    Severity.ERROR,
    "Ids are unique everywhere. A repeated one means that a file was copied into the run twice, or that a recorder "
    "passes ids of its own; every count that includes it is wrong.",
)
def duplicate_id(run: AuditedRun) -> Iterator[Finding]:
    """No two records have the same id."""
    for table, make_finding in (("rollouts", rollout_finding), ("scores", score_finding)):
        repeated = f"select *, count(*) as times from {table} group by id having times > 1 order by id"  # noqa: S608
        for row in run.records.rows(repeated):
            message = f"id {row['id']} exists {row['times']} times in {table}/"
            yield make_finding(row, message, times=row["times"])


@audit(
    Severity.ERROR,
    "Two records have the same identity: the same run, session, split, iteration, env, group, index and attempt. "
    "Statistics of the group count both. Give each member of a group an index of its own.",
)
def duplicate_identity(run: AuditedRun) -> Iterator[Finding]:
    """No two rollouts have the same identity."""
    repeated = f"""
        select *, count(distinct id) as times, min(id) as first, max(id) as last from rollouts where "index" is not null
        group by {_KEY} having times > 1 order by id
    """  # noqa: S608 - our own names
    for row in run.records.rows(repeated):
        message = f"{row['times']} rollouts of one session are attempt {row['attempt']} of this index"
        yield rollout_finding(row, message, times=row["times"], ids=[row["first"], row["last"]])


@audit(
    Severity.ERROR,
    "A record has another run's id than run.json. It was copied from elsewhere, or run.json was replaced.",
)
def foreign_records(run: AuditedRun) -> Iterator[Finding]:
    """Every record has the id of this run."""
    own = run.info.id
    for table, make_finding in (("rollouts", rollout_finding), ("scores", score_finding)):
        for row in run.records.rows(f"select * from {table} where run <> ?", own):  # noqa: S608 - our own names
            yield make_finding(row, f"expected run {own}, the record has {row['run']}", run=row["run"])
    for ledger in run.ledgers.values():
        if ledger.run != own:
            message = f"expected run {own}, the session's ledger has {ledger.run}"
            yield Finding(message, session=ledger.session, file="ledger", data={"run": ledger.run})


@audit(
    Severity.WARNING,
    "A retry is attempt 1 after attempt 0. If an earlier attempt has no record it was lost, or attempts are counted "
    "wrongly, and error rates are too low.",
)
def attempt_gaps(run: AuditedRun) -> Iterator[Finding]:
    """The attempts of each member are numbered from 0 without a gap."""
    gaps = f"""
        select *, max(attempt) as highest, count(distinct attempt) as seen from rollouts where "index" is not null
        group by {GROUP_COLUMNS}, "index" having highest + 1 <> seen or min(attempt) < 0 order by id
    """  # noqa: S608 - our own names
    for row in run.records.rows(gaps):
        message = f"expected attempts 0 to {row['highest']}, got {row['seen']} of them"
        yield rollout_finding(row, message, highest=row["highest"], seen=row["seen"])


@audit(
    Severity.WARNING,
    "Members of a group are numbered from 0, and each has a record however it ended. A missing one was lost or never "
    "played, and the group's statistics are over too few members.",
)
def index_gaps(run: AuditedRun) -> Iterator[Finding]:
    """The members of each group are numbered from 0 without a gap, once all writers are closed."""
    if not run.is_closed:
        return  # missing ones may still be playing
    gaps = f"""
        select *, min("index") as lowest, max("index") as highest, count(distinct "index") as seen from rollouts
        group by {GROUP_COLUMNS} having highest + 1 <> seen or lowest < 0 order by id
    """  # noqa: S608 - our own names
    for row in run.records.rows(gaps):
        yield Finding(
            f"expected members 0 to {row['highest']}, got {row['seen']} between {row['lowest']} and {row['highest']}",
            address=group_address_of(row),
            data={"lowest": row["lowest"], "highest": row["highest"], "seen": row["seen"]},
        )  # fmt: skip


@audit(
    Severity.ERROR,
    "Sessions that ran at the same time recorded the same index of a group. All of these rollouts count, so groups are "
    "larger than they should be, and their statistics mix separate groups. Give each rank or worker groups or indices "
    "of its own. If a session resumed another, state it: create_run(…, join=True, continues=[…]).",
)
def colliding_sessions(run: AuditedRun) -> Iterator[Finding]:
    """No two sessions recorded the same index of a group, unless one supersedes the other."""
    for row, attempts in _shared_slots(run):
        collides = resolve_slot(attempts, run.sessions).collides
        if collides:
            sessions = sorted({attempts[position][0] for position in collides})
            message = f"{len(sessions)} sessions recorded it, and none supersedes another: all {len(collides)} count"
            yield rollout_finding(row, message, rollouts=len(collides), sessions=sessions[:_MAX_SESSIONS])


@audit(
    Severity.WARNING,
    "A later session continued the attempts of an earlier one that it supersedes, so the earlier attempts are in no "
    "table, and error rates are too low. Let the session that played an attempt play its retry.",
)
def split_attempts(run: AuditedRun) -> Iterator[Finding]:
    """A session that supersedes another played all attempts itself."""
    for row, attempts in _shared_slots(run):
        superseded = resolve_slot(attempts, run.sessions).superseded
        current = [attempt for position, attempt in enumerate(attempts) if position not in superseded]
        first = min(attempt for _, attempt in current)
        if first > 0 and any(attempts[position][1] < first for position in superseded):
            session = next(session for session, attempt in current if attempt == first)
            message = f"attempt {first} is of session {session}, earlier attempts are of sessions that it supersedes"
            yield rollout_finding(row, message, session=session, attempt=first)


def _shared_slots(run: AuditedRun) -> Iterator[tuple[sqlite3.Row, list[Attempt]]]:
    """Each slot that several sessions recorded, with its attempts."""
    for row in run.records.rows(_SHARED):
        yield row, [(session, int(attempt)) for session, attempt in json.loads(row["attempts"])]
