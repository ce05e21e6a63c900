"""The rules that are checked by playing: whole episodes, cancellation, misuse, abnormal completions, clean-up."""

from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.policies.policy import Completion, Request, to_completion
from rolltrace.rollout.contract import attribute_of, is_count
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.conformance.compare_plays import event_difference
from rolltrace.testing.conformance.guarded_caller import CancelPoint, GuardedCaller
from rolltrace.testing.conformance.harness import Harness, check_misuse
from rolltrace.testing.conformance.probed_env import ProbedEnv
from rolltrace.testing.conformance.reply_styles import ReplyStyle, abnormal_completions
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.message import Message

_PLAYED = "after a play"
_UNSTARTED = "on an environment that was never started"
_MAX_AWAITS = 16
"""At how many awaits of one play a cancellation is tried."""


async def play_episode(
    harness: Harness,
    builder: GuardedCaller,
    style: str,
    *,
    point: CancelPoint | None = None,
    target: int = 0,
) -> list[ProbedEnv]:
    """Make an episode, play it to its end and close it. There are no seats if it could not be made.

    `point` cancels the play of the seat `target`.
    """
    envs = await harness.make_envs(builder)
    seats = [
        ProbedEnv(env, harness, _where(envs, seat, style), point if seat == target else None)
        for seat, env in enumerate(envs)
    ]
    if seats:
        policy = _SeatPolicy(seats, harness.styles[style])
        runner = Runner(policy, sink=MemorySink(run="check"), limits=Limits(max_turns=harness.turns))
        async for _ in runner.play([_ProbedBuilder(seats)]):
            pass
    when = "after a play" if point is None else "after a cancellation"
    if point is None:
        for seat in seats:
            await seat.check_step_after_done()
    for seat in seats:
        await seat.check_end(when)
    for seat in seats[:1]:
        await seat.check_nothing_running(when)
    return seats


async def check_plays(harness: Harness, builder: GuardedCaller) -> list[ProbedEnv] | None:
    """Play twice in every style: the same answers must give the same play. Returns the first if it is repeatable."""
    repeatable: list[ProbedEnv] | None = None
    for number, style in enumerate(harness.styles):
        first = await play_episode(harness, builder, style)
        again = await play_episode(harness, builder, style)
        if differs := _difference(first, again):
            harness.report.add(
                Rule.SAME_SEED,
                f"two plays with the same answers differ in {differs}",
                "draw all chance from the builder's seed and the episode's number, with a `random.Random` of its own",
            )
        elif number == 0:
            repeatable = first
    return repeatable


async def check_copy(harness: Harness, copy: GuardedCaller, first: list[ProbedEnv]) -> None:
    """The unpickled builder must play as the original did."""
    copied = await play_episode(harness, copy, next(iter(harness.styles)))
    if copied and (differs := _difference(first, copied)):
        harness.report.add(
            Rule.PICKLES,
            f"a play made by the unpickled builder differs in {differs}",
            "keep in the pickle all that the builder's episodes depend on",
        )


async def check_cancellation(harness: Harness, builder: GuardedCaller) -> None:
    """Cancel a play at each of its awaits in turn, in every style and at every seat."""
    seats = getattr(builder.target, "seats", 1)
    for style in harness.styles:
        for target in range(seats if isinstance(seats, int) else 1):
            for at in range(1, _MAX_AWAITS + 1):
                point = CancelPoint(at)
                await play_episode(harness, builder, style, point=point, target=target)
                if not point.fired:
                    break


async def check_unstarted(harness: Harness, builder: GuardedCaller) -> None:
    """Close the envs of the last episode unused, and call `step` of others before `initial_observation`."""
    episodes = attribute_of(builder.target, "episodes")
    for env in await harness.make_envs(builder, episodes - 1 if is_count(episodes) else 0):
        await _end(ProbedEnv(env, harness), _UNSTARTED)
    for env in await harness.make_envs(builder):
        seat = ProbedEnv(env, harness)
        outcome = await seat.caller.call("step", to_completion("Answer: 1"))
        check_misuse(harness.report, Rule.STEP_BEFORE_START, env, outcome)
        await _end(seat, _UNSTARTED)


