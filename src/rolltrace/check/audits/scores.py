"""Audits of the scores: each is about an existing rollout or group, and has a value."""

from collections.abc import Iterable, Iterator

from rolltrace.check.audit import AuditInput, Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun, group_address_of, score_finding
from rolltrace.trace.failure import is_interruption
from rolltrace.trace.score import Score


@audit(
    Severity.ERROR,
    "A score is about a rollout that is not in the run, so it is ignored.",
    "Restore the line if it is lost, or score the id of this run's rollout.",
)
def unknown_rollout(run: AuditedRun) -> Iterator[Finding]:
    """Every score of a rollout is about one that exists."""
    for row in run.rows_about_scores(
        "from scores anti join rollouts on rollouts.id = rollout where rollout is not null"
    ):
        yield score_finding(row, f"a score named {row['name']} is about rollout {row['rollout']}, which is missing")


@audit(
    Severity.ERROR,
    "A score is about a group that has no rollout in the run.",
    "Restore the rollouts if they are lost, or correct the group's key.",
)
def unknown_group(run: AuditedRun) -> Iterator[Finding]:
    """Every score of a group is about one that exists."""
    query = """
        from scores s anti join rollouts r on r.split = s.split and r.env = s.env and r."group" = s."group"
        and r.iteration is not distinct from s.iteration where s."group" is not null
    """
    for row in run.rows_about_scores(query):
        yield score_finding(
            row, f"a score named {row['name']} is about group {group_address_of(row)}, which is missing"
        )


@audit(
    Severity.ERROR,
    "The calls of a grader quote a rollout that is not in the run, so their prompts have a placeholder instead of its "
    "text.",
    "Restore the file of the rollout from a copy.",
)
def unknown_quotes(run: AuditedRun) -> Iterable[Finding]:
    """Every rollout that calls quote exists."""
    return run.unknown_quotes()


@audit(
    Severity.ERROR,
    "A score is about exactly one rollout or one group; this one cannot be used.",
    "Pass either `rollout` or `group`.",
    input=AuditInput.SCORES,
)
def score_without_target(score: Score) -> Iterator[Finding]:
    """A score is about one rollout, or one group."""
    if (score.rollout is None) == (score.group is None):
        targets = "neither a rollout nor a group" if score.rollout is None else "both a rollout and a group"
        yield Finding(f"a score named {score.name} is about {targets}")


@audit(
    Severity.WARNING,
    "A grader, a hook or a clean-up failed, so that a value is missing. Rollouts without a reward are left out of "
    "their group's statistics.",
    "Look at the error; `rolltrace regrade` grades the rollouts again.",
    input=AuditInput.SCORES,
)
def failed_score(score: Score) -> Iterator[Finding]:
    """Every score has a value, unless the play was interrupted before there was one."""
    error = score.error
    if score.value is None and not (error and is_interruption(error.layer, error.type)):
        why = "and no error says why" if error is None else f"{error.layer.value} · {error.type}: {error.message}"
        yield Finding(f"{score.name} is null: {why}", data={} if error is None else {"layer": error.layer.value})
