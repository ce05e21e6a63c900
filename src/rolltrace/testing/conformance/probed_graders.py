"""Wrap graders of one rollout and of a group: valid grades, the same each time, and unchanged rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import GraderError
from rolltrace.graders.grader import Grader, GroupGrade
from rolltrace.testing.conformance.compare_plays import difference, without_timings
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.user_object import UserObject
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.json_numbers import as_float
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Status


class ProbedGrader(Grader):
    """Has the user's grader grade each rollout twice, and compares the grades."""

    def __init__(self, grader: Grader, harness: Harness) -> None:
        self._grader = grader
        self._harness = harness

    async def grade(self, rollout: Rollout) -> Grade:
        """The first grade, for the runner."""
        first = await self._ask(rollout)
        if self._is_valid(first) and self._is_valid(again := await self._ask(rollout)):
            self._compare(first, again)
        return first  # type: ignore[no-any-return]

    async def _ask(self, rollout: Rollout) -> Any:
        fix = "let `grade` take any rollout that its environment ended, and raise only if it cannot be graded"
        return await _call_grader(self._harness, self._grader, "grade", rollout, [rollout], Rule.GRADER, fix)

    def _is_valid(self, grade: Any) -> bool:
        return _check_grade(self._harness, grade, f"`{type(self._grader).__name__}.grade`", Rule.GRADER)

    def _compare(self, first: Grade, again: Grade) -> None:
        for field in ("reward", "reward_data", "extra"):
            found = difference(without_timings(getattr(first, field)), without_timings(getattr(again, field)))
            if found is not None:
                where, one, other = found
                self._harness.report(
                    Rule.GRADER,
                    f"`{type(self._grader).__name__}.grade` graded one rollout in two ways: `{field}{where}` is "
                    f"{short_repr(one)}, then {short_repr(other)}",
                    "let `grade` depend on the rollout and on what others answer, and on nothing else",
                )


class ProbedGroupGrader:
    """Has the user's group grader grade a group in several forms, and compares the grades."""

    def __init__(self, builder: EnvGroupBuilder, harness: Harness) -> None:
        overrides = type(builder).grade_group is not EnvGroupBuilder.grade_group
        self._grader: Any = builder if overrides else builder.group_grader
        self._harness = harness
        self._name = f"`{type(self._grader).__name__}.grade_group`"

    async def grade_forms(
        self, rollouts: Sequence[Rollout], failed: Sequence[Rollout], without_steps: Sequence[Rollout]
    ) -> dict[str, float]:
        """Have the group graded whole, reversed, with a failed episode, and with one without steps.

        Returns the rewards of the whole group, by rollout id.
        """
        rewards = await self._rewards(rollouts)
        self._compare(rewards, await self._rewards(rollouts[::-1]), "the same rollouts came in another order")
        others = rollouts[len(failed) :]
        failed_first = await self._rewards(_placed([*failed, *others], rollouts))
        if len(failed) == 1:  # in a game, another index is another seat
            failed_last = await self._rewards(_placed([*others, *failed], rollouts))
            when = "a failed member had the last index instead of the first"
            self._compare(failed_first, failed_last, when)
        await self._rewards(_placed([*without_steps, *others], rollouts))
        return rewards

    async def _rewards(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The rewards that the user's grader gives, by rollout id; what is wrong with them is reported."""
        fix = "let `grade_group` take any rollouts, also failed ones without a reward and those without steps"
        try:
            grades = await _call_grader(
                self._harness, self._grader, "grade_group", tuple(rollouts), rollouts, Rule.GRADE_GROUP, fix
            )
        except Exception:  # noqa: BLE001 - it is reported, and the other forms are graded too
            return {}
        if isinstance(grades, GroupGrade):
            self._harness.return_values.number_maps(grades, self._name, ("reward_data",))
            grades = grades.grades
        if not isinstance(grades, Mapping):
            fix = "return a dict from rollout id to a `Grade` whose `reward` is a number, or a `GroupGrade` with one"
            self._harness.report(Rule.GRADE_GROUP, f"{self._name} gave {short_repr(grades)}", fix)
            return {}
        self._check_ids(rollouts, grades)
        return self._valid_rewards(rollouts, grades)

    def _check_ids(self, rollouts: Sequence[Rollout], grades: Mapping[Any, Any]) -> None:
        known = {rollout.id for rollout in rollouts}
        needed = {rollout.id for rollout in rollouts if rollout.status is Status.OK}
        if not needed <= set(grades) <= known:
            self._harness.report(
                Rule.GRADE_GROUP,
                f"{self._name} graded {short_repr(sorted(map(str, grades)))}, of {short_repr(sorted(known))}",
                "use `rollout.id` as the key, and grade every rollout whose status is `ok`",
            )

    def _valid_rewards(self, rollouts: Sequence[Rollout], grades: Mapping[Any, Any]) -> dict[str, float]:
        # A grader that compares members cannot grade the only one that answered, and may say so.
        alone = sum(rollout.status is Status.OK and bool(rollout.steps) for rollout in rollouts) < 2
        rewards = {}
        for rollout in rollouts:
            grade: Any = grades.get(rollout.id)
            if rollout.id not in grades or (alone and isinstance(grade, GraderError)):
                continue
            if isinstance(grade, Exception):
                self._check_refusal(grade, rollout)
            elif _check_grade(self._harness, grade, self._name, Rule.GRADE_GROUP):
                rewards[rollout.id] = float(grade.reward)
        return rewards

    def _check_refusal(self, error: Exception, rollout: Rollout) -> None:
        if rollout.status is Status.OK:
            self._harness.report(
                Rule.GRADE_GROUP,
                f"{self._name} gave {short_repr(error)} in place of a grade, for a rollout that was played to an end",
                "grade every rollout whose status is `ok`; where the grade depends on what others answer, pass `roles` "
                "to the check that answer as the grader expects",
            )

    def _compare(self, rewards: Mapping[str, float], again: Mapping[str, float], when: str) -> None:
        for rollout, one in rewards.items():
            other = again.get(rollout, one)
            if not math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9):
                self._harness.report(
                    Rule.GRADE_GROUP,
                    f"{self._name} gave a rollout {one:g}, and {other:g} when {when}",
                    "grade by what is in a rollout, never by its place in a list: build the grades in one pass over "
                    "`rollout.id`, sort by `rollout.index` where a fixed order is needed, and leave failed members out "
                    "before anything is lined up",
                )
                return