async def check_any_completion(harness: Harness, builder: GuardedCaller) -> None:
    """An env with `takes_any_completion` must take truncated, malformed and empty completions."""
    for name, completion in abnormal_completions().items():
        if (seat := await _single_seat(harness, builder, f" ({name} completion)")) is None:
            return
        env, kind = seat.caller.target, type(seat.caller.target).__name__
        if env.takes_any_completion is not True:
            if env.takes_any_completion is not False:
                message = f"`takes_any_completion` of `{kind}` is {short_repr(env.takes_any_completion)}"
                harness.report.add(Rule.TYPES, message, "set `takes_any_completion` to True or False")
            await _end(seat, _UNSTARTED)
            return
        if await seat.start() is not None:
            outcome = await seat.caller.call("step", completion)
            what = f"`{kind}.step` on a completion that is {name}"
            fix = "let `step` charge for it by `completion.termination`, or leave `takes_any_completion` False"
            harness.report_raised(Rule.ANY_COMPLETION, what, outcome, fix)
            if outcome.returned:
                harness.return_values.result(outcome.value, what)
        await _end(seat, _PLAYED)


async def check_observe(harness: Harness, builder: GuardedCaller) -> None:
    """`observe` must return the messages that were put in, or None."""
    if (seat := await _single_seat(harness, builder)) is None:
        return
    if await seat.start() is not None:
        note = Message("user", "A note from outside the environment.")
        outcome = await seat.caller.call("observe", (note,))
        name = f"`{type(seat.caller.target).__name__}.observe`"
        harness.report_raised(Rule.OBSERVE, name, outcome, "let `observe` take any messages, or return None")
        if outcome.returned and outcome.value is not None:
            seen = harness.return_values.observation(outcome.value, name)
            if seen is not None and note not in seen.messages:
                harness.report.add(
                    Rule.OBSERVE,
                    f"{name} returned an observation without the message that was put in",
                    "return an `Observation` with the messages that it was given, or None where that is unsupported",
                )
    await _end(seat, _PLAYED)


async def _single_seat(harness: Harness, builder: GuardedCaller, where: str = "") -> ProbedEnv | None:
    """The seat of an episode with one seat; None for a game, where a seat may have to wait for others to start."""
    envs = await harness.make_envs(builder)
    if len(envs) == 1:
        return ProbedEnv(envs[0], harness, where)
    for env in envs:
        await _end(ProbedEnv(env, harness), _UNSTARTED)
    return None


async def _end(seat: ProbedEnv, when: str) -> None:
    await seat.check_end(when)
    await seat.check_nothing_running(when)


async def check_cleanup(harness: Harness, builders: list[GuardedCaller]) -> None:
    """Call `cleanup` of each builder twice."""
    for builder in builders:
        name = f"`{type(builder.target).__name__}.cleanup`"
        first = await builder.call("cleanup")
        harness.report_raised(Rule.CLEANUP, name, first, "let `cleanup` give back only what there is")
        if first.returned:
            second = await builder.call("cleanup")
            harness.report_raised(
                Rule.CLEANUP, f"the second {name}", second, "let `cleanup` do nothing the second time"
            )


class _ProbedBuilder(EnvGroupBuilder):
    """One episode of envs that were made before."""

    env = task = "check"

    def __init__(self, seats: list[ProbedEnv]) -> None:
        self.seats = len(seats)
        self._seats = seats

    async def make_episode(self, number: int) -> list[ProbedEnv]:
        return self._seats


class _SeatPolicy:
    """Plays every seat of an episode in one style."""

    name = "check"
    version = None
    context_length = None

    def __init__(self, seats: list[ProbedEnv], style: ReplyStyle) -> None:
        self._seats = seats
        self._style = style

    async def complete(self, request: Request) -> Completion:
        index = None if request.identity is None else request.identity.index
        return self._seats[index or 0].answer(self._style, request.step)

    def count_tokens(self, request: Request) -> int:
        return 1


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
                return f"{left.call}{where}: {event_difference(left, right)}"
        if len(one.events) != len(other.events) and not (one.cut or other.cut):
            return f"the number of turns{where}: {len(one.events) - 1}, then {len(other.events) - 1}"
    return None
