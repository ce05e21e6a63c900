"""The rules for graders of one rollout and of a group: valid grades, the same each time, and unchanged rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import GraderError
from rolltrace.graders.grader import Grader, GroupGrade
from rolltrace.policies.policy import Completion
from rolltrace.testing.conformance.compare_plays import difference, without_timings
from rolltrace.testing.conformance.guarded_caller import CallOutcome, GuardedCaller
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.reply_styles import ReplyStyle, abnormal_completions
from rolltrace.testing.conformance.return_values import is_finite
from rolltrace.testing.conformance.runner_plays import rollouts_to_grade
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.rollout import Failure, Grade, Rollout
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason


async def check_grades(harness: Harness, builder: GuardedCaller) -> None:
    """Have every finished rollout graded twice."""
    grader = getattr(builder.target, "grader", None)
    if not isinstance(grader, Grader) or harness.report.has(Rule.BUILDER):
        return
    for style in styles_to_grade(harness):
        for rollout in await rollouts_to_grade(harness, builder.target, [style]):
            await _check_grade(harness, grader, rollout)


def styles_to_grade(harness: Harness) -> list[ReplyStyle]:
    """The reply styles, and abnormal completions if the environments take those: they are graded too."""
    styles = [*harness.styles.values()]
    if harness.takes_any_completion:
        styles += map(_always, abnormal_completions().values())
    return styles


async def ask_grader(
    harness: Harness, grader: Any, method: str, given: Any, rollouts: Sequence[Rollout], rule: Rule, fix: str
) -> CallOutcome:
    """Call a grader, which may ask other roles; report what it raises, and whether it changes the rollouts."""
    caller = harness.guard(grader, asks=True)
    name = f"`{type(grader).__name__}.{method}`"
    before = [_frozen(rollout) for rollout in rollouts]
    outcome = await caller.call(method, given)
    if caller.role_calls is not None:
        if not caller.role_calls.report_unusable_answer(outcome.error, 0, method):
            harness.report_raised(rule, name, outcome, fix)
        caller.role_calls.over = True
    if outcome.returned:
        harness.blocked_times.add(f"{name} on {len(rollouts)} rollout(s)", method, outcome.blocked_seconds)
    if before != [_frozen(rollout) for rollout in rollouts]:
        harness.report.add(
            rule,
            f"{name} changed the rollout that it was given",
            f"let `{method}` copy what it wants to change, such as `dict(rollout.task_data)`: a record is for reading",
        )
    await caller.stop()
    return outcome


def check_grade(harness: Harness, grade: Any, name: str, rule: Rule) -> bool:
    """Report a grade that a runner would refuse; returns whether it is valid."""
    if not isinstance(grade, Grade):
        fix = "return `Grade(reward=…)` for one rollout, and a dict from rollout id to a `Grade` for a group"
        harness.report.add(rule, f"{name} gave {short_repr(grade)} where a grade belongs", fix)
        return False
    if not is_finite(grade.reward):
        harness.report.add(
            rule,
            f"{name} gave a grade whose `reward` is {short_repr(grade.reward)}",
            "make a grade's `reward` a finite number, and raise `GraderError` where there is none to give",
        )
        return False
    harness.return_values.number_maps(grade, name, ("reward_data",))
    extra: Any = grade.extra
    if not isinstance(extra, Mapping):
        harness.report.add(rule, f"{name} gave {short_repr(extra)} as `extra`", "make a grade's `extra` a dict")
    return True


async def _check_grade(harness: Harness, grader: Grader, rollout: Rollout) -> None:
    name = f"`{type(grader).__name__}.grade`"
    fix = "let `grade` take any rollout that its environment ended, and raise only where there is no grade to give"
    grades = []
    for _ in range(2):
        outcome = await ask_grader(harness, grader, "grade", rollout, [rollout], Rule.GRADER, fix)
        if not outcome.returned or not check_grade(harness, outcome.value, name, Rule.GRADER):
            return
        grades.append(
            {field: without_timings(getattr(outcome.value, field)) for field in ("reward", "reward_data", "extra")}
        )
    for field, first in grades[0].items():
        if found := difference(first, grades[1][field]):
            where, one, other = found
            harness.report.add(
                Rule.GRADER,
                f"{name} graded one rollout in two ways: `{field}{where}` is {short_repr(one)}, "
                f"then {short_repr(other)}",
                "let `grade` depend on the rollout and on what others answer, and on nothing else",
            )
            return


def _frozen(rollout: Rollout) -> bytes:
    return msgspec.msgpack.encode(rollout, enc_hook=repr)


def _always(completion: Completion) -> ReplyStyle:
    return lambda _messages, _tools, _turn: completion


async def check_grade_group(harness: Harness, builder: GuardedCaller) -> None:
    """Play a group and have it graded: whole, reversed, with a failed member, and with a member without steps."""
    if not builder.target.grades_groups or harness.report.has(Rule.BUILDER):
        return
    styles = styles_to_grade(harness)
    episode_styles = [styles[episode % len(styles)] for episode in range(builder.target.episodes)]
    rollouts = await rollouts_to_grade(harness, builder.target, episode_styles, as_group=True)
    if not rollouts:
        return
    without_steps = await rollouts_to_grade(
        harness, builder.target, episode_styles[:1], as_group=True, context_length=1
    )
    grades = await _grade(harness, builder, rollouts)
    reversed_grades = await _grade(harness, builder, rollouts[::-1])
    name = _name(builder.target)
    _compare(harness, name, grades, reversed_grades, "the same rollouts came in another order")
    failed_member, *others = [failed(rollouts[0]), *rollouts[1:]]
    first = await _grade(harness, builder, [failed_member, *others])
    if builder.target.seats == 1:  # in a game, another index is another seat
        last = await _grade(
            harness, builder, [at_index(one, place) for place, one in enumerate([*others, failed_member])]
        )
        _compare(harness, name, first, last, "a failed member had the last index instead of the first")
    await _grade(harness, builder, [*without_steps[:1], *rollouts[1:]])


async def _grade(harness: Harness, builder: GuardedCaller, rollouts: list[Rollout]) -> dict[str, float]:
    """The rewards that the group's grader gives, by rollout id; what is wrong with them is reported."""
    name = _name(builder.target)
    fix = "let `grade_group` take any rollouts, also failed ones without a reward and those without steps"
    grader = _grader(builder.target)
    outcome = await ask_grader(harness, grader, "grade_group", tuple(rollouts), rollouts, Rule.GRADE_GROUP, fix)
    if not outcome.returned:
        return {}
    grades = outcome.value
    if isinstance(grades, GroupGrade):
        harness.return_values.number_maps(grades, name, ("reward_data",))
        grades = grades.grades
    if not isinstance(grades, Mapping):
        fix = "return a dict from rollout id to a `Grade` whose `reward` is a number, or a `GroupGrade` with one"
        harness.report.add(Rule.GRADE_GROUP, f"{name} gave {short_repr(grades)}", fix)
        return {}
    _check_ids(harness, name, rollouts, grades)
    # A grader that compares members cannot grade the only one that answered, and may say so.
    alone = sum(rollout.status is Status.OK and bool(rollout.steps) for rollout in rollouts) < 2
    return {
        rollout.id: float(grade.reward)
        for rollout in rollouts
        if not (alone and isinstance(grades.get(rollout.id), GraderError))
        and (grade := _member_grade(harness, name, rollout, grades)) is not None
    }


