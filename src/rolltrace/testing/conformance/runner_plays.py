"""Plays a builder with the real runner, so that graders are checked with the rollouts that a runner passes to them."""

import asyncio
from collections.abc import Sequence

from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.probe_policies import StylePolicy
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.violations import Rule
from rolltrace.trace.rollout import Grade, Rollout

_DESCRIPTION = ("env", "task", "tags", "seats", "env_args", "task_data", "seed")


async def rollouts_to_grade(
    harness: Harness,
    builder: EnvGroupBuilder,
    styles: Sequence[ReplyStyle],
    *,
    as_group: bool = False,
    context_length: int | None = None,
) -> list[Rollout]:
    """The rollouts, by index, that the runner passes to a grader, or to a group grader, after an episode in each style.

    A `context_length` of 1 ends each rollout before its first turn. There are no rollouts if an env hangs.
    """
    if harness.report.has(Rule.HANGS):
        return []
    before = harness.running()
    collector = _Collector()
    runner = Runner(
        StylePolicy(styles, builder.seats, harness.roles),
        roles=harness.roles.others,
        sink=MemorySink(run="check"),
        limits=Limits(max_turns=harness.turns, close_timeout=harness.seconds, context_length=context_length),
    )
    play = asyncio.create_task(_play(runner, _CollectingBuilder(builder, len(styles), collector, as_group=as_group)))
    await asyncio.wait({play}, timeout=(harness.turns + 3) * harness.seconds)
    if not play.done():
        play.cancel()
        await asyncio.wait({play}, timeout=1.0)
        return []
    play.result()
    fix = "cancel and await, in `finally` or in `close`, every task that the environment started"
    await harness.check_leftover_tasks(before, "after `close` after a play", fix)
    return sorted(collector.rollouts, key=lambda rollout: rollout.index or 0)


async def _play(runner: Runner, builder: EnvGroupBuilder) -> None:
    async for _ in runner.play([builder]):
        pass


class _Collector(Grader, GroupGrader):
    """Keeps the rollouts that it is asked to grade."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []

    async def grade(self, rollout: Rollout) -> Grade:
        self.rollouts.append(rollout)
        return Grade(reward=0.0)

    async def grade_group(self, rollouts: Sequence[Rollout]) -> dict[str, Grade]:
        self.rollouts.extend(rollouts)
        return {rollout.id: Grade(reward=0.0) for rollout in rollouts}


class _CollectingBuilder(EnvGroupBuilder):
    """The episodes of another builder, with a collector as its only grader; the policy plays every seat."""

    def __init__(self, builder: EnvGroupBuilder, episodes: int, collector: _Collector, *, as_group: bool) -> None:
        for field in _DESCRIPTION:
            setattr(self, field, getattr(builder, field))
        self.episodes = episodes
        self.grader = None if as_group else collector
        self.group_grader = collector if as_group else None
        self._builder = builder

    async def make_episode(self, number: int) -> Sequence[Env]:
        return await self._builder.make_episode(number)
