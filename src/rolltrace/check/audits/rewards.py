"""Audits of the rewards: the parts add up to the total, and are finite numbers."""

import math
from collections.abc import Iterator, Mapping

from rolltrace.check.audit import AuditInput, Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun, rollout_finding, session_of_file
from rolltrace.trace.json_numbers import Number, as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Status, StopReason

_TOLERANCE = 1e-6
"""The relative error of a loop that adds in 32 bits."""


@audit(
    Severity.ERROR,
    "The sum of a rollout's step rewards and its grade is not its `reward_so_far`, so the policy is trained on a "
    "wrong total.",
    "Look for a part that the loop counts twice, or leaves out.",
    input=AuditInput.ROLLOUTS,
)
def reward_parts(rollout: Rollout) -> Iterator[Finding]:
    """`reward_so_far` is the sum of the step rewards and the grade."""
    parts = [step.reward for step in rollout.steps]
    if not parts and rollout.stop_reason == StopReason.CONTEXT_OVERFLOW:
        return  # the charge for a first prompt that did not fit is in no step
    if rollout.ended_before_first_turn is not None:
        parts.append(rollout.ended_before_first_turn.reward)
    if rollout.grade is not None:
        parts.append(rollout.grade.reward)
    total = sum(parts)
    if not nearly_equal(rollout.reward_so_far, total, parts):
        message = f"reward_so_far is {rollout.reward_so_far!r}, the steps and the grade sum up to {total!r}"
        yield Finding(message, data={"reward_so_far": rollout.reward_so_far, "sum": total})


@audit(
    Severity.ERROR,
    "A rollout's reward is neither the sum of its parts, nor that sum clamped by a limit, so the policy is trained "
    "on a wrong total.",
    "Record the parts that are missing, or let the recorder compute the total.",
    input=AuditInput.ROLLOUTS,
)
def reward_total(rollout: Rollout) -> Iterator[Finding]:
    """`line_reward` is `reward_so_far`, or that clamped by a limit."""
    reward, before = rollout.line_reward, rollout.unclamped_reward
    so_far = rollout.reward_so_far
    if reward is None:
        if before is not None:
            yield Finding(f"there is no reward, but unclamped_reward is {before!r}", data={"unclamped_reward": before})
    elif before is not None:
        if not nearly_equal(before, so_far, [so_far]) or reward > 0 or reward > before:
            message = f"reward is {reward!r}, clamped from {before!r}, but reward_so_far is {so_far!r}"
            yield Finding(message, data={"reward": reward, "unclamped_reward": before, "reward_so_far": so_far})
    elif not nearly_equal(reward, so_far, [so_far]):
        message = f"reward is {reward!r}, reward_so_far is {so_far!r}, and nothing says that a limit clamped it"
        yield Finding(message, data={"reward": reward, "reward_so_far": so_far})


@audit(
    Severity.ERROR,
    "The reward of a rollout that failed or was cancelled must be null: a number changes the group's mean, and "
    "every advantage.",
    "Record failures with their error and without a reward.",
    input=AuditInput.ROLLOUTS,
)
def reward_on_failed_rollout(rollout: Rollout) -> Iterator[Finding]:
    """A rollout that is not ok has no reward."""
    reward = rollout.line_reward
    if rollout.status is not Status.OK and reward is not None:
        message = f"status is {rollout.status.value}, but reward is {reward!r}"
        yield Finding(message, data={"status": rollout.status.value, "reward": reward})


@audit(
    Severity.WARNING,
    "A rollout with status ok has no reward, but the session has ended without a score named `reward` for it.",
    "Grade the group again: the writer was killed before it was graded, or the scores are lost.",
)
def reward_missing(run: AuditedRun) -> Iterator[Finding]:
    """A rollout with status ok that was not played again has a reward, or a score without a value."""
    pending = """
        from rollouts r anti join scores s on s.rollout = r.id and s.name = 'reward'
        where r.status = 'ok' and r.line_reward is null and not r.superseded and not r.retried
    """
    closed = {ledger.session for ledger in run.ledgers.values() if ledger.closed}
    for row in run.rows(pending):
        if session_of_file(row["file"]) in closed:
            yield rollout_finding(row, "status is ok, but there is no reward, and no score gave one later")


