"""`check_env`: whether an environment keeps the contract."""

import asyncio
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import make_builder
from rolltrace.envs.user_envs import as_tasks
from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.leftover_processes import check_leftovers
from rolltrace.testing.conformance.play_rules import (
    check_any_completion,
    check_cancellation,
    check_copy,
    check_grade_group,
    check_observe,
    check_plays,
    check_unstarted,
)
from rolltrace.testing.conformance.reply_styles import Replies
from rolltrace.testing.conformance.static_rules import check_graders, check_pickles, is_builder, validate_builder
from rolltrace.testing.conformance.violations import Rule, Violation

__all__ = ["Rule", "Violation", "check_env", "check_env_async"]


_EPISODES = 3
"""The episodes of a builder that `check_env` makes: if one fails, two are left to compare."""


def check_env(
    env: Any,
    *,
    args: Mapping[str, Any] | None = None,
    task: int = 0,
    seed: int = 0,
    answers: Replies | None = None,
    roles: Mapping[str, Policy] | None = None,
    turns: int = 8,
    seconds: float = 30.0,
) -> list[Violation]:
    """Play an environment in all the ways a runner may, and list the rules that it breaks.

    `env` is what `rolltrace run` accepts, a name or `package.module:name`, or the object that such a name stands for:
    an `Env` or `MessageEnv` class, an `EnvGroupBuilder` or `Tasks` (class or instance), or a function that returns one.
    `args` are the arguments it is made with. Of several tasks, number `task` is played, made with `seed`.

    `answers` says what to answer: texts, messages or completions, cycled over the turns, or a function of the prompt's
    messages and tools. By default there are several styles, among them calls of the tools that are offered. `roles` are
    policies for the roles that the environment or its graders ask; by default a scripted one answers from the prompt.
    `turns` bounds a play, and `seconds` any one call.

    It blocks until it is done, also where an event loop is running: it always uses a loop of its own.
    """
    harness = Harness(answers, roles, turns, seconds)
    builder = _builder_of(env, args or {}, task, seed)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(harness, builder)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_run, harness, builder).result()


async def check_env_async(
    env: Any,
    *,
    args: Mapping[str, Any] | None = None,
    task: int = 0,
    seed: int = 0,
    answers: Replies | None = None,
    roles: Mapping[str, Policy] | None = None,
    turns: int = 8,
    seconds: float = 30.0,
) -> list[Violation]:
    """`check_env` in the running loop. It takes every task that starts meanwhile for the environment's."""
    harness = Harness(answers, roles, turns, seconds)
    return await _check(harness, _builder_of(env, args or {}, task, seed))


def _builder_of(env: Any, args: Mapping[str, Any], task: int, seed: int) -> EnvGroupBuilder:
    """The builder to check: `env` itself, or one made as `rolltrace run` makes it."""
    if isinstance(env, EnvGroupBuilder) and not args:
        return env
    if isinstance(env, str):
        tasks = load_env(env, args)
    else:
        tasks = as_tasks(env, getattr(env, "__qualname__", type(env).__qualname__), args)
    if task < 0 or (tasks.count is not None and task >= tasks.count):
        count = "0 or more" if tasks.count is None else f"from 0 to {tasks.count - 1}"
        raise InputError(f"Expected the number of a task of {tasks.env}, {count}, got {task}.")
    return make_builder(tasks, task, episodes=_EPISODES, seed=seed)


def _run(harness: Harness, builder: EnvGroupBuilder) -> list[Violation]:
    """Check in a loop of its own."""
    # Not `asyncio.run`: that waits for all tasks to end, and a task that refuses to must not hang the check.
    loop = asyncio.new_event_loop()
    try:
        violations = loop.run_until_complete(_check(harness, builder))
        loop.run_until_complete(loop.shutdown_asyncgens())
        return violations
    finally:
        loop.close()


async def _check(harness: Harness, builder: EnvGroupBuilder) -> list[Violation]:
    """Check in the running loop."""
    if is_builder(harness, builder):
        before = asyncio.all_tasks()
        await _check_rules(harness, builder)
        if not harness.has(Rule.NOTHING_RUNNING):
            fix = "cancel and await in `cleanup` every task that `make_episode` started"
            await harness.check_leftover_tasks(before, "after `cleanup`", fix)
        harness.report_blocking()
    return harness.violations


async def _check_rules(harness: Harness, builder: EnvGroupBuilder) -> None:
    """All rules, in an order in which the builder is cleaned up last."""
    validate_builder(harness, builder)
    check_graders(harness, builder)
    pickled = check_pickles(harness, builder)
    first = await check_plays(harness, builder)
    if pickled is not None and first:
        await check_copy(harness, pickle.loads(pickled), first)  # noqa: S301 - the caller's own
    await check_any_completion(harness, builder)
    await check_observe(harness, builder)
    await check_cancellation(harness, builder)
    await check_grade_group(harness, builder)
    if pickled is not None:
        await check_leftovers(harness, pickled)
    await check_unstarted(harness, builder)
