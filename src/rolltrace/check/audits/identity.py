"""Audits of identity: each record belongs to this run, exists once, and was recorded by one session."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from rolltrace.check.audit import MAX_EXAMPLES, Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun, Row, group_address_of, rollout_finding, score_finding
from rolltrace.query.deduplication import SLOT_COLUMNS
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_literal
from rolltrace.store.layout import LEDGER, ledger_name

_FINDINGS = {"rollouts": rollout_finding, "scores": score_finding}
_MAX_SESSIONS = 20
_MEMBERS = f'list(id order by "index", id)[:{MAX_EXAMPLES}] as members'


@audit(
    Severity.ERROR,
    "Ids are unique everywhere, so every count that includes a repeated one is wrong.",
    "Look whether a file was copied into the run twice, or a recorder passes ids of its own.",
)
def duplicate_id(run: AuditedRun) -> Iterator[Finding]:
    """No two records have the same id."""
    for table, make_finding in _FINDINGS.items() if run.has_repeated_lines else ():
        repeated = f"""
            select * from {table} join (
                select id, count(*) + 1 as times from _repeated where starts_with(_file, '{table}/') group by id
            ) using (id) order by id
        """
        for row in run.rows(repeated):
            message = f"id {row['id']} exists {row['times']} times in {table}/"
            yield make_finding(row, message, times=row["times"])


@audit(
    Severity.ERROR,
    "Two records have the same run, session, split, iteration, env, group, index and attempt, and statistics of the "
    "group count both.",
    "Give each member of a group an index of its own.",
)
def duplicate_identity(run: AuditedRun) -> Iterator[Finding]:
    """No two rollouts have the same identity."""
    for row in _grouped(run, f"{SLOT_COLUMNS}, session, attempt", "count(*) as times", "times > 1"):
        message = f"{row['times']} rollouts of one session are attempt {row['attempt']} of this index"
        yield _finding(row, message, times=row["times"])


@audit(
    Severity.ERROR,
    "A record has another run's id than run.json: it was copied from elsewhere, or run.json was replaced.",
    "Move the records back to their run, or restore run.json.",
)
def foreign_records(run: AuditedRun) -> Iterator[Finding]:
    """Every record has the id of this run."""
    own = run.info.id
    for table, make_finding in _FINDINGS.items() if run.runs - {own} else ():
        for row in run.rows(f"from {table} where run <> {sql_literal(own)}"):
            yield make_finding(row, f"expected run {own}, the record has {row['run']}", run=row["run"])
    for ledger in run.ledgers.values():
        if ledger.run != own:
            message = f"expected run {own}, the session's ledger has {ledger.run}"
            file = f"{LEDGER}/{ledger_name(ledger.session, 0)}"
            yield Finding(message, session=ledger.session, file=file, data={"run": ledger.run})


@audit(
    Severity.WARNING,
    "A retry is attempt 1 after attempt 0. If an earlier attempt has no record it was lost, or attempts are counted "
    "wrongly, and error rates are too low.",
    "Count attempts from 0, and record those that fail.",
)
def attempt_gaps(run: AuditedRun) -> Iterator[Finding]:
    """The attempts of each member are numbered from 0 without a gap."""
    if not run.has_retries:
        return
    counts = "max(attempt) as highest, count(distinct attempt) as seen, min(attempt) as lowest"
    for row in _grouped(run, f'{GROUP_COLUMNS}, "index"', counts, "highest + 1 <> seen or lowest < 0"):
        message = f"expected attempts 0 to {row['highest']}, got {row['seen']} of them"
        yield _finding(row, message, highest=row["highest"], seen=row["seen"])


@audit(
    Severity.WARNING,
    "Members of a group are numbered from 0, and each has a record however it ended. A missing one was lost or "
    "never played, and the group's statistics are over too few members.",
    "Record every member, also those that fail; number them before any is filtered.",
)
def index_gaps(run: AuditedRun) -> Iterator[Finding]:
    """The members of each group are numbered from 0 without a gap, once all writers are closed."""
    if not run.is_closed:
        return  # missing ones may still be playing
    counts = 'max("index") as highest, count(distinct "index") as seen, min("index") as lowest'
    for row in _grouped(run, GROUP_COLUMNS, counts, "highest + 1 <> seen or lowest < 0"):
        yield Finding(
            f"expected members 0 to {row['highest']}, got {row['seen']} between {row['lowest']} and {row['highest']}",
            tuple(row["members"]),
            group_address_of(row),
            data={"lowest": row["lowest"], "highest": row["highest"], "seen": row["seen"]},
        )  # fmt: skip


@audit(
    Severity.ERROR,
    "Sessions that ran at the same time recorded the same index of a group. All of these rollouts count, so groups "
    "are larger than they should be, and their statistics mix separate groups.",
    "Give each rank or worker groups or indices of its own. If a session resumed another, state it: create_run(…, "
    "join=True, continues=[…]).",
)
def colliding_sessions(run: AuditedRun) -> Iterator[Finding]:
    """No two sessions recorded the same index of a group, unless one supersedes the other."""
    if len(run.sessions) < 2:
        return
    counts = "count(*) filter (collides) as n, list_sort(list(distinct session) filter (collides)) as sessions"
    members = f"(list(id order by id) filter (collides))[:{MAX_EXAMPLES}] as members"
    for row in _grouped(run, SLOT_COLUMNS, counts, "n > 0", members):
        sessions = row["sessions"]
        message = f"{len(sessions)} sessions recorded it, and none supersedes another: all {row['n']} count"
        yield _finding(row, message, rollouts=row["n"], sessions=sessions[:_MAX_SESSIONS])


@audit(
    Severity.WARNING,
    "A later session continued the attempts of an earlier one that it supersedes, so the earlier attempts are in no "
    "table, and error rates are too low.",
    "Let the session that played an attempt play its retry.",
)
def split_attempts(run: AuditedRun) -> Iterator[Finding]:
    """A session that supersedes another played all attempts itself."""
    counts = """
        min(attempt) filter (not superseded) as first, arg_min(session, attempt) filter (not superseded) as played_by,
        min(attempt) filter (superseded) as earliest
    """
    for row in _grouped(run, SLOT_COLUMNS, counts, "first > 0 and earliest < first") if len(run.sessions) > 1 else ():
        session, first = row["played_by"], row["first"]
        message = f"attempt {first} is of session {session}, earlier attempts are of sessions that it supersedes"
        yield _finding(row, message, session=session, attempt=first)


def _finding(row: Row, message: str, **data: Any) -> Finding:
    """A finding at the place of a row of `_grouped`, about all its `members`."""
    return replace(rollout_finding(row, message, **data), rollouts=tuple(row["members"]))


def _grouped(run: AuditedRun, key: str, counts: str, condition: str, members: str = _MEMBERS) -> Iterator[Row]:
    """For each group of rollouts with an index for which the condition holds: one of them, the counts and the members.

    The condition is about the counts.
    """
    # A long run has many groups. Only their hashes are in memory, and the groups for which the condition holds.
    return run.rows(f"""
        select * from rollouts join (
            select min(id) as id, {counts}, {members} from rollouts where "index" is not null and hash({key}) in (
                select hash from (
                    select hash({key}) as hash, {counts} from rollouts where "index" is not null
                    group by hash having {condition}
                )
            ) group by {key} having {condition}
        ) using (id) order by {GROUP_COLUMNS}, "index", id
    """)
