"""Audits of the scores: each is about something that is there, and says something."""

from collections.abc import Iterator

from rolltrace.check.audit import AuditInput, Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.check.record_index import group_address_of, score_finding
from rolltrace.query.table_schema import GROUP_COLUMNS
from rolltrace.trace.failure import is_interruption
from rolltrace.trace.score import Score


@audit(
    Severity.ERROR,
    "A score names a rollout that the run does not hold: its line is lost, or the score was given the id of another "
    "run's rollout. It counts for nothing.",
)
def unknown_rollout(run: AuditedRun) -> Iterator[Finding]:
    """Every score of a rollout names one that is there."""
    non_numeric = """
        select * from scores where rollout is not null
        and not exists (select 1 from rollouts where rollouts.id = scores.rollout)
    """
    for row in run.records.rows(non_numeric):
        yield score_finding(row, f"a score named {row['name']} is about rollout {row['rollout']}, which is not there")


@audit(
    Severity.ERROR,
    "A score names a group of which the run holds no rollout: they are lost, or the name is wrong.",
)
def unknown_group(run: AuditedRun) -> Iterator[Finding]:
    """Every score of a group names one that is there."""
    non_numeric = f"""
        select * from scores where "group" is not null
        and not exists (select 1 from rollouts where ({GROUP_COLUMNS}) = (scores.split, scores.iteration, scores.env,
                                                                  scores."group"))
    """  # noqa: S608 - our own names
    for row in run.records.rows(non_numeric):
        yield score_finding(
            row, f"a score named {row['name']} is about group {group_address_of(row)}, which is not there"
        )


@audit(
    Severity.ERROR,
    "The calls of a grader quote a rollout that the run does not hold: its line is lost. Their prompts have a "
    "placeholder where its text was.",
)
def unknown_quotes(run: AuditedRun) -> Iterator[Finding]:
    """Every rollout that calls quote is there."""
    non_numeric = """
        select scores.*, quotes.rollout as quoted from quotes join scores on scores.id = quotes.score
        where not exists (select 1 from rollouts where rollouts.id = quotes.rollout)
    """
    for row in run.records.rows(non_numeric):
        message = f"calls of a score named {row['name']} quote rollout {row['quoted']}, which is not there"
        yield score_finding(row, message, quoted=row["quoted"])


@audit(
    Severity.ERROR,
    "A score is about exactly one rollout or one group; this one cannot be used.",
    input=AuditInput.SCORES,
)
def score_without_target(score: Score) -> Iterator[Finding]:
    """A score names one rollout, or one group."""
    if (score.rollout is None) == (score.group is None):
        names = "neither a rollout nor a group" if score.rollout is None else "both a rollout and a group"
        yield Finding(f"a score named {score.name} names {names}")


@audit(
    Severity.WARNING,
    "A grader, a hook or a clean-up failed, so that a value is missing. Rollouts without a reward are left out of "
    "their group's statistics.",
    input=AuditInput.SCORES,
)
def failed_score(score: Score) -> Iterator[Finding]:
    """Every score has a value, unless the play was interrupted before there was one."""
    error = score.error
    if score.value is None and not (error and is_interruption(error.layer, error.type)):
        why = "and no error says why" if error is None else f"{error.layer.value} · {error.type}: {error.message}"
        yield Finding(f"{score.name} is null: {why}", data={} if error is None else {"layer": error.layer.value})
