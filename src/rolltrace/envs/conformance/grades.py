"""Whether a builder that grades groups gives a grade to each rollout, by its id."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.conformance.bench import Bench
from rolltrace.envs.conformance.caller import Caller
from rolltrace.envs.conformance.episode import play_episode
from rolltrace.envs.conformance.report import Rule, quote
from rolltrace.envs.conformance.shapes import is_reward
from rolltrace.envs.conformance.tested import TestedEnv
from rolltrace.trace.draft import Draft, new_id
from rolltrace.trace.outcome import Layer, Status, StoppedBy, StopReason
from rolltrace.trace.rollout import Failure, Grade, Header, Outcome, Rollout


async def check_grade_group(bench: Bench, builder: Caller) -> None:
    """Play a group, and have it graded whole, and again with a failed member."""
    if not builder.target.grades_groups or bench.report.breaks(Rule.BUILDER):
        return
    rollouts: list[Rollout] = []
    for episode in range(builder.target.episodes):
        style = list(bench.styles)[episode % len(bench.styles)]
        seats = await play_episode(bench, builder, style, number=episode)
        rollouts += [_rollout(builder.target, seat, episode, number) for number, seat in enumerate(seats)]
    if rollouts:
        await _grade(bench, builder, rollouts)
        await _grade(bench, builder, [*rollouts[:-1], _failed(rollouts[-1])])


async def _grade(bench: Bench, builder: Caller, rollouts: list[Rollout]) -> None:
    outcome = await builder.call("grade_group", tuple(rollouts))
    name = f"`{type(builder.target).__name__}.grade_group`"
    bench.raised(
        Rule.GRADE_GROUP, name, outcome, "let `grade_group` take any rollouts, also failed ones without a reward"
    )
    if not outcome.returned:
        return
    grades = outcome.value
    if not isinstance(grades, Mapping) or not all(_is_grade(grade) for grade in grades.values()):
        bench.report.add(
            Rule.GRADE_GROUP,
            f"{name} gave {quote(grades)}",
            "return a dict from rollout id to a `Grade` whose `reward` is a number",
        )
        return
    known = {rollout.id for rollout in rollouts}
    needed = {rollout.id for rollout in rollouts if rollout.status is Status.OK}
    if not needed <= set(grades) <= known:
        bench.report.add(
            Rule.GRADE_GROUP,
            f"{name} graded {quote(sorted(map(str, grades)))}, of {quote(sorted(known))}",
            "use `rollout.id` as the key, and grade every rollout whose status is `ok`",
        )


def _is_grade(value: Any) -> bool:
    return isinstance(value, Grade) and is_reward(value.reward)


def _rollout(builder: EnvGroupBuilder, seat: TestedEnv, episode: int, number: int) -> Rollout:
    """The seat's play as a runner would record it."""
    now = datetime.now(UTC)
    game = builder.seats > 1
    header = Header(
        id=new_id(),
        run="check",
        env=builder.env,
        task=builder.task,
        group=builder.task,
        index=episode * builder.seats + number,
        episode=episode if game else None,
        seat=number if game else None,
        env_args=dict(builder.env_args),
        task_data=dict(builder.task_data),
        seed=builder.seed,
        tags=tuple(builder.tags),
        policy="check",
        started_at=now,
    )
    draft = Draft(header)
    seat.write(draft)
    total = sum(draft.rewards)
    outcome = Outcome(
        ended_at=datetime.now(UTC),
        status=Status.OK,
        stop_reason=StopReason.COMPLETED if seat.done else StopReason.MAX_TURNS,
        stopped_by=StoppedBy.ENV if seat.done else StoppedBy.RUNNER,
        error=None,
        reward=None,
        reward_so_far=total,
        unclamped_reward=None,
    )
    return draft.rollout(outcome)


def _failed(rollout: Rollout) -> Rollout:
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
    )
