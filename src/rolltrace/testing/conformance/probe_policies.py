"""The policies of a check, and what an environment or a grader asks of them."""

import asyncio
from collections.abc import Mapping, Sequence

from rolltrace.errors import RolltraceError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.roles import POLICY_ROLE, RoleCaller, Roles
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.violations import Rule, ViolationLog, short_repr
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.rollout import Call

_LOOP_ITERATIONS = 2
"""How long the answer to a question asked in another task takes; only iterations during a method count."""


def roles_of(policies: Mapping[str, Policy] | None) -> Roles:
    """The caller's policies by role, and a scripted one, which answers from the prompt alone, for all other roles."""
    return Roles(NoisyPolicy(correct=1.0), dict(policies or {}))


class StylePolicy:
    """Answers each rollout of a group in the style of its episode, and leaves the other roles to their policy."""

    name = "check"
    version = None
    context_length = None

    def __init__(self, styles: Sequence[ReplyStyle], seats: int, roles: Roles) -> None:
        self._styles = styles
        self._seats = seats
        self._roles = roles

    async def complete(self, request: Request) -> Completion:
        """The reply to this prompt."""
        if request.role != POLICY_ROLE or request.identity is None:
            return await self._roles.policy.complete(request)
        style = self._styles[(request.identity.index or 0) // self._seats]
        return style(request.messages, request.tools, request.step)

    def count_tokens(self, request: Request) -> int:
        """Every prompt counts as one token, so that a context length of 1 has no room for an answer."""
        return 1


class RoleCallProbe:
    """Answers what one env or grader asks of other roles, and reports an answer that comes too late."""

    def __init__(self, roles: Roles, owner: str, report: ViolationLog) -> None:
        self.calls: list[Call] = []
        self.step: int | None = None
        self.over = False
        """Whether the rollout or the grading has ended, so that a later answer is not recorded."""
        self.active = False
        """Whether a method is running, which may be waiting for an answer."""
        self.task: asyncio.Task[None] | None = None
        """The task in which the methods run."""
        self._owner = owner
        self._report = report
        self.asker = RoleCaller(roles, self.calls, current_step=lambda: self.step, acquire_slot=self._enter)

    def report_unusable_answer(self, error: object, calls_before: int, method: str) -> bool:
        """Report an error of ours that was raised after asking another role: its answer could not be used.

        Returns whether it was such an error.
        """
        calls = self.calls[calls_before:]
        if not calls or not isinstance(error, RolltraceError):
            return False
        role = calls[-1].role
        self._report.add(
            Rule.ANSWERS,
            f"`{self._owner}.{method}` could not use what the role {role!r} answered: {short_repr(error)}",
            f"pass `roles={{{role!r}: …}}` to the check, a policy that answers as `{self._owner}` expects",
        )
        return True

    async def _enter(self) -> None:
        """Delay the answer, so that the asking task can be cancelled, and an answer that is not awaited comes late."""
        role = self.calls[-1].role
        await asyncio.sleep(0)
        if asyncio.current_task() is not self.task:
            iterations = 0
            while iterations < _LOOP_ITERATIONS and not self.over:
                await asyncio.sleep(0)
                iterations += self.active
        if self.over:
            self._report.add(
                Rule.ROLES,
                f"`{self._owner}` asked for the role {role!r}, and was over before the answer came",
                "await every `ask` before `step`, `close` or the grade returns: no record holds a later answer",
            )
