"""Who answers when an environment or a grader asks others during a check."""

import asyncio
from collections.abc import Mapping, Sequence

from rolltrace.errors import RolltraceError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.role_calls import RoleCaller
from rolltrace.policies.roles import POLICY_ROLE, Roles
from rolltrace.testing.conformance.reply_styles import ReplyStyle
from rolltrace.testing.conformance.violations import Rule, ViolationLog, short_repr
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.rollout import Call

_TURNS_OF_THE_LOOP = 2
"""How long an answer takes to a question that is asked in a task of its own; while no method runs, it does not come."""


def roles_of(given: Mapping[str, Policy] | None) -> Roles:
    """The caller's policies in their roles; a scripted one, which answers from the prompt alone, in all others."""
    return Roles(NoisyPolicy(correct=1.0), dict(given or {}))


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
        style = self._styles[request.identity.index // self._seats]
        return style(request.messages, request.tools, request.step)

    def count_tokens(self, request: Request) -> int:
        """Every prompt counts as one token, so that a context length of 1 has no room for an answer."""
        return 1


class Part:
    """What one env or grader asks of others, from its start to its end."""

    def __init__(self, roles: Roles, owner: str, report: ViolationLog) -> None:
        self.calls: list[Call] = []
        self.step: int | None = None
        self.over = False
        """Whether the record that the calls belong to would have been written by now."""
        self.active = False
        """Whether a method is under way, which may be waiting for an answer."""
        self.task: asyncio.Task[None] | None = None
        """The task in which the methods run."""
        self._owner = owner
        self._report = report
        self.asker = RoleCaller(roles, self.calls, step=lambda: self.step, enter=self._enter)

    def blames_answers(self, error: object, asked_before: int, method: str) -> bool:
        """Report a failure that says only that what others answered is of no use; whether it was one."""
        asked = self.calls[asked_before:]
        if not asked or not isinstance(error, RolltraceError):
            return False
        role = asked[-1].role
        self._report.add(
            Rule.ANSWERS,
            f"`{self._owner}.{method}` could not use what the role {role!r} answered: {short_repr(error)}",
            f"pass `roles={{{role!r}: …}}` to the check, a policy that answers as `{self._owner}` expects",
        )
        return True

    async def _enter(self) -> None:
        """Let an answer take time, so that whoever asks can be cancelled meanwhile, and forgotten answers come late."""
        role = self.calls[-1].role
        await asyncio.sleep(0)
        if asyncio.current_task() is not self.task:
            waited = 0
            while waited < _TURNS_OF_THE_LOOP and not self.over:
                await asyncio.sleep(0)
                waited += self.active
        if self.over:
            self._report.add(
                Rule.ROLES,
                f"`{self._owner}` asked for the role {role!r}, and was over before the answer came",
                "await every `ask` before `step`, `close` or the grade returns: no record holds a later answer",
            )
