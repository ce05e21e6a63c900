"""Plays an environment with a policy and records it: one call from two names to a run on disk."""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from rolltrace.arguments import call_with_arguments
from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks, walk
from rolltrace.errors import InputError
from rolltrace.jobs.blocking import OpenPlay, run_blocking
from rolltrace.jobs.collector import rarer_collections
from rolltrace.jobs.replay import replayed_policy
from rolltrace.policies.base import Policy
from rolltrace.policies.load import close_policy, load_policy
from rolltrace.rollout.closing import close_within
from rolltrace.rollout.contract import check_parse_retries
from rolltrace.rollout.group import GroupResult
from rolltrace.rollout.limits import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.rollout.strategies import KeepViable, Strategy
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger
from rolltrace.store.recording import Level, Recording, describe_recording, resolve_recording
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import json_encoder
from rolltrace.trace.message import Sampling
from rolltrace.trace.numbers import wire_number

CONCURRENCY = 64
_MOST_ERRORS = 10
_LONGEST_MESSAGE = 500


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to play, and how; the run's config holds it."""

    groups: int = 1
    """Groups in each iteration."""
    group_size: int = 4
    """Episodes in each group."""
    iterations: int = 1
    seed: int = 0
    concurrency: int = CONCURRENCY
    """Policy requests in flight."""
    limits: Limits = Limits()
    strategy: Strategy = KeepViable()
    retries: int = 0
    """How often an episode is played again after the policy or the environment failed."""
    split: str = "train"
    """The split that the rollouts are recorded under."""
    sampling: Sampling = Sampling()

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "iterations", "concurrency"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of 1 or more, got {getattr(self, name)}.")
        if self.retries < 0:
            raise InputError(f"Expected retries of 0 or more, got {self.retries}.")
        if not self.split:
            raise InputError("Expected the name of a split, such as train or test, got an empty one.")

    def as_config(self) -> dict[str, Any]:
        """The plan as a run's config holds it."""
        return {**msgspec.structs.asdict(self), "strategy": describe_strategy(self.strategy)}


class PlanFields(TypedDict, total=False):
    """The fields of `Plan`, as arguments."""

    groups: int
    group_size: int
    iterations: int
    seed: int
    concurrency: int
    limits: Limits
    strategy: Strategy
    retries: int
    split: str
    sampling: Sampling


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of playing one environment."""

    path: str
    """Where the run is."""
    run: str
    """The run's id."""
    env: str
    policy: str
    groups: int
    """Groups played."""
    groups_without_reward: int
    """Groups of which no member has a reward."""
    rollouts: int
    """Members of the groups; of one that was retried, the last attempt."""
    statuses: dict[str, int]
    stop_reasons: dict[str, int]
    errors: dict[str, int]
    """How often each failure happened, by layer, type and message; the commonest few."""
    mean_reward: float | None
    """Over the rollouts that have a reward."""
    rewarded: int
    """How many rollouts have a reward."""
    seconds: float
    ledger: Ledger
    unasked_roles: list[str] = []
    """Roles that were given a policy, and that nothing in the environment asked: perhaps misspelt."""
    roles_played_by_policy: list[str] = []
    """Other roles that the policy played itself, because nobody was given them."""

    @property
    def succeeded(self) -> bool:
        """Whether every group has a reward, and everything was recorded."""
        return self.groups_without_reward == 0 and self.ledger.complete


OnGroup = Callable[[GroupResult], None]


def play(
    env: str | Tasks,
    policy: str | Policy,
    *,
    out: str | Path,
    roles: Mapping[str, str | Policy] | None = None,
    args: Mapping[str, Any] | None = None,
    trace: Recording | Level | str | None = None,
    on_group: OnGroup | None = None,
    **plan: Unpack[PlanFields],
) -> Summary:
    """Play and record, and return when all is done; the arguments are those of `play_async`.

    It also works where an event loop is running, such as in a notebook. In the main thread, Ctrl-C and SIGTERM record
    what is in flight as cancelled and close the run; then Ctrl-C raises `KeyboardInterrupt`, and SIGTERM, if it has
    its default action, `SystemExit(143)`.
    """
    job = Job(env, policy, out, Plan(**plan), roles or {}, args or {}, trace, on_group)
    return run_blocking(job.play)


