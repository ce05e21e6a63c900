"""The rules that need no whole play: builders, pickles, misuse, odd completions, clean-up."""

import pickle
from collections.abc import Mapping
from typing import Any

from rolltrace.envs.conformance.answers import abnormal_completions
from rolltrace.envs.conformance.bench import Harness
from rolltrace.envs.conformance.caller import GuardedCall
from rolltrace.envs.conformance.misuse import check_misuse
from rolltrace.envs.conformance.report import Rule, short_repr
from rolltrace.envs.conformance.tested import ProbedEnv
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.policies.policy import to_completion
from rolltrace.trace.message import Message

_MISSING = object()
_PLAYED = "after a play"
_UNSTARTED = "on an environment that was never started"


def is_builder(bench: Harness, builder: Any) -> bool:
    """Whether there is anything to check: a user's `Tasks.builder` may return anything."""
    if isinstance(builder, EnvGroupBuilder):
        return True
    fix = "return an instance of an `EnvGroupBuilder` from `Tasks.builder`"
    bench.report.add(Rule.BUILDER, f"{short_repr(builder)} is not an env group builder", fix)
    return False


def validate_builder(bench: Harness, builder: Any) -> None:
    """What the builder says of itself."""
    expected = {
        "env": ("a text that is not empty", _is_name),
        "task": ("a text that is not empty", _is_name),
        "tags": ("a tuple of texts", _are_tags),
        "episodes": ("a whole number of at least 1", _is_count),
        "seats": ("a whole number of at least 1", _is_count),
        "seed": ("a whole number or None", lambda value: value is None or _is_whole(value)),
        "env_args": ("a dict", lambda value: isinstance(value, Mapping)),
        "task_data": ("a dict", lambda value: isinstance(value, Mapping)),
    }
    for name, (wanted, fits) in expected.items():
        value = _attribute(builder, name)
        if not fits(value):
            what = "is not set" if value is _MISSING else f"is {short_repr(value)}"
            bench.report.add(
                Rule.BUILDER,
                f"`{name}` of `{type(builder).__name__}` {what}",
                f"set the builder's `{name}` to {wanted}",
            )
    _check_roles(bench, builder)


def _check_roles(bench: Harness, builder: Any) -> None:
    """Each seat is played in some role."""
    seats = _attribute(builder, "seats")
    for seat in range(seats if _is_count(seats) else 1):
        try:
            role = builder.role_of(seat)
        except Exception as error:  # noqa: BLE001 - it may raise anything
            what = f"raised {short_repr(error)}"
        else:
            if _is_name(role):
                continue
            what = f"gave {short_repr(role)}"
        bench.report.add(
            Rule.BUILDER,
            f"`{type(builder).__name__}.role_of({seat})` {what}",
            "let `role_of` name a role for every seat, such as `policy` or `opponent`",
        )


def check_pickles(bench: Harness, builder: Any) -> bytes | None:
    """The builder as pickle holds it before anything is played, or None."""
    name = type(builder).__name__
    try:
        pickled = pickle.dumps(builder)
        copy = pickle.loads(pickled)  # noqa: S301 - made a moment ago, from the caller's own object
    except Exception as error:  # noqa: BLE001 - a foreign object may raise anything here
        bench.report.add(
            Rule.PICKLES,
            f"`{name}` did not come through pickle: {short_repr(error)}",
            "define the builder's class at the top of a module, hold only what pickles, and make the rest "
            "in `make_episode`",
        )
        return None
    told = ("env", "task", "tags", "episodes", "seats", "seed")
    changed = [key for key in told if _differs(_attribute(builder, key), _attribute(copy, key))]
    if type(copy) is not type(builder) or changed:
        bench.report.add(
            Rule.PICKLES,
            f"`{name}` came back from pickle with another {', '.join(changed) or 'type'}",
            "let `__getstate__`, `__setstate__` and `__reduce__`, where there are any, keep all fields",
        )
    return pickled


def check_graders(bench: Harness, builder: Any) -> None:
    """Graders are such, and go where the builder goes."""
    for field, kind in (("grader", Grader), ("group_grader", GroupGrader)):
        grader = _attribute(builder, field)
        if grader is None or grader is _MISSING:
            continue
        if isinstance(grader, type) or not isinstance(grader, kind):
            fix = f"set the builder's `{field}` to an instance of a `{kind.__name__}`"
            bench.report.add(Rule.GRADER, f"`{field}` of `{type(builder).__name__}` is {short_repr(grader)}", fix)
        try:
            pickle.loads(pickle.dumps(grader))  # noqa: S301 - as above
        except Exception as error:  # noqa: BLE001 - as above
            bench.report.add(
                Rule.GRADER,
                f"`{type(grader).__name__}` did not come through pickle: {short_repr(error)}",
                "define the grader's class at the top of a module, and let it hold only what pickles",
            )


