"""What all rules of one check share: its settings, its violations, and the tasks and blocked times that it watches."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rolltrace.envs.env import Env
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.policies.roles import Roles
from rolltrace.testing.conformance.reply_styles import Replies, styles_of, unusual_styles
from rolltrace.testing.conformance.return_values import ReturnValueCheck
from rolltrace.testing.conformance.violations import Rule, Violation
from rolltrace.testing.noisy import NoisyPolicy

_LOOP_ITERATIONS = 20
"""How many iterations of the event loop a task that was cancelled, but not awaited, gets to end in."""
_MAX_BLOCKED_SECONDS = 0.5
"""For how long a method may block the event loop."""
_MIN_CALLS = 3
"""A method is reported if so many calls were all too long: a single one may be, on a busy machine or at an import."""


class Harness:
    """The settings and results of one check."""

    def __init__(
        self, answers: Replies | None, policies: Mapping[str, Policy] | None, turns: int, seconds: float
    ) -> None:
        if turns < 1 or seconds <= 0:
            raise InputError(f"Expected at least one turn and some seconds, got turns={turns} and seconds={seconds}.")
        self.styles = styles_of(answers)
        self.all_styles = {**self.styles, **unusual_styles()}
        self.roles = Roles(NoisyPolicy(correct=1.0), dict(policies or {}))
        """The caller's policies by role, and a scripted one, which answers from the prompt alone, for other roles."""
        self.turns = turns
        self.seconds = seconds
        self._violations: dict[tuple[str, str], Violation] = {}
        """By rule and fix."""
        self.return_values = ReturnValueCheck(self.report)
        self.made: list[Env] = []
        """Every env so far. They are kept alive so that `id` stays unique."""
        self._blocked_seconds: dict[tuple[str, str], list[float]] = defaultdict(list)

    @property
    def takes_any_completion(self) -> bool:
        """Whether all environments so far take truncated and malformed completions."""
        return bool(self.made) and all(env.takes_any_completion is True for env in self.made)

    @property
    def violations(self) -> list[Violation]:
        """All violations, in the order in which they were reported."""
        return list(self._violations.values())

    def report(self, rule: Rule, message: str, fix: str) -> None:
        """Report a violation, unless one with the same rule and fix was reported before."""
        self._violations.setdefault((rule, fix), Violation(rule.value, message, fix))

    def has(self, rule: Rule) -> bool:
        """Whether a violation of this rule was reported."""
        return any(violation.rule == rule for violation in self.violations)

    def add_blocked_time(self, name: str, method: str, seconds: float) -> None:
        """Add for how long a call blocked the event loop; calls with the same name do the same work."""
        self._blocked_seconds[name, method].append(seconds)

    def report_blocking(self) -> None:
        """Report the methods that always block the event loop for too long."""
        for (name, method), seconds in self._blocked_seconds.items():
            if len(seconds) >= _MIN_CALLS and min(seconds) > _MAX_BLOCKED_SECONDS:
                self.report(
                    Rule.BLOCKING,
                    f"{name} blocked the event loop for {min(seconds):.1f} s or more in each of {len(seconds)} calls",
                    f"await in `{method}` everything that waits (`asyncio.sleep`, an async client), and run long "
                    "computations and blocking calls with `asyncio.to_thread`",
                )

    async def check_leftover_tasks(self, before: set[asyncio.Task[Any]], when: str, fix: str) -> None:
        """Report tasks that are not among those `before`, and cancel them."""
        left: set[asyncio.Task[Any]] = set()
        for _ in range(_LOOP_ITERATIONS):
            if not (left := asyncio.all_tasks() - before):
                return
            await asyncio.sleep(0)
        names = sorted(getattr(task.get_coro(), "__qualname__", task.get_name()) for task in left)
        self.report(Rule.NOTHING_RUNNING, f"{when} {len(left)} task(s) were still running: {', '.join(names)}", fix)
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)
