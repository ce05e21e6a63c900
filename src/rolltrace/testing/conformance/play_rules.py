"""The rules that are checked by playing: whole episodes, cancellation, misuse, unusual completions, clean-up."""

from functools import partial

from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.rollout.contract import attribute_of, is_count
from rolltrace.rollout.hooks import Hooks, Turn
from rolltrace.testing.conformance.compare_plays import event_difference
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.plays import play
from rolltrace.testing.conformance.probed_builder import ProbedBuilder, ProbedGroup
from rolltrace.testing.conformance.probed_env import ProbedEnv, UnstartedEnv
from rolltrace.testing.conformance.reply_styles import UNUSUAL_COMPLETIONS
from rolltrace.testing.conformance.user_object import CancelPoint
from rolltrace.testing.conformance.violations import Rule
from rolltrace.trace.message import Message

_MAX_AWAITS = 16
"""At how many awaits of one play a cancellation is tried."""


async def check_plays(harness: Harness, builder: EnvGroupBuilder) -> list[ProbedEnv]:
    """Play twice in every style: the same answers must give the same play. Returns the first play if it did."""
    repeatable: list[ProbedEnv] = []
    for number, style in enumerate(harness.styles):
        first, again = [await play(harness, ProbedBuilder(builder, harness, [style], graded=True)) for _ in range(2)]
        if differs := _difference(first, again):
            harness.report.add(
                Rule.SAME_SEED,
                f"two plays with the same answers differ in {differs}",
                "draw all chance from the builder's seed and the episode's number, with a `random.Random` of its own",
            )
        elif number == 0:
            repeatable = first
    return repeatable


async def check_copy(harness: Harness, copy: EnvGroupBuilder, first: list[ProbedEnv]) -> None:
    """The unpickled builder must play as the original did."""
    style = next(iter(harness.styles))
    copied = await play(harness, ProbedBuilder(copy, harness, [style], clean_up=True))
    if differs := _difference(first, copied):
        harness.report.add(
            Rule.PICKLES,
            f"a play made by the unpickled builder differs in {differs}",
            "keep in the pickle all that the builder's episodes depend on",
        )


async def check_step_before_start(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Call `step` before `initial_observation`."""
    await _leave_unstarted(harness, builder, steps=True)


async def check_cleanup(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Close the envs of the last episode without starting them, and clean up the builder."""
    episodes = attribute_of(builder, "episodes")
    last = episodes - 1 if is_count(episodes) else 0
    await _leave_unstarted(harness, builder, steps=False, episode=last, clean_up=True)


async def _leave_unstarted(
    harness: Harness, builder: EnvGroupBuilder, *, steps: bool, episode: int = 0, clean_up: bool = False
) -> None:
    def make_probe(env: Env, _where: str, _seat: int) -> ProbedEnv:
        return UnstartedEnv(env, harness, steps=steps)

    await play(
        harness,
        ProbedBuilder(builder, harness, ["unstarted"], make_probe=make_probe, first_episode=episode, clean_up=clean_up),
    )


async def check_any_completion(harness: Harness, builder: EnvGroupBuilder) -> None:
    """An env with `takes_any_completion` must take truncated, malformed and empty completions."""
    for kind in UNUSUAL_COMPLETIONS if harness.takes_any_completion else ():

        def make_probe(env: Env, where: str, _seat: int, kind: str = kind) -> ProbedEnv:
            return ProbedEnv(env, harness, where, unusual=kind)

        await play(harness, ProbedBuilder(builder, harness, [kind], make_probe=make_probe, graded=True))


async def check_observe(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Have a hook put a message in before the first turn."""

    async def add_note(_turn: Turn) -> list[Message]:
        return [Message("user", "A note from outside the environment.")]

    style = next(iter(harness.styles))
    await play(harness, ProbedBuilder(builder, harness, [style]), turns=1, hooks=Hooks(before_turn=add_note))


async def check_cancellation(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Cancel a play at each of its awaits in turn, in every style and at every seat."""

    def make_probe(env: Env, where: str, seat: int, point: CancelPoint, target: int) -> ProbedEnv:
        return ProbedEnv(env, harness, where, point=point if seat == target else None)

    seats = attribute_of(builder, "seats")
    for style in harness.styles:
        for target in range(seats if is_count(seats) else 1):
            for at in range(1, _MAX_AWAITS + 1):
                point = CancelPoint(at)
                probe = partial(make_probe, point=point, target=target)
                await play(harness, ProbedBuilder(builder, harness, [style], make_probe=probe))
                if not point.fired:
                    break


async def check_grade_group(harness: Harness, builder: EnvGroupBuilder) -> None:
    """Play a group and have it graded in several forms."""
    if not builder.grades_groups or harness.report.has(Rule.BUILDER):
        return
    styles = [*harness.styles, *(UNUSUAL_COMPLETIONS if harness.takes_any_completion else ())]
    episode_styles = [styles[episode % len(styles)] for episode in range(builder.episodes)]
    await play(harness, ProbedGroup(builder, harness, episode_styles))


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
