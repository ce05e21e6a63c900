"""Plays an environment with a policy and records the run: `play` and `play_async`."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import msgspec

from rolltrace.envs.dataset_sources import describe_data
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks, iterate_groups
from rolltrace.errors import InputError
from rolltrace.jobs.executors import Executor, ExecutorSettings
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import IterationGroups, Plan, PlanFields, all_iterations
from rolltrace.jobs.play_summary import PlaySummary, SummaryCounter
from rolltrace.jobs.resume import Resumption, open_resumption
from rolltrace.jobs.signal_handling import ActivePlay, run_blocking, same_parameters
from rolltrace.jobs.workers.group_worker import WorkerSetup
from rolltrace.jobs.workers.worker_executor import WorkerExecutor
from rolltrace.metrics.live_metrics import log_metrics
from rolltrace.metrics.trackers import Tracker, TrackerSpecs, require_trackers
from rolltrace.policies.policy import Policy
from rolltrace.policies.policy_specs import close_policy
from rolltrace.policies.roles import Roles
from rolltrace.rollout.contract import require_observe
from rolltrace.rollout.episode import close_with_timeout
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger
from rolltrace.store.recording import Level, Recording, describe_recording, resolve_recording
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import Note, to_json_value

log = logging.getLogger(__name__)

OnGroup = Callable[[Any], None]
"""Gets each finished group: a `GroupResult`, or from workers a `GroupReport`."""
_MAX_ARG_BYTES = 4096
"""A longer list or map among the arguments is described in run.json instead of copied."""


def _make_job(
    env: str | Tasks | None = None,
    policy: str | Policy | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | Resumption | None = None,
    force: bool = False,
    roles: Mapping[str, str | Policy] | None = None,
    args: Mapping[str, Any] | None = None,
    trace: Recording | Level | str | None = None,
    on_group: OnGroup | None = None,
    log_to: TrackerSpecs = (),
    workers: int | None = None,
    ray: bool | str | None = None,
    ray_options: Mapping[str, Any] | None = None,
    return_rollouts: bool = False,
    **plan: Unpack[PlanFields],
) -> "PlayJob":
    """Check the arguments, and combine them with those of a run that is resumed."""
    executor = ExecutorSettings(workers, ray, ray_options or {}, return_rollouts)
    trackers = require_trackers(log_to)
    if resume is None:
        if env is None or policy is None or out is None:
            raise InputError("Expected env, policy and out=, or resume= with a run to complete.")
        if force:
            raise InputError("Expected force only with resume=.")
        return PlayJob(env, policy, out, Plan(**plan), roles or {}, args or {}, trace, on_group, trackers, executor)
    fixed = [*(["out"] if out is not None else []), *sorted(plan.keys() - {"concurrency"})]
    if fixed:
        raise InputError(f"Expected no {', '.join(fixed)} with resume=: a run is completed as it was planned.")
    if not isinstance(resume, Resumption):
        resume = open_resumption(resume, force=force)
        for warning in resume.warnings:
            log.warning(warning)
    chosen_policy, chosen_roles = resume.choose_policies(policy, roles)
    return PlayJob(
        resume.choose_env(env),
        chosen_policy,
        resume.path,
        msgspec.structs.replace(resume.plan, **plan),
        chosen_roles,
        resume.choose_args(args),
        resume.choose_recording(trace),
        on_group,
        trackers,
        executor,
        resume,
    )


@same_parameters(_make_job)
def play(*args: Any, **options: Any) -> PlaySummary:
    """Play and record, and return when everything is done; the arguments are those of `play_async`.

    It also works while an event loop is running, such as in a notebook. In the main thread, Ctrl-C and SIGTERM record
    the rollouts in flight as cancelled and close the run. Then Ctrl-C raises `KeyboardInterrupt`, and SIGTERM, if it
    has its default action, `SystemExit(143)`.
    """
    return run_blocking(_make_job(*args, **options).play)


@same_parameters(_make_job)
async def play_async(*args: Any, **options: Any) -> PlaySummary:
    """Play `env`, made with `args`, with `policy`, and record it as a new run at `out`.

    `roles` are the policies of the env's other roles, such as `grader`, `answerer`, `opponent` or `seat1`; the policy
    plays all others. `trace` says how much to record. `on_group` is called with each group as it finishes.
    `log_to` names trackers that get the metrics of each iteration, see `log_metrics`.

    With `workers`, that many processes of this machine play, with the concurrency divided among them. With `ray`, they
    are actors of the Ray cluster at that address (True: the one that Ray finds or starts), by default one for each
    processor, and `ray_options` are options of the actors. Policies, group builders and a redaction function are
    pickled then, and `on_group` gets a `GroupReport`, whose members have ids, rewards and errors. With
    `return_rollouts` they also have the whole `rollout`, as in one process.

    `resume` names an interrupted run to complete, instead of `env` and `out`. Its unfinished groups are played with
    the run's plan; `policy`, `roles` and `concurrency` replace those of the run. If the run may still be running,
    `InputError` is raised unless `force` is set.
    """
    return await _make_job(*args, **options).play(ActivePlay())


class PlayJob(msgspec.Struct, frozen=True):
    """Checked arguments of a play."""

    env: str | Tasks
    policy: str | Policy
    out: str | Path
    plan: Plan
    roles: Mapping[str, str | Policy]
    args: Mapping[str, Any]
    trace: Recording | Level | str | None
    on_group: OnGroup | None
    log_to: Sequence[str | Tracker]
    executor: ExecutorSettings
    resumption: Resumption | None = None

    async def play(self, open_play: ActivePlay) -> PlaySummary:
        """Play and record. `open_play` gets the writer and runner, so that a signal handler can record."""
        tasks = load_env(self.env, self.args) if isinstance(self.env, str) else self.env
        if self.resumption is None:
            iterations = await all_iterations(tasks, self.plan)
        elif not (iterations := await self.resumption.remaining_iterations(tasks)):
            return _empty_summary(self.resumption)
        iterations = await self._check_workers(tasks, iterations)
        policy = open_policy(self.policy)
        roles = {role: open_policy(spec) for role, spec in self.roles.items()}
        await _check_parse_retries(tasks, self.plan)
        async with contextlib.AsyncExitStack() as stack:
            for spec, opened in ((self.policy, policy), *((self.roles[role], roles[role]) for role in roles)):
                if isinstance(spec, str):
                    stack.push_async_callback(close_policy, opened)
            stack.enter_context(self.executor.connected())
            if self.resumption is not None:
                self.resumption.require_only_session()
            with self._open_writer(tasks, policy) as writer, raised_gc_threshold():
                if self.resumption is not None:
                    writer.flush()  # so that a session that joins at the same time sees this one
                    self.resumption.require_only_session(writer.session)
                if self.log_to:
                    log_metrics(writer, self.log_to)
                setup = WorkerSetup(writer, self.policy, self.roles, self.plan, self.executor.return_rollouts)
                async with self.executor.open(setup, Roles(policy, roles)) as executor:
                    summary = await play_into(tasks, self.plan, writer, executor, self.on_group, open_play, iterations)
        return complete_summary(summary, executor, writer)

    async def _check_workers(self, tasks: Tasks, iterations: list[IterationGroups]) -> list[IterationGroups]:
        """Raise `InputError` for what cannot be sent to workers; returns the iterations with the same groups."""
        if not self.executor.uses_workers:
            return iterations
        first, *others = iterations
        builders = iter(first.builders)
        builder = await asyncio.to_thread(next, builders) if tasks.build_in_thread else next(builders)
        policies = {"policy": self.policy, **self.roles}
        self.executor.check(self.plan.concurrency, policies, resolve_recording(self.trace), builder)
        return [first._replace(builders=itertools.chain([builder], builders)), *others]

    def _open_writer(self, tasks: Tasks, policy: Policy) -> RunWriter:
        if self.resumption is not None:
            return create_run(self.out, join=True, continues=self.resumption.sessions, trace=self.trace)
        return create_run(self.out, self._config(tasks, policy), trace=self.trace, planned=self.plan.planned_episodes)

    def _config(self, tasks: Tasks, policy: Policy) -> dict[str, Any]:
        """Everything that is needed to resume the run, or to play it again."""
        specs = {"env": self.env, "policy": self.policy, **self.roles}
        objects = [name for name, value in self.args.items() if _is_object(value)]
        return {
            "env": self.env if isinstance(self.env, str) else tasks.env,
            "args": {name: describe_data(value) if name in objects else value for name, value in self.args.items()},
            "policy": self.policy if isinstance(self.policy, str) else policy.name,
            "roles": {role: spec if isinstance(spec, str) else spec.name for role, spec in self.roles.items()},
            "objects": [
                *(name for name, spec in specs.items() if not isinstance(spec, str)),
                *(f"args.{name}" for name in objects),
            ],
            **msgspec.structs.asdict(self.plan),
            "strategy": msgspec.to_builtins(self.plan.strategy),
            "recording": describe_recording(resolve_recording(self.trace)),
        }


def _is_object(value: Any) -> bool:
    """Whether an argument, such as a dataset, cannot be recorded or is too large, so that it is only described."""
    notes: list[Note] = []
    json_value = to_json_value(value, "", notes)
    return bool(notes) or (not isinstance(json_value, str) and len(msgspec.json.encode(json_value)) > _MAX_ARG_BYTES)


def _empty_summary(resumption: Resumption) -> PlaySummary:
    ledger = Ledger(run=resumption.run, session="", written_at=utc_now(), closed=True)
    return SummaryCounter().summary(resumption.path, resumption.env, resumption.policy, ledger)


async def play_into(
    tasks: Tasks,
    plan: Plan,
    writer: RunWriter,
    executor: Executor,
    on_group: OnGroup | None,
    open_play: ActivePlay,
    iterations: Iterable[IterationGroups],
) -> PlaySummary:
    """Play iterations into an open run. The writer stays open; see `complete_summary`."""
    open_play.writer = writer
    open_play.runners.append(executor)
    counter = SummaryCounter()
    for iteration, builders, finished in iterations:
        source = _build_in_thread(iter(builders)) if tasks.build_in_thread else builders
        results = executor.play(source, iteration=iteration, split=plan.split, finished=finished)
        async with contextlib.aclosing(results):
            async for result in results:
                counter.add(result)
                if on_group is not None:
                    on_group(result)
    return counter.summary(writer.path, tasks.env, executor.roles.policy.name, writer.ledger)


def complete_summary(summary: PlaySummary, executor: Executor, writer: RunWriter) -> PlaySummary:
    """The summary with what is known when workers and writer are closed."""
    workers = executor if isinstance(executor, WorkerExecutor) else None
    return msgspec.structs.replace(
        summary,
        ledger=workers.ledger() if workers else writer.ledger,
        unused_roles=executor.roles.unused,
        roles_played_by_policy=executor.roles.played_by_policy,
        workers_lost=workers.workers_lost if workers else 0,
        groups_replayed=workers.groups_replayed if workers else 0,
    )


async def _check_parse_retries(tasks: Tasks, plan: Plan) -> None:
    """Raise `InputError` for parse retries with an env that has no `observe`, before the run is created.

    This needs an env. If it cannot be made, the failure is recorded later, in the play.
    """
    if not plan.limits.max_parse_retries:
        return
    first = iterate_groups(tasks, iteration=0, groups=1, episodes=plan.group_size, seed=plan.seed)
    try:
        builder = await asyncio.to_thread(next, first)
        envs = list(await builder.make_episode(0))
    except Exception:  # noqa: BLE001 - as above
        return
    try:
        for env in envs:
            require_observe(env, plan.limits)
    finally:
        for owner, close in (*((env, env.close) for env in envs), (builder, builder.cleanup)):
            await close_with_timeout(plan.limits.close_timeout, close, owner)


async def _build_in_thread(builders: Iterator[EnvGroupBuilder]) -> AsyncIterator[EnvGroupBuilder]:
    while (builder := await asyncio.to_thread(next, builders, None)) is not None:
        yield builder
