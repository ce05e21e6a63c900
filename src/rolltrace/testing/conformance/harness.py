"""Makes the environments of one check, collects its violations, and finds tasks that were left running."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rolltrace.envs.env import Env
from rolltrace.errors import RolltraceError
from rolltrace.policies.roles import Roles
from rolltrace.testing.conformance.guarded_caller import BlockedTimes, CallOutcome, CallTimeouts, GuardedCaller
from rolltrace.testing.conformance.probe_policies import RoleCallProbe
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.return_values import ReturnValueCheck
from rolltrace.testing.conformance.violations import Rule, ViolationLog, short_repr

_LOOP_ITERATIONS = 20
"""How many iterations of the event loop a task that was cancelled, but not awaited, gets to end in."""


class Harness:
    """The settings and results that all rules of one check share."""

    def __init__(self, styles: dict[str, ReplyStyle], roles: Roles, turns: int, seconds: float) -> None:
        self.styles = styles
        self.turns = turns
        self.report = ViolationLog()
        self.blocked_times = BlockedTimes()
        self.roles = roles
        self.seconds = seconds
        self.return_values = ReturnValueCheck(self.report)
        self._timeouts = CallTimeouts(seconds)
        self._callers: list[GuardedCaller] = []
        self._made: list[Env] = []
        """Every env so far. They are kept alive so that `id` stays unique."""

    @property
    def takes_any_completion(self) -> bool:
        """Whether all environments so far take truncated and malformed completions."""
        return bool(self._made) and all(env.takes_any_completion is True for env in self._made)

    def guard(self, target: Any, *, asks: bool = False) -> GuardedCaller:
        """A caller for the methods of `target`; `asks` lets it ask other roles, as envs and graders may."""
        role_calls = RoleCallProbe(self.roles, type(target).__name__, self.report) if asks else None
        caller = GuardedCaller(target, self.report, self._timeouts, role_calls)
        self._callers.append(caller)
        return caller

    async def make_envs(self, builder: GuardedCaller, number: int = 0) -> list[Env]:
        """The environments of an episode; an empty list if they are not what the builder promises."""
        outcome = await builder.call("make_episode", number)
        name = f"`{type(builder.target).__name__}.make_episode({number})`"
        if not outcome.returned:
            self.report_raised(
                Rule.MAKES_ENVS, name, outcome, "let `make_episode` make its environments without raising"
            )
            return []
        self.blocked_times.add(name, "make_episode", outcome.blocked_seconds)
        envs = outcome.value
        if not isinstance(envs, Sequence) or not all(isinstance(env, Env) for env in envs):
            self.report.add(
                Rule.MAKES_ENVS,
                f"{name} gave {short_repr(envs)}",
                "return a list of `Env` instances from `make_episode`, also where there is one seat",
            )
            return []
        return self._only_fresh(list(envs), builder, name)

    def report_raised(self, rule: Rule, name: str, outcome: CallOutcome, fix: str) -> None:
        """Report a call that raised. A call that hung was reported by its caller."""
        if outcome.error is not None:
            self.report.add(rule, f"{name} raised {short_repr(outcome.error)}", fix)
        elif outcome.cancelled:
            self.report.add(rule, f"{name} raised CancelledError though nobody cancelled it", fix)

    def running(self) -> set[asyncio.Task[Any]]:
        """The running tasks, except the harness's own."""
        return asyncio.all_tasks() - {caller.task for caller in self._callers}

    async def check_leftover_tasks(self, before: set[asyncio.Task[Any]], when: str, fix: str) -> None:
        """Report tasks that were started since `before`, and cancel them."""
        left: set[asyncio.Task[Any]] = set()
        for _ in range(_LOOP_ITERATIONS):
            if not (left := self.running() - before):
                return
            await asyncio.sleep(0)
        names = sorted(getattr(task.get_coro(), "__qualname__", task.get_name()) for task in left)
        self.report.add(Rule.NOTHING_RUNNING, f"{when} {len(left)} task(s) were still running: {', '.join(names)}", fix)
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)

    async def clear(self) -> None:
        """Stop the harness's own tasks."""
        for caller in self._callers:
            await caller.stop()

    def _only_fresh(self, envs: list[Env], builder: GuardedCaller, name: str) -> list[Env]:
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
    """Report a misused `step` that returned, or that raised an error which does not say what is wrong."""
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