async def play_async(
    env: str | Tasks,
    policy: str | Policy,
    *,
    out: str | Path,
    roles: Mapping[str, str | Policy] | None = None,
    args: Mapping[str, Any] | None = None,
    trace: Recording | Level | str | None = None,
    on_group: OnGroup | None = None,
    **plan: Unpack[PlanFields],
) -> Summary:
    """Play `env`, made with `args`, with `policy`, and record it as a new run at `out`.

    `roles` are the policies of the env's other roles, such as `grader`, `answerer`, `opponent` or `seat1`; the policy
    plays each that is not given. `trace` says how much to record. `on_group` is called with each group as it finishes.
    """
    return await Job(env, policy, out, Plan(**plan), roles or {}, args or {}, trace, on_group).play()


class Job(msgspec.Struct, frozen=True):
    """What `play` was asked for."""

    env: str | Tasks
    policy: str | Policy
    out: str | Path
    plan: Plan
    roles: Mapping[str, str | Policy]
    args: Mapping[str, Any]
    trace: Recording | Level | str | None
    on_group: OnGroup | None

    async def play(self, open_play: OpenPlay | None = None) -> Summary:
        """Play and record as a new run; `open_play` learns what is to be recorded if the process has to end."""
        tasks = load_env(self.env, self.args) if isinstance(self.env, str) else self.env
        policy = open_policy(self.policy)
        roles = {role: open_policy(given) for role, given in self.roles.items()}
        await _check_parse_retries(tasks, self.plan)
        async with contextlib.AsyncExitStack() as ours:
            for given, loaded in ((self.policy, policy), *((self.roles[role], one) for role, one in roles.items())):
                if isinstance(given, str):
                    ours.push_async_callback(close_policy, loaded)
            with create_run(self.out, self._config(tasks, policy), trace=self.trace) as writer, rarer_collections():
                if open_play is not None:
                    open_play.write_to(writer)
                summary = await record(tasks, policy, self.plan, writer, self.on_group, roles, open_play)
        return msgspec.structs.replace(summary, ledger=writer.ledger)

    def _config(self, tasks: Tasks, policy: Policy) -> dict[str, Any]:
        return {
            "env": self.env if isinstance(self.env, str) else tasks.env,
            "args": dict(self.args),
            "policy": self.policy if isinstance(self.policy, str) else policy.name,
            "roles": {role: given if isinstance(given, str) else given.name for role, given in self.roles.items()},
            **self.plan.as_config(),
            "recording": describe_recording(resolve_recording(self.trace)),
        }


def as_sampling(settings: Mapping[str, Any]) -> Sampling:
    """Settings, perhaps as text from a command line, as they are recorded."""
    sampling: Sampling = call_with_arguments(Sampling, settings, "sampling")
    for name, least in (("temperature", 0), ("top_p", 0), ("min_p", 0), ("top_k", 0), ("max_tokens", 1)):
        value = getattr(sampling, name)
        if value is not None and not least <= value < math.inf:
            raise InputError(f"Expected {name} of {least} or more in sampling, got {value}.")
    return sampling


def open_policy(policy: str | Policy) -> Policy:
    """The policy that a specification names, also one that is played from a recorded run."""
    return load_policy(policy, {"replay": replayed_policy}) if isinstance(policy, str) else policy


