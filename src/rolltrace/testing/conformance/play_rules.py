"""The rules that are checked by having the real runner play: whole episodes, cancellation, misuse, group grades."""

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import ContextOverflowError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.rollout.contract import attribute_of, is_count
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.rollout.hooks import Hooks, Turn
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.conformance.compare_plays import event_difference
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.probed_builder import ProbedBuilder, ProbedGroup
from rolltrace.testing.conformance.probed_env import ProbedEnv, UnstartedEnv
from rolltrace.testing.conformance.reply_styles import UNUSUAL_COMPLETIONS
from rolltrace.testing.conformance.user_object import CancelPoint, current_caller
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Layer

_MAX_AWAITS = 16
"""At how many awaits of one play a cancellation is tried."""


async def check_plays(harness: Harness, builder: EnvGroupBuilder) -> list[ProbedEnv]:
    """Play twice in every style: the same answers must give the same play. Returns the first play if it did."""
    repeatable: list[ProbedEnv] = []
    for number, style in enumerate(harness.styles):
        first = await play(harness, ProbedBuilder(builder, harness, [style], graded=True))
        again = await play(harness, ProbedBuilder(builder, harness, [style], graded=True))
        if differs := _difference(first, again):
            harness.report(
                Rule.SAME_SEED,
                f"two plays with the same answers differ in {differs}",
                "take all randomness from the builder's seed and the episode's number, with a separate `random.Random`",
            )
        elif number == 0:
            repeatable = first
    return repeatable


async def check_copy(harness: Harness, copy: EnvGroupBuilder, first: list[ProbedEnv]) -> None:
    """The unpickled builder must play as the original did."""
    style = next(iter(harness.styles))
    copied = await play(harness, ProbedBuilder(copy, harness, [style], clean_up=True))
    if differs := _difference(first, copied):
        harness.report(
            Rule.PICKLES,
            f"a play made by the unpickled builder differs in {differs}",
            "keep in the pickle all that the builder's episodes depend on",
        )


async def check_any_completion(harness: Harness, builder: EnvGroupBuilder) -> None:
    """An env with `takes_any_completion` must take truncated, malformed and empty completions."""
    for style in UNUSUAL_COMPLETIONS if harness.takes_any_completion else ():
        await play(harness, ProbedBuilder(builder, harness, [style], graded=True))


async def check_observe(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Have a hook put a message in before the first turn."""

    async def add_note(_turn: Turn) -> list[Message]:
        return [Message("user", "A note from outside the environment.")]

    style = next(iter(harness.styles))
    await play(harness, ProbedBuilder(builder, harness, [style]), turns=1, hooks=Hooks(before_turn=add_note))


async def check_cancellation(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Cancel a play at each of its awaits in turn, in every style and at every seat."""
    seats = attribute_of(builder, "seats")
    for style in harness.styles:
        for seat in range(seats if is_count(seats) else 1):
            for at in range(1, _MAX_AWAITS + 1):
                point = CancelPoint(at, seat)
                await play(harness, ProbedBuilder(builder, harness, [style], point=point))
                if not point.fired:
                    break


async def check_grade_group(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Play a group and have it graded in several forms."""
    if attribute_of(builder, "grades_groups") is not True or harness.has(Rule.BUILDER):
        return
    styles = [*harness.styles, *(UNUSUAL_COMPLETIONS if harness.takes_any_completion else ())]
    episode_styles = [styles[episode % len(styles)] for episode in range(builder.episodes)]
    await play(harness, ProbedGroup(builder, harness, episode_styles))


async def check_unstarted(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Misuse the envs of the last episode instead of starting them, close them, and clean up the builder."""
    episodes = attribute_of(builder, "episodes")
    last = episodes - 1 if is_count(episodes) else 0
    wrapped = ProbedBuilder(
        builder, harness, ["unstarted"], probe_class=UnstartedEnv, first_episode=last, clean_up=True
    )
    await play(harness, wrapped)


async def play(
    harness: Harness, builder: ProbedBuilder, *, turns: int | None = None, hooks: Hooks | None = None
) -> list[ProbedEnv]:
    """Play a group with the real runner, and return its envs in the order of their rollouts."""
    runner = Runner(
        _PlayPolicy(harness, builder, harness.roles.policy),
        roles={role: _PlayPolicy(harness, builder, policy) for role, policy in harness.roles.others.items()},
        sink=MemorySink(run="check"),
        # `close` of a wrapped env makes up to three calls.
        limits=Limits(max_turns=turns or harness.turns, close_timeout=4 * harness.seconds),
        hooks=hooks or Hooks(),
    )
    async for result in runner.play([builder]):
        _report_unexplained(harness, builder, result)
    envs = [builder.probes[index] for index in sorted(builder.probes)]
    when = envs[0].when if envs else "after a play"
    fix = "cancel and await, in `finally` or in `close`, every task that the environment started"
    await harness.check_leftover_tasks(builder.known_tasks, f"after `close` {when}", fix)
    return envs


def _report_unexplained(harness: Harness, builder: ProbedBuilder, result: GroupResult) -> None:
    """Report a failure that the runner recorded, if no rule has explained it."""
    for member in result.members:
        error = member.error
        if error is None or error.layer is Layer.HOOK or member.index not in builder.probes:
            continue
        if not harness.violations:
            harness.report(
                Rule.PLAYS,
                f"the runner recorded a failure of the {error.layer}: {error.type}: {error.message}",
                "return plain values that can be read, compared and printed",
            )


class _PlayPolicy:
    """Plays each seat in the style of its episode, and leaves to another policy what envs and graders ask."""

    version = None
    context_length = None

    def __init__(self, harness: Harness, builder: ProbedBuilder, role_policy: Policy) -> None:
        self.name = role_policy.name
        self._harness = harness
        self._builder = builder
        self._role_policy = role_policy

    async def complete(self, request: Request) -> Completion:
        """The answer to the runner, or to an env or a grader."""
        caller = current_caller()
        if caller is None:
            return self._play(request)
        await caller.delay_answer(request.role)
        # A grader that is called twice must get the same answers, though the runner gives each request its own seed.
        return await self._role_policy.complete(msgspec.structs.replace(request, seed=0))

    def _play(self, request: Request) -> Completion:
        index = (request.identity and request.identity.index) or 0
        env = self._builder.probes[index]
        env.show(request.messages)
        style = self._harness.all_styles[self._builder.styles[index // self._builder.seats]]
        try:
            return style(request.messages, request.tools, request.step)
        except ContextOverflowError:
            raise
        except Exception as error:
            self._harness.report(
                Rule.ANSWERS,
                f"no answer could be made for {env.describe(f'turn {request.step}')}: {short_repr(error)}",
                "pass `answers` that answer every prompt of this environment, with tools whose parameters are a schema",
            )
            raise

    def count_tokens(self, request: Request) -> int:
        """Not used: there is no limit of tokens."""
        return 1


def _difference(first: list[ProbedEnv], again: list[ProbedEnv]) -> str | None:
    """Where two plays first differ, in words."""
    for seat, (one, other) in enumerate(zip(first, again, strict=False)):
        where = f" (seat {seat})" if len(first) > 1 else ""
        for left, right in zip(one.events, other.events, strict=False):
            if differs := event_difference(left, right):
                return f"{left.call}{where}: {differs}"
        if len(one.events) != len(other.events) and not (one.was_cut or other.was_cut):
            return f"the number of turns{where}: {len(one.events) - 1}, then {len(other.events) - 1}"
    return None