def _check_ids(harness: Harness, name: str, rollouts: Sequence[Rollout], grades: Mapping[Any, Any]) -> None:
    known = {rollout.id for rollout in rollouts}
    needed = {rollout.id for rollout in rollouts if rollout.status is Status.OK}
    if not needed <= set(grades) <= known:
        harness.report.add(
            Rule.GRADE_GROUP,
            f"{name} graded {short_repr(sorted(map(str, grades)))}, of {short_repr(sorted(known))}",
            "use `rollout.id` as the key, and grade every rollout whose status is `ok`",
        )


def _member_grade(harness: Harness, name: str, rollout: Rollout, grades: Mapping[Any, Any]) -> Grade | None:
    """A member's grade, or None if it has no valid one."""
    grade = grades.get(rollout.id)
    if grade is None and rollout.id not in grades:
        return None
    if isinstance(grade, Exception):
        if rollout.status is Status.OK:
            harness.report.add(
                Rule.GRADE_GROUP,
                f"{name} gave {short_repr(grade)} in place of a grade, for a rollout that was played to an end",
                "grade every rollout whose status is `ok`; where the grade depends on what others answer, pass `roles` "
                "to the check that answer as the grader expects",
            )
        return None
    return grade if check_grade(harness, grade, name, Rule.GRADE_GROUP) else None


def _compare(harness: Harness, name: str, grades: Mapping[str, float], again: Mapping[str, float], when: str) -> None:
    for rollout, one in grades.items():
        other = again.get(rollout, one)
        if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9):
            harness.report.add(
                Rule.GRADE_GROUP,
                f"{name} gave a rollout {one:g}, and {other:g} when {when}",
                "grade by what is in a rollout, never by its place in a list: build the grades in one pass over "
                "`rollout.id`, sort by `rollout.index` where a fixed order is needed, and leave failed members out "
                "before anything is lined up",
            )
            return


def _grader(builder: EnvGroupBuilder) -> Any:
    """The object whose `grade_group` is called."""
    return builder if type(builder).grade_group is not EnvGroupBuilder.grade_group else builder.group_grader


def _name(builder: EnvGroupBuilder) -> str:
    return f"`{type(_grader(builder)).__name__}.grade_group`"


def failed(rollout: Rollout) -> Rollout:
    """The rollout as if its env had raised before the first step."""
    return msgspec.structs.replace(
        rollout,
        status=Status.ERROR,
        stop_reason=StopReason.ERROR,
        stopped_by=StoppedBy.RUNNER,
        error=Failure(Layer.ENV, "RuntimeError", "the check made this member a failed one"),
        reward_so_far=0.0,
        steps=(),
        final=(),
        ended_before_first_turn=None,
    )


def at_index(rollout: Rollout, index: int) -> Rollout:
    """The same rollout with another index."""
    return msgspec.structs.replace(rollout, index=index)
