"""Plays whole episodes: all seats at once, as a runner does."""

import asyncio

from rolltrace.envs.conformance.answers import ReplyStyle
from rolltrace.envs.conformance.awaiting import CancelPoint
from rolltrace.envs.conformance.bench import Harness
from rolltrace.envs.conformance.caller import GuardedCall
from rolltrace.envs.conformance.report import Rule, short_repr
from rolltrace.envs.conformance.settled import difference
from rolltrace.envs.conformance.tested import COMPARED, PlayEvent, ProbedEnv
from rolltrace.envs.env import Env

_MAX_AWAITS = 16
"""How many awaits of one play are tried as places to be cancelled at."""


async def play_episode(
    bench: Harness,
    builder: GuardedCall,
    style: str,
    *,
    number: int = 0,
    point: CancelPoint | None = None,
    target: int = 0,
    answer: ReplyStyle | None = None,
) -> list[ProbedEnv]:
    """Make an episode, play it to its end and close it; no seats where it could not be made.

    `style` names one of the bench's, or says what `answer` is.
    """
    envs = await bench.make(builder, number)
    seats = [
        ProbedEnv(env, bench, _where(envs, seat, style), point if seat == target else None)
        for seat, env in enumerate(envs)
    ]
    await _play_together(seats, answer or bench.styles[style])
    when = "after a play" if point is None else "after a cancellation"
    if point is None:
        for seat in seats:
            await seat.check_step_after_done()
    for seat in seats:
        await seat.check_end(when)
    for seat in seats[:1]:
        await seat.check_nothing_running(when)
    return seats


async def check_plays(bench: Harness, builder: GuardedCall) -> list[ProbedEnv] | None:
    """Play in every style, twice; the same answers must give the same play. Gives the first where it is repeatable."""
    repeatable: list[ProbedEnv] | None = None
    for number, style in enumerate(bench.styles):
        first = await play_episode(bench, builder, style)
        again = await play_episode(bench, builder, style)
        if differs := _difference(first, again):
            bench.report.add(
                Rule.SAME_SEED,
                f"two plays with the same answers differ in {differs}",
                "draw all chance from the builder's seed and the episode's number, with a `random.Random` of its own",
            )
        elif number == 0:
            repeatable = first
    return repeatable


async def check_copy(bench: Harness, copy: GuardedCall, first: list[ProbedEnv]) -> None:
    """The builder that came out of a pickle plays as the original did."""
    copied = await play_episode(bench, copy, next(iter(bench.styles)))
    if copied and (differs := _difference(first, copied)):
        bench.report.add(
            Rule.PICKLES,
            f"a play made by the unpickled builder differs in {differs}",
            "keep in the pickle all that the builder's episodes depend on",
        )


async def check_cancellation(bench: Harness, builder: GuardedCall) -> None:
    """Cancel a play at each of its awaits in turn, in every style and at every seat."""
    seats = getattr(builder.target, "seats", 1)
    for style in bench.styles:
        for target in range(seats if isinstance(seats, int) else 1):
            for at in range(1, _MAX_AWAITS + 1):
                point = CancelPoint(at)
                await play_episode(bench, builder, style, point=point, target=target)
                if not point.fired:
                    break


async def _play_together(seats: list[ProbedEnv], style: ReplyStyle) -> None:
    """Once one seat stops before its env is done, the others, who may wait for its moves, stop too."""
    plays = {asyncio.create_task(seat.play(style)): seat for seat in seats}
    pending = set(plays)
    try:
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not all(play.result() for play in ended):
                for play in pending:
                    plays[play].interrupt()
    finally:
        for play in pending:
            play.cancel()


def _where(envs: list[Env], number: int, style: str) -> str:
    return f" (style: {style})" if len(envs) == 1 else f" (style: {style}, seat {number})"


def _difference(first: list[ProbedEnv], again: list[ProbedEnv]) -> str | None:
    """Where two plays first differ, in words."""
    if len(first) != len(again):
        return f"the number of seats, {len(first)} and {len(again)}" if first and again else None
    for number, (one, other) in enumerate(zip(first, again, strict=True)):
        where = f" (seat {number})" if len(first) > 1 else ""
        for left, right in zip(one.events, other.events, strict=False):
            if left != right:
                return f"{left.call}{where}: {_event_difference(left, right)}"
        if len(one.events) != len(other.events) and not (one.cut or other.cut):
            return f"the number of turns{where}: {len(one.events) - 1}, then {len(other.events) - 1}"
    return None


def _event_difference(left: PlayEvent, right: PlayEvent) -> str:
    for field in ("raised", "reward", "done"):
        if (one := getattr(left, field)) != (other := getattr(right, field)):
            return f"`{field}` is {short_repr(one)}, then {short_repr(other)}"
    for field in COMPARED:
        if found := difference(left.told.get(field), right.told.get(field)):
            return f"`{field}{found[0]}` is {short_repr(found[1])}, then {short_repr(found[2])}"
    if left.observation is None or right.observation is None:
        return "there is an observation in only one of them"
    for field in left.observation.__struct_fields__:
        if (one := getattr(left.observation, field)) != (other := getattr(right.observation, field)):
            return f"`{field}` are {short_repr(one)}, then {short_repr(other)}"
    return "its observation"