async def record(
    tasks: Tasks,
    policy: Policy,
    plan: Plan,
    writer: RunWriter,
    on_group: OnGroup | None = None,
    roles: Mapping[str, Policy] | None = None,
    open_play: OpenPlay | None = None,
) -> Summary:
    """Play into a run that is open; the writer stays open."""
    runner = Runner(
        policy,
        roles=roles,
        sink=writer,
        limits=plan.limits,
        strategy=plan.strategy,
        retries=plan.retries,
        sampling=plan.sampling,
        concurrency=plan.concurrency,
        seed=plan.seed,
    )
    if open_play is not None:
        open_play.add(runner)
    count = _Count()
    for iteration in range(plan.iterations):
        builders = walk(tasks, iteration=iteration, groups=plan.groups, episodes=plan.group_size, seed=plan.seed)
        drawn = _in_a_thread(builders) if tasks.builds_slowly else builders
        async with contextlib.aclosing(runner.play(drawn, iteration=iteration, split=plan.split)) as results:
            async for result in results:
                count.add(result)
                if on_group is not None:
                    on_group(result)
    summary = count.summary(tasks.env, policy.name, writer)
    return msgspec.structs.replace(
        summary, unasked_roles=runner.roles.unasked, roles_played_by_policy=runner.roles.played_by_policy
    )


async def _check_parse_retries(tasks: Tasks, plan: Plan) -> None:
    """Refuse parse retries for an environment that cannot take a correction, before there is a run.

    Only an env that was made can tell. One that cannot be made fails in the play, where that is recorded.
    """
    if not plan.limits.max_parse_retries:
        return
    first = walk(tasks, iteration=0, groups=1, episodes=plan.group_size, seed=plan.seed)
    try:
        builder = await asyncio.to_thread(next, first)
        envs = list(await builder.make_episode(0))
    except Exception:  # noqa: BLE001 - as above
        return
    try:
        for env in envs:
            check_parse_retries(env, plan.limits)
    finally:
        for owner, close in (*((env, env.close) for env in envs), (builder, builder.cleanup)):
            await close_within(plan.limits.close_timeout, close, owner)


async def _in_a_thread(builders: Iterator[EnvGroupBuilder]) -> AsyncIterator[EnvGroupBuilder]:
    while (builder := await asyncio.to_thread(next, builders, None)) is not None:
        yield builder


def encode_summary(summary: Summary) -> bytes:
    """A summary as one JSON object; a mean that is not finite is spelt out."""
    fields = {name: getattr(summary, name) for name in summary.__struct_fields__}
    fields["mean_reward"] = wire_number(summary.mean_reward)
    return json_encoder.encode(fields)


def describe_strategy(strategy: Strategy) -> dict[str, Any]:
    """A strategy as plain data, with its name."""
    return {"name": type(strategy).__name__, **msgspec.structs.asdict(strategy)}


class _Count:
    """Counts groups as they finish."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._groups = 0
        self._without_reward = 0
        self._rollouts = 0
        self._statuses: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._rewards: list[float] = []

    def add(self, result: GroupResult) -> None:
        rewards = [reward for reward in result.rewards if reward is not None]
        self._groups += 1
        self._without_reward += not rewards
        self._rewards.extend(rewards)
        for member in result.members:
            self._rollouts += 1
            self._statuses[str(member.status)] += 1
            self._stop_reasons[str(member.stop_reason)] += 1
            if (error := member.error or member.grade_failure) is not None:
                self._errors[f"{error.layer} · {error.type}: {error.message[:_LONGEST_MESSAGE]}"] += 1

    def summary(self, env: str, policy: str, writer: RunWriter) -> Summary:
        return Summary(
            path=str(writer.path),
            run=writer.run,
            env=env,
            policy=policy,
            groups=self._groups,
            groups_without_reward=self._without_reward,
            rollouts=self._rollouts,
            statuses=dict(self._statuses),
            stop_reasons=dict(self._stop_reasons),
            errors=dict(self._errors.most_common(_MOST_ERRORS)),
            mean_reward=sum(self._rewards) / len(self._rewards) if self._rewards else None,
            rewarded=len(self._rewards),
            seconds=time.perf_counter() - self._started,
            ledger=writer.ledger,
        )
