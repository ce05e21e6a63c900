"""Plays wrapped builders with the real runner, and with policies that answer in the styles of the check."""

from collections.abc import Mapping

import msgspec

from rolltrace.errors import ContextOverflowError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.roles import Roles
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.probed_builder import ProbedBuilder
from rolltrace.testing.conformance.probed_env import ProbedEnv
from rolltrace.testing.conformance.user_object import current_caller
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.stop_reasons import Layer


def roles_of(policies: Mapping[str, Policy] | None) -> Roles:
    """The caller's policies by role, and a scripted one, which answers from the prompt alone, for all other roles."""
    return Roles(NoisyPolicy(correct=1.0), dict(policies or {}))


async def play(
    harness: Harness, builder: ProbedBuilder, *, turns: int | None = None, hooks: Hooks | None = None
) -> list[ProbedEnv]:
    """Play a group, and return its envs, in the order of their rollouts."""
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
    probes = [builder.probes[index] for index in sorted(builder.probes)]
    when = probes[0].when if probes else "after a play"
    fix = "cancel and await, in `finally` or in `close`, every task that the environment started"
    await harness.check_leftover_tasks(builder.known_tasks, f"after `close` {when}", fix)
    return probes


def _report_unexplained(harness: Harness, builder: ProbedBuilder, result: GroupResult) -> None:
    """Report a failure that the runner recorded, where no rule has explained it."""
    for member in result.members:
        error = member.error
        if error is None or error.layer is Layer.HOOK or member.index not in builder.probes:
            continue
        if not harness.report.violations:
            harness.report.add(
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
            self._harness.report.add(
                Rule.ANSWERS,
                f"no answer could be made for {env.describe(f'turn {request.step}')}: {short_repr(error)}",
                "pass `answers` that answer every prompt of this environment, with tools whose parameters are a schema",
            )
            raise

    def count_tokens(self, request: Request) -> int:
        """Not used: there is no limit of tokens."""
        return 1
