"""Whether a builder that grades groups gives a grade to each rollout, by its id."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rolltrace.envs.conformance.bench import Harness
from rolltrace.envs.conformance.caller import GuardedCall
from rolltrace.envs.conformance.episode import play_episode
from rolltrace.envs.conformance.grades import ask_grader, check_grade, styles_to_grade
from rolltrace.envs.conformance.records import at_index, failed, overflowed, recorded
from rolltrace.envs.conformance.report import Rule, short_repr
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import GraderError
from rolltrace.graders.grader import GroupGrade
from rolltrace.trace.rollout import Grade, Rollout
from rolltrace.trace.stop_reasons import Status


async def check_grade_group(bench: Harness, builder: GuardedCall) -> None:
    """Play a group and have it graded: whole, turned round, with a failed member, and with one that has no steps."""
    if not builder.target.grades_groups or bench.report.has(Rule.BUILDER):
        return
    rollouts: list[Rollout] = []
    without_steps: list[Rollout] = []
    styles = list(styles_to_grade(bench).items())
    for episode in range(builder.target.episodes):
        style, answer = styles[episode % len(styles)]
        seats = await play_episode(bench, builder, style, number=episode, answer=answer)
        rollouts += [recorded(builder.target, seat, episode, number) for number, seat in enumerate(seats)]
        if not without_steps:
            without_steps = [overflowed(builder.target, seat, episode, number) for number, seat in enumerate(seats)]
    if not rollouts:
        return
    grades = await _grade(bench, builder, rollouts)
    turned = await _grade(bench, builder, rollouts[::-1])
    name = _name(builder.target)
    _compare(bench, name, grades, turned, "the same rollouts came in another order")
    lost, *others = [failed(rollouts[0]), *rollouts[1:]]
    first = await _grade(bench, builder, [lost, *others])
    if builder.target.seats == 1:  # in a game, another index is another seat
        last = await _grade(bench, builder, [at_index(one, place) for place, one in enumerate([*others, lost])])
        _compare(bench, name, first, last, "a failed member had the last index instead of the first")
    await _grade(bench, builder, [without_steps[0], *rollouts[1:]])


async def _grade(bench: Harness, builder: GuardedCall, rollouts: list[Rollout]) -> dict[str, float]:
    """The rewards that the group's grader gives, by rollout id; what is wrong with them is reported."""
    name = _name(builder.target)
    fix = "let `grade_group` take any rollouts, also failed ones without a reward and those without steps"
    grader = _grader(builder.target)
    outcome = await ask_grader(bench, grader, "grade_group", tuple(rollouts), rollouts, Rule.GRADE_GROUP, fix)
    if not outcome.returned:
        return {}
    grades = outcome.value
    if isinstance(grades, GroupGrade):
        bench.shapes.number_maps(grades, name, ("reward_data",))
        grades = grades.grades
    if not isinstance(grades, Mapping):
        fix = "return a dict from rollout id to a `Grade` whose `reward` is a number, or a `GroupGrade` with one"
        bench.report.add(Rule.GRADE_GROUP, f"{name} gave {short_repr(grades)}", fix)
        return {}
    _check_ids(bench, name, rollouts, grades)
    # A grader that compares members cannot grade the only one that answered, and may say so.
    alone = sum(rollout.status is Status.OK and bool(rollout.steps) for rollout in rollouts) < 2
    return {
        rollout.id: float(grade.reward)
        for rollout in rollouts
        if not (alone and isinstance(grades.get(rollout.id), GraderError))
        and (grade := _member_grade(bench, name, rollout, grades)) is not None
    }


def _check_ids(bench: Harness, name: str, rollouts: Sequence[Rollout], grades: Mapping[Any, Any]) -> None:
    known = {rollout.id for rollout in rollouts}
    needed = {rollout.id for rollout in rollouts if rollout.status is Status.OK}
    if not needed <= set(grades) <= known:
        bench.report.add(
            Rule.GRADE_GROUP,
            f"{name} graded {short_repr(sorted(map(str, grades)))}, of {short_repr(sorted(known))}",
            "use `rollout.id` as the key, and grade every rollout whose status is `ok`",
        )


def _member_grade(bench: Harness, name: str, rollout: Rollout, grades: Mapping[Any, Any]) -> Grade | None:
    """A member's grade, where it has one that counts."""
    grade = grades.get(rollout.id)
    if grade is None and rollout.id not in grades:
        return None
    if isinstance(grade, Exception):
        if rollout.status is Status.OK:
            bench.report.add(
                Rule.GRADE_GROUP,
                f"{name} gave {short_repr(grade)} in place of a grade, for a rollout that was played to an end",
                "grade every rollout whose status is `ok`; where the grade depends on what others answer, pass `roles` "
                "to the check that answer as the grader expects",
            )
        return None
    return grade if check_grade(bench, grade, name, Rule.GRADE_GROUP) else None


def _compare(bench: Harness, name: str, grades: Mapping[str, float], turned: Mapping[str, float], when: str) -> None:
    for rollout, one in grades.items():
        other = turned.get(rollout, one)
        if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9):
            bench.report.add(
                Rule.GRADE_GROUP,
                f"{name} gave a rollout {one:g}, and {other:g} when {when}",
                "grade by what is in a rollout, never by its place in a list: build the grades in one pass over "
                "`rollout.id`, sort by `rollout.index` where a fixed order is needed, and leave failed members out "
                "before anything is lined up",
            )
            return


def _grader(builder: EnvGroupBuilder) -> Any:
    """Whose `grade_group` it is."""
    return builder if type(builder).grade_group is not EnvGroupBuilder.grade_group else builder.group_grader


def _name(builder: EnvGroupBuilder) -> str:
    return f"`{type(_grader(builder)).__name__}.grade_group`"