async def check_unstarted(bench: Harness, builder: GuardedCall) -> None:
    """Envs of the last episode are closed unused; others are asked to step without a start."""
    episodes = _attribute(builder.target, "episodes")
    for env in await bench.make(builder, episodes - 1 if _is_count(episodes) else 0):
        await _end(ProbedEnv(env, bench), _UNSTARTED)
    for env in await bench.make(builder):
        seat = ProbedEnv(env, bench)
        outcome = await seat.player.call("step", to_completion("Answer: 1"))
        check_misuse(bench.report, Rule.STEP_BEFORE_START, env, outcome)
        await _end(seat, _UNSTARTED)


async def check_any_completion(bench: Harness, builder: GuardedCall) -> None:
    """A one-prompt env takes whatever came of its prompt."""
    for name, completion in abnormal_completions().items():
        if (seat := await _lone_seat(bench, builder, f" ({name} completion)")) is None:
            return
        env, kind = seat.player.target, type(seat.player.target).__name__
        if env.takes_any_completion is not True:
            if env.takes_any_completion is not False:
                message = f"`takes_any_completion` of `{kind}` is {short_repr(env.takes_any_completion)}"
                bench.report.add(Rule.TYPES, message, "set `takes_any_completion` to True or False")
            await _end(seat, _UNSTARTED)
            return
        if await seat.start():
            outcome = await seat.player.call("step", completion)
            what = f"`{kind}.step` on a completion that is {name}"
            fix = "let `step` charge for it by `completion.termination`, or leave `takes_any_completion` False"
            bench.raised(Rule.ANY_COMPLETION, what, outcome, fix)
            if outcome.returned:
                bench.shapes.result(outcome.value, what)
        await _end(seat, _PLAYED)


async def check_observe(bench: Harness, builder: GuardedCall) -> None:
    """Messages that are put in come out in the observation, or the env says that it takes none."""
    if (seat := await _lone_seat(bench, builder)) is None:
        return
    if await seat.start():
        note = Message("user", "A note from outside the environment.")
        outcome = await seat.player.call("observe", (note,))
        name = f"`{type(seat.player.target).__name__}.observe`"
        bench.raised(Rule.OBSERVE, name, outcome, "let `observe` take any messages, or return None")
        if outcome.returned and outcome.value is not None:
            seen = bench.shapes.observation(outcome.value, name)
            if seen is not None and note not in seen.messages:
                bench.report.add(
                    Rule.OBSERVE,
                    f"{name} returned an observation without the message that was put in",
                    "return an `Observation` with the messages that it was given, or None where that is unsupported",
                )
    await _end(seat, _PLAYED)


async def _lone_seat(bench: Harness, builder: GuardedCall, where: str = "") -> ProbedEnv | None:
    """The seat of an episode that has one: in a game, a seat may have to wait for the others before it can start."""
    envs = await bench.make(builder)
    if len(envs) == 1:
        return ProbedEnv(envs[0], bench, where)
    for env in envs:
        await _end(ProbedEnv(env, bench), _UNSTARTED)
    return None


async def _end(seat: ProbedEnv, when: str) -> None:
    await seat.check_end(when)
    await seat.check_nothing_running(when)


async def check_cleanup(bench: Harness, builders: list[GuardedCall]) -> None:
    """Builders clean up twice."""
    for builder in builders:
        name = f"`{type(builder.target).__name__}.cleanup`"
        first = await builder.call("cleanup")
        bench.raised(Rule.CLEANUP, name, first, "let `cleanup` give back only what there is")
        if first.returned:
            second = await builder.call("cleanup")
            bench.raised(Rule.CLEANUP, f"the second {name}", second, "let `cleanup` do nothing the second time")


def _attribute(builder: Any, name: str) -> Any:
    try:
        return getattr(builder, name, _MISSING)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return _MISSING


def _differs(one: Any, other: Any) -> bool:
    return one is not other and bool(one != other)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_tags(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(_is_name(tag) for tag in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 1
