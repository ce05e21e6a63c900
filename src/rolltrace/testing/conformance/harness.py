"""The bench on which environments are checked: makes them, and sees what they leave running."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rolltrace.envs.env import Env
from rolltrace.errors import RolltraceError
from rolltrace.policies.roles import Roles
from rolltrace.testing.conformance.guarded_call import BlockedTimes, CallOutcome, CallTimeouts, GuardedCall
from rolltrace.testing.conformance.probe_policies import Part
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.return_values import ReturnValueCheck
from rolltrace.testing.conformance.violations import Rule, ViolationLog, short_repr

_TURNS_OF_THE_LOOP = 20
"""How many a task that was cancelled, but not awaited, gets to end in."""


class Harness:
    """What all rules of one check share."""

    def __init__(self, styles: dict[str, ReplyStyle], roles: Roles, turns: int, seconds: float) -> None:
        self.styles = styles
        self.turns = turns
        self.report = ViolationLog()
        self.stalls = BlockedTimes()
        self.roles = roles
        self.seconds = seconds
        self.shapes = ReturnValueCheck(self.report)
        self._patience = CallTimeouts(seconds)
        self._players: list[GuardedCall] = []
        self._made: list[Env] = []
        """Every env so far; held, so that no later one can have the same identity."""

    @property
    def takes_any_completion(self) -> bool:
        """Whether all environments so far take cut and malformed completions."""
        return bool(self._made) and all(env.takes_any_completion is True for env in self._made)

    def player(self, target: Any, *, asks: bool = False) -> GuardedCall:
        """Someone to make the calls of `target`; envs and graders may ask others meanwhile."""
        part = Part(self.roles, type(target).__name__, self.report) if asks else None
        player = GuardedCall(target, self.report, self._patience, part)
        self._players.append(player)
        return player

    async def make(self, builder: GuardedCall, number: int = 0) -> list[Env]:
        """The fresh environments of an episode; none where they are not what the builder promises."""
        outcome = await builder.call("make_episode", number)
        name = f"`{type(builder.target).__name__}.make_episode({number})`"
        if not outcome.returned:
            self.raised(Rule.MAKES_ENVS, name, outcome, "let `make_episode` make its environments without raising")
            return []
        self.stalls.note(name, "make_episode", outcome.blocked_seconds)
        envs = outcome.value
        if not isinstance(envs, Sequence) or not all(isinstance(env, Env) for env in envs):
            self.report.add(
                Rule.MAKES_ENVS,
                f"{name} gave {short_repr(envs)}",
                "return a list of `Env` instances from `make_episode`, also where there is one seat",
            )
            return []
        return self._fresh(list(envs), builder, name)

    def raised(self, rule: Rule, name: str, outcome: CallOutcome, fix: str) -> None:
        """Report a call that raised; one that hung was reported when it did."""
        if outcome.error is not None:
            self.report.add(rule, f"{name} raised {short_repr(outcome.error)}", fix)
        elif outcome.cancelled:
            self.report.add(rule, f"{name} raised CancelledError though nobody cancelled it", fix)

    def running(self) -> set[asyncio.Task[Any]]:
        """The tasks that run now and are not the bench's own."""
        return asyncio.all_tasks() - {player.task for player in self._players}

    async def check_left_running(self, before: set[asyncio.Task[Any]], when: str, fix: str) -> None:
        """Report tasks that were not there before, and end them."""
        left: set[asyncio.Task[Any]] = set()
        for _ in range(_TURNS_OF_THE_LOOP):
            if not (left := self.running() - before):
                return
            await asyncio.sleep(0)
        names = sorted(getattr(task.get_coro(), "__qualname__", task.get_name()) for task in left)
        self.report.add(Rule.NOTHING_RUNNING, f"{when} {len(left)} task(s) were still running: {', '.join(names)}", fix)
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)

    async def clear(self) -> None:
        """End whatever the bench itself still has running."""
        for player in self._players:
            await player.stop()

    def _fresh(self, envs: list[Env], builder: GuardedCall, name: str) -> list[Env]:
        seats = getattr(builder.target, "seats", 1)
        if len(envs) != seats:
            self.report.add(
                Rule.MAKES_ENVS,
                f"{name} gave {len(envs)} env(s) for {short_repr(seats)} seat(s)",
                "return exactly one `Env` per seat from `make_episode`, and set `seats` to how many players there are",
            )
        known = {id(env) for env in self._made}
        fresh = []
        for env in envs:
            if id(env) in known:
                self.report.add(
                    Rule.MAKES_ENVS,
                    f"{name} gave the same {type(env).__name__} object more than once",
                    "make new environments at each call of `make_episode`: an instance plays one rollout, once",
                )
                continue
            known.add(id(env))
            self._made.append(env)
            fresh.append(env)
        return fresh if len(fresh) == len(envs) else []


_CLEAR = (RolltraceError, RuntimeError, ValueError)
_UNCLEAR = (NotImplementedError, RecursionError)
_WHEN = {
    Rule.STEP_BEFORE_START: ("before `initial_observation`", "the environment has not been started"),
    Rule.STEP_AFTER_DONE: ("after `done`", "the environment is already done"),
}


def check_misuse(report: ViolationLog, rule: Rule, env: Any, outcome: CallOutcome) -> None:
    """Report a misused `step` that answered, or that failed by accident."""
    error = outcome.error
    if outcome.hung:
        return
    if isinstance(error, _CLEAR) and not isinstance(error, _UNCLEAR) and str(error).strip():
        return
    when, reason = _WHEN[rule]
    what = f"answered {short_repr(outcome.value)}" if outcome.returned else f"raised {short_repr(error)}"
    report.add(
        rule,
        f"`{type(env).__name__}.step` {when} {what}",
        "call `require_active()` of a `SingleUse` at the start of `step`, or raise an `EnvError` there, saying that "
        f"{reason}",
    )
