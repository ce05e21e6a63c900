"""Whether a builder's grader grades each rollout, the same each time, and leaves it as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.conformance.answers import ReplyStyle, abnormal_completions
from rolltrace.envs.conformance.bench import Harness
from rolltrace.envs.conformance.caller import CallOutcome, GuardedCall
from rolltrace.envs.conformance.episode import play_episode
from rolltrace.envs.conformance.records import recorded
from rolltrace.envs.conformance.report import Rule, short_repr
from rolltrace.envs.conformance.settled import difference, without_timings
from rolltrace.envs.conformance.shapes import is_finite
from rolltrace.graders.grader import Grader
from rolltrace.policies.policy import Completion
from rolltrace.trace.rollout import Grade, Rollout


async def check_grades(bench: Harness, builder: GuardedCall) -> None:
    """Have every play that came to its end graded, twice."""
    grader = getattr(builder.target, "grader", None)
    if not isinstance(grader, Grader) or bench.report.has(Rule.BUILDER):
        return
    for style, answer in styles_to_grade(bench).items():
        seats = await play_episode(bench, builder, style, answer=answer)
        for number, seat in enumerate(seats):
            if seat.done:
                await _check_grade(bench, grader, recorded(builder.target, seat, 0, number))


def styles_to_grade(bench: Harness) -> dict[str, ReplyStyle]:
    """The bench's styles, and completions that are cut or malformed where those are graded too."""
    styles = dict(bench.styles)
    if bench.takes_any_completion:
        for name, completion in abnormal_completions().items():
            styles[f"{name} completion"] = _always(completion)
    return styles


async def ask_grader(
    bench: Harness, grader: Any, method: str, given: Any, rollouts: Sequence[Rollout], rule: Rule, fix: str
) -> CallOutcome:
    """Ask a grader, who may ask others; report what it raises, and whether it changes the rollouts."""
    player = bench.player(grader, asks=True)
    name = f"`{type(grader).__name__}.{method}`"
    before = [_frozen(rollout) for rollout in rollouts]
    outcome = await player.call(method, given)
    if player.part is not None:
        if not player.part.blames_answers(outcome.error, 0, method):
            bench.raised(rule, name, outcome, fix)
        player.part.over = True
    if outcome.returned:
        bench.stalls.note(f"{name} on {len(rollouts)} rollout(s)", method, outcome.blocked_seconds)
    if before != [_frozen(rollout) for rollout in rollouts]:
        bench.report.add(
            rule,
            f"{name} changed the rollout that it was given",
            f"let `{method}` copy what it wants to change, such as `dict(rollout.task_data)`: a record is for reading",
        )
    await player.stop()
    return outcome


def check_grade(bench: Harness, grade: Any, name: str, rule: Rule) -> bool:
    """Report what a runner would not take as a grade; whether it would."""
    if not isinstance(grade, Grade):
        fix = "return `Grade(reward=…)` for one rollout, and a dict from rollout id to a `Grade` for a group"
        bench.report.add(rule, f"{name} gave {short_repr(grade)} where a grade belongs", fix)
        return False
    if not is_finite(grade.reward):
        bench.report.add(
            rule,
            f"{name} gave a grade whose `reward` is {short_repr(grade.reward)}",
            "make a grade's `reward` a finite number, and raise `GraderError` where there is none to give",
        )
        return False
    bench.shapes.number_maps(grade, name, ("reward_data",))
    extra: Any = grade.extra
    if not isinstance(extra, Mapping):
        bench.report.add(rule, f"{name} gave {short_repr(extra)} as `extra`", "make a grade's `extra` a dict")
    return True


async def _check_grade(bench: Harness, grader: Grader, rollout: Rollout) -> None:
    name = f"`{type(grader).__name__}.grade`"
    fix = "let `grade` take any rollout that its environment ended, and raise only where there is no grade to give"
    grades = []
    for _ in range(2):
        outcome = await ask_grader(bench, grader, "grade", rollout, [rollout], Rule.GRADER, fix)
        if not outcome.returned or not check_grade(bench, outcome.value, name, Rule.GRADER):
            return
        grades.append(
            {field: without_timings(getattr(outcome.value, field)) for field in ("reward", "reward_data", "extra")}
        )
    for field, first in grades[0].items():
        if found := difference(first, grades[1][field]):
            where, one, other = found
            bench.report.add(
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