async def _call_grader(
    harness: Harness, grader: Any, method: str, argument: Any, rollouts: Sequence[Rollout], rule: Rule, fix: str
) -> Any:
    """Call a grader; report what it raises, and whether it changes the rollouts."""
    user = UserObject(grader, harness)
    name = f"`{user.name}.{method}`"
    before = list(map(_encoded, rollouts))
    try:
        work = f"{name} on {len(rollouts)} rollout(s)"
        return await user.call(method, argument, rule=rule, name=name, fix=fix, work=work)
    finally:
        user.over = True
        if before != list(map(_encoded, rollouts)):
            harness.report(
                rule,
                f"{name} changed the rollout that it was given",
                f"let `{method}` copy what it wants to change, such as `dict(rollout.task_data)`: a record is for "
                "reading",
            )


def _encoded(rollout: Rollout) -> bytes:
    return msgspec.msgpack.encode(rollout, enc_hook=repr)


def _check_grade(harness: Harness, grade: Any, name: str, rule: Rule) -> bool:
    """Report a grade that the runner would refuse; returns whether it has a valid reward."""
    if not isinstance(grade, Grade):
        fix = "return `Grade(reward=…)` for one rollout, and a dict from rollout id to a `Grade` for a group"
        harness.report(rule, f"{name} gave {short_repr(grade)} where a grade belongs", fix)
        return False
    reward = as_float(grade.reward)
    if reward is None or not math.isfinite(reward):
        fix = "make a grade's `reward` a finite number, and raise `GraderError` if there is no grade"
        harness.report(rule, f"{name} gave a grade whose `reward` is {short_repr(grade.reward)}", fix)
        return False
    harness.return_values.number_maps(grade, name, ("reward_data",))
    extra: Any = grade.extra
    if not isinstance(extra, Mapping):
        harness.report(rule, f"{name} gave {short_repr(extra)} as `extra`", "make a grade's `extra` a dict")
    return True


def _placed(rollouts: Sequence[Rollout], places: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with the indexes and episodes of others."""
    return [
        msgspec.structs.replace(rollout, index=place.index, episode=place.episode)
        for rollout, place in zip(rollouts, places, strict=True)
    ]
