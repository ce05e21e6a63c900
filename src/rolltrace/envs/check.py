"""`check_env`: whether an environment that somebody wrote keeps the contract."""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.conformance import rules
from rolltrace.envs.conformance.answers import Answers, styles_of
from rolltrace.envs.conformance.bench import Bench
from rolltrace.envs.conformance.episode import check_cancellation, check_plays
from rolltrace.envs.conformance.grades import check_grade_group
from rolltrace.envs.conformance.report import Rule, Violation, quote
from rolltrace.errors import InputError

__all__ = ["Rule", "Violation", "check_env", "check_env_async"]


def check_env(
    builder: EnvGroupBuilder, *, answers: Answers | None = None, turns: int = 8, seconds: float = 30.0
) -> list[Violation]:
    """Play a builder's environments in all the ways a runner may, and list the rules that they break.

    `answers` says what to answer: texts, messages or completions, cycled over the turns, or a function of the prompt's
    messages and tools. By default there are several styles, among them calls of the tools that are offered. `turns`
    bounds a play, and `seconds` any one await.

    It blocks until it is done, also where an event loop is running: it always uses a loop of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(builder, answers, turns, seconds)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_run, builder, answers, turns, seconds).result()


async def check_env_async(
    builder: EnvGroupBuilder, *, answers: Answers | None = None, turns: int = 8, seconds: float = 30.0
) -> list[Violation]:
    """`check_env` in the running loop; every task that appears in it meanwhile is taken for the environment's."""
    if turns < 1 or seconds <= 0:
        raise InputError(f"Expected at least one turn and some seconds, got turns={turns} and seconds={seconds}.")
    bench = Bench(styles_of(answers), turns, seconds)
    if not rules.is_builder(bench, builder):
        return bench.report.violations
    before = bench.running()
    try:
        await _check(bench, builder)
        fix = "cancel and await in `cleanup` every task that `make_episode` started"
        await bench.check_left_running(before, "after `cleanup`", fix)
    finally:
        await bench.clear()
    return bench.report.violations


def _run(builder: EnvGroupBuilder, answers: Answers | None, turns: int, seconds: float) -> list[Violation]:
    # Not `asyncio.run`: that waits for all tasks to end, and a task that refuses to must not hang the check.
    loop = asyncio.new_event_loop()
    try:
        found = loop.run_until_complete(check_env_async(builder, answers=answers, turns=turns, seconds=seconds))
        loop.run_until_complete(loop.shutdown_asyncgens())
        return found
    finally:
        loop.close()


async def _check(bench: Bench, builder: EnvGroupBuilder) -> None:
    """All rules, each guarded, so that none hides the others."""
    rules.check_builder(bench, builder)
    rules.check_grader(bench, builder)
    copy = rules.check_pickles(bench, builder)
    original = bench.player(builder)
    unpickled = None if copy is None else bench.player(copy)
    await _guarded(bench, Rule.PLAYS, check_plays(bench, original, unpickled))
    await _guarded(bench, Rule.STEP_BEFORE_START, rules.check_unstarted(bench, original))
    await _guarded(bench, Rule.ANY_COMPLETION, rules.check_any_completion(bench, original))
    await _guarded(bench, Rule.OBSERVE, rules.check_observe(bench, original))
    await _guarded(bench, Rule.CANCELLATION, check_cancellation(bench, original))
    await _guarded(bench, Rule.GRADE_GROUP, check_grade_group(bench, original))
    players = [player for player in (original, unpickled) if player is not None]
    await _guarded(bench, Rule.CLEANUP, rules.check_cleanup(bench, players))


async def _guarded(bench: Bench, rule: Rule, checking: Awaitable[Any]) -> None:
    try:
        await checking
    except Exception as error:  # noqa: BLE001 - values under test may raise anything when looked at
        bench.report.add(
            rule,
            f"the rule could not be checked: {quote(error)} came out of a value that was returned",
            "return plain values that can be read, compared and printed",
        )