@audit(
    Severity.ERROR,
    "A score that adds the group's grade to a rollout's reward does not add up.",
    "Let the total be the sum of `reward_so_far` and `group_grade`.",
    input=AuditInput.SCORES,
)
def group_reward(score: Score) -> Iterator[Finding]:
    """The total after a group's grade is the sum of its parts, or that sum clamped by a limit."""
    so_far, grade = as_float(score.data.get("reward_so_far")), as_float(score.data.get("group_grade"))
    if score.name != "reward" or score.value is None or so_far is None or grade is None:
        return
    before = as_float(score.data.get("unclamped_reward"))
    total = score.value if before is None else before
    wrongly_clamped = before is not None and (score.value > 0 or score.value > before)
    if wrongly_clamped or not nearly_equal(total, so_far + grade, [so_far, grade]):
        message = f"the total is {score.value!r}, but {so_far!r} so far and {grade!r} by the group's grader"
        yield Finding(message, data={"value": score.value, "reward_so_far": so_far, "group_grade": grade})


@audit(
    Severity.ERROR,
    "The group's grade was added to another sum than that of the rollout's record.",
    "Look whether the grades of a group are assigned to its members in the wrong order.",
)
def group_reward_base(run: AuditedRun) -> Iterator[Finding]:
    """A group's grade is added to `reward_so_far` of the rollout's record."""
    pairs = """
        select r.*, try_cast(coalesce(s.data ->> '$.reward_so_far."$float"', s.data ->> '$.reward_so_far') as double)
            as base
        from scores s join rollouts r on s.rollout = r.id
        where s.name = 'reward' and json_exists(s.data, '$.group_grade') and base <> r.reward_so_far
    """
    for row in run.rows_about_scores(pairs):
        base, so_far = row["base"], row["reward_so_far"]
        if not nearly_equal(base, so_far, [so_far]):
            message = f"the group's grade was added to {base!r}, but reward_so_far is {so_far!r}"
            yield rollout_finding(row, message, base=base, reward_so_far=so_far)


@audit(
    Severity.ERROR,
    "A reward is NaN or infinite. One such number makes a batch's mean, every advantage and then the weights NaN.",
    "Look at the step: a division by zero, a logarithm of 0, or a value that is not a number (the record has a note).",
    input=AuditInput.ROLLOUTS,
)
def non_finite_reward(rollout: Rollout) -> Iterator[Finding]:
    """Every reward is a finite number."""
    named: list[tuple[str, float | None]] = [("reward", rollout.line_reward), ("reward_so_far", rollout.reward_so_far)]
    for step in rollout.steps:
        named.append((f"steps[{step.step}].reward", step.reward))
        named.append((f"steps[{step.step}].env_reward", step.env_reward))
    if rollout.grade is not None:
        named.append(("grade.reward", rollout.grade.reward))
    yield from _non_finite_finding({name: value for name, value in named if value is not None})


@audit(
    Severity.WARNING,
    "A number behind a reward is NaN or infinite. The reward itself may be right, but means and plots of that "
    "number are not.",
    "Look at how it is computed, or leave it out where it is not defined.",
    input=AuditInput.ROLLOUTS,
)
def non_finite_data(rollout: Rollout) -> Iterator[Finding]:
    """Every number of `reward_data` is finite."""
    named = {
        f"steps[{step.step}].reward_data.{name}": value
        for step in rollout.steps
        for name, value in step.reward_data.items()
    }
    if rollout.grade is not None:
        named |= {f"grade.reward_data.{name}": value for name, value in rollout.grade.reward_data.items()}
    yield from _non_finite_finding(named)


@audit(
    Severity.ERROR,
    "A score is NaN or infinite; where it is a reward or an advantage, so is everything computed from it.",
    "Look at how it is computed; null says that it could not be.",
    input=AuditInput.SCORES,
)
def non_finite_score(score: Score) -> Iterator[Finding]:
    """Every score is a finite number, or null."""
    if score.value is not None and not math.isfinite(score.value):
        yield Finding(f"{score.name} is {score.value!r}", data={"value": score.value})


def nearly_equal(one: float, other: float, parts: list[float]) -> bool:
    """Whether two sums of these parts are equal up to rounding; NaN is equal to NaN."""
    if one == other or (one != one and other != other):
        return True
    size = sum(abs(part) for part in parts)
    return abs(one - other) <= _TOLERANCE * max(1.0, size if math.isfinite(size) else 1.0)


def _non_finite_finding(numbers: Mapping[str, Number]) -> Iterator[Finding]:
    """A finding about those of the numbers that are NaN or infinite, if there are any."""
    wrong = {name: value for name, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)}
    if wrong:
        yield Finding(", ".join(f"{name} is {value!r}" for name, value in list(wrong.items())[:4]), data=dict(wrong))
