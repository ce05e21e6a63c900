"""Replays a run: feeds its recorded responses to fresh envs, and compares what they give with the record."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.jobs.plan import groups_of_iteration
from rolltrace.jobs.play_config import PlayConfig, read_play_config
from rolltrace.jobs.replay_compare import TOLERANCE, Comparison, ReplayDifference, check_also
from rolltrace.jobs.replay_group import ComparedRollout, CompareSettings, ReplayedGroup
from rolltrace.jobs.replay_report import ReplayCounter, ReplayReport
from rolltrace.jobs.signal_handling import ActivePlay, run_blocking
from rolltrace.query.run import Run, open_single_run
from rolltrace.query.table_schema import sql_literal
from rolltrace.rollout.runner import GroupNames
from rolltrace.store.create import code_revision
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey
from rolltrace.trace.text_transform import Redact, RedactText

MOST = 5
"""How many differing rollouts a report has by default."""
SELECTION_ORDER = 'iteration, split, env, "group", "index", attempt'
"""The order in which a limit counts rollouts."""
_BATCH_ROLLOUTS = 256
"""How many rollouts are read and played together."""
_OTHER_PROGRAM = "recorded by another program than `rolltrace run`"
_DUPLICATE = "another session recorded the same rollout"

OnProgress = Callable[[int, int], None]
"""Called with the number of rollouts done and selected."""


def replay_run(
    path: str | Path,
    *,
    env: str | Tasks | None = None,
    args: Mapping[str, Any] | None = None,
    where: str | None = None,
    limit: int | None = None,
    also: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    most: int = MOST,
    recorded_tools: bool = False,
    redact: Redact | None = None,
    on_progress: OnProgress | None = None,
) -> ReplayReport:
    """Play the groups of a run again with its recorded responses, and compare each step with the record.

    Nothing is written. Envs, tools and graders run again; calls to the policies of other roles get their recorded
    answers. Prompts, tools, rewards, reward data and stop reasons are compared, and the fields named in `also`:
    `env_state`, `extra`, `metrics`, `logs`, `task_data`. Numbers are equal if they differ by at most `tolerance`.

    `env` and `args` replace the run's own: the environment by its name or as `package.module:name` or Python object,
    and arguments by name. `where` is an SQL expression over the table `rollouts` and selects rollouts, and `limit` is
    the largest number of them. The report has the first `most` rollouts that differ. With `recorded_tools`, the tools
    of a `ToolEnv` do not run: their recorded results are used. `redact` is the function that the run was recorded
    with, if it was recorded with one.
    """
    also = check_also(also)
    if not 0 <= tolerance < math.inf:
        raise InputError(f"Expected a tolerance of 0 or more that is finite, got {tolerance}.")
    with open_single_run(path) as run:
        job = _ReplayJob(run, _read_config(run, redact), where, limit, ReplayCounter(most), on_progress)
        tasks = job.load_tasks(env, args or {})
        started = time.perf_counter()
        compare = CompareSettings(
            also=also,
            tolerance=tolerance,
            has_calls=job.config.recording.calls is not False,
            redaction=None if redact is None else RedactText(redact),
            recorded_tools=recorded_tools,
        )

        async def play(_: ActivePlay) -> None:
            with raised_gc_threshold():
                await job.replay(tasks, compare)

        run_blocking(play)
        return ReplayReport(
            path=str(run.path),
            run=run.info.id,
            recorded_revision=run.info.code_revision,
            revision=code_revision(),
            seconds=time.perf_counter() - started,
            envs=job.counter.envs(),
            differing=job.counter.differing,
            read_errors=tuple(map(str, run.problems)),
        )


def _read_config(run: Run, redact: Redact | None) -> PlayConfig:
    config = read_play_config(run.info, run.path, "replayed")
    if config.redact is not None and redact is None:
        raise InputError(
            f"{run.path} was recorded with the redaction function {config.redact}: pass it again, "
            f"with rolltrace.replay_run({str(run.path)!r}, redact=…)."
        )
    return config


class _SelectedGroup(NamedTuple):
    """A recorded group, and which of its rollouts are compared."""

    key: GroupKey
    ids: set[str]


class _ReplayJob(msgspec.Struct):
    """The replay of one run: selects groups, reads and plays some of them at a time, and counts."""

    run: Run
    config: PlayConfig
    where: str | None
    limit: int | None
    counter: ReplayCounter
    on_progress: OnProgress | None

    def load_tasks(self, env: str | Tasks | None, args: Mapping[str, Any]) -> Tasks:
        """The run's environment, or the one that replaces it."""
        config, path = self.config, self.run.path
        if isinstance(env, Tasks):
            return env
        if env is None and "env" in config.objects:
            raise InputError(
                f"The environment {config.env} of {path} was a Python object: name it with --env package.module:name, "
                f"or pass it with rolltrace.replay_run({str(path)!r}, env=…)."
            )
        if missing := sorted((config.secret_args | config.object_args) - args.keys()):
            raise InputError(
                f"The arguments {', '.join(missing)} of {path} are not recorded, because they are secrets or Python "
                f"objects: pass them again, with --arg {missing[0]}=VALUE or args={{{missing[0]!r}: …}}."
            )
        return load_env(env or config.env, {**config.args, **args}, name=config.env)

    async def replay(self, tasks: Tasks, settings: CompareSettings) -> None:
        """Replay all selected rollouts."""
        self.run.refresh()
        self.run.hold()
        if next(self.run.rollouts(where=self.where, limit=1), None) is None:  # also raises for a wrong condition
            hint = "the run is empty" if self.where is None else f"none fits {self.where}"
            raise InputError(f"Expected rollouts to replay in {self.run.path}, got none: {hint}.")
        iterations = self._count_iterations()
        total = sum(iterations.values())
        for iteration in iterations:
            async for batch in self._batches(tasks, self._select(iteration)):
                await self._replay_batch(batch, settings)
                if self.on_progress is not None:
                    self.on_progress(self.counter.done, total)

    # What is replayed

    def _count_iterations(self) -> dict[int, int]:
        """The number of selected rollouts of each iteration."""
        counts: dict[int, int] = {}
        left = self.limit
        for iteration, count in self.run.sql(
            f"select iteration, count(*) from rollouts {where_clause(self.where)} group by 1 order by 1"  # noqa: S608 - it can only read
        ):
            counts[iteration] = count if left is None else min(count, left)
            if left is not None and not (left := left - counts[iteration]):
                break
        return counts

    def _select(self, iteration: int) -> dict[tuple[str, str], _SelectedGroup]:
        """The selected groups of an iteration, by env and name; rollouts of other programs are counted here."""
        left = None if self.limit is None else self.limit - self.counter.done
        condition = where_clause(self.where, f"iteration = {iteration:d}")
        sql = f'select split, env, "group", id, "index" from rollouts {condition} order by {SELECTION_ORDER}'  # noqa: S608 - as above
        sql += "" if left is None else f" limit {left:d}"
        groups: dict[tuple[str, str], _SelectedGroup] = {}
        for split, env, group, rollout, index in self.run.sql(sql):
            if split != self.config.plan.split or index is None:
                self.counter.add_not_replayed(env, _OTHER_PROGRAM)
                continue
            key = GroupKey(split, iteration, env, group)
            groups.setdefault((env, group), _SelectedGroup(key, set())).ids.add(rollout)
        return groups

    async def _batches(
        self, tasks: Tasks, selected: dict[tuple[str, str], _SelectedGroup]
    ) -> AsyncIterator[list[tuple[EnvGroupBuilder, _SelectedGroup]]]:
        """The selected groups with their builders, some at a time, as the environment draws them."""
        if not selected:
            return
        iteration = next(iter(selected.values())).key.iteration
        builders = iter(groups_of_iteration(tasks, self.config.plan, iteration).builders)
        names = GroupNames()
        batch: list[tuple[EnvGroupBuilder, _SelectedGroup]] = []
        envs = {tasks.env, self.config.env}
        while selected:
            builder = await asyncio.to_thread(next, builders, None) if tasks.build_in_thread else next(builders, None)
            if builder is None:
                break
            name = names.name(builder.task)
            envs.add(builder.env)
            group = selected.pop((builder.env, name), None) or selected.pop((self.config.env, name), None)
            if group is None:
                continue
            batch.append((builder, group))
            if sum(builder.episodes * builder.seats for builder, _ in batch) >= _BATCH_ROLLOUTS:
                yield batch
                batch = []
        if batch:
            yield batch
        self._count_not_drawn(selected.values(), envs)

    def _count_not_drawn(self, groups: Iterable[_SelectedGroup], envs: set[str]) -> None:
        """Count the groups that the environment does not draw: its tasks have changed, or another program played."""
        for group in groups:
            if group.key.env not in envs:
                self.counter.add_not_replayed(group.key.env, _OTHER_PROGRAM, len(group.ids))
                continue
            gone = ReplayDifference(None, "group", group.key.group, None)
            for rollout in self._read([group]):
                if rollout.id in group.ids:
                    self.counter.add(rollout, Comparison([gone], None), 0)

    def _read(self, groups: Sequence[_SelectedGroup]) -> Iterator[Rollout]:
        """All rollouts of these groups, which are of one iteration."""
        return self.run.rollouts(where=_members_of(groups), order_by='"index", attempt, session')

    # Playing

    async def _replay_batch(
        self, batch: Sequence[tuple[EnvGroupBuilder, _SelectedGroup]], settings: CompareSettings
    ) -> None:
        """Read and play some groups, and count their rollouts in order."""
        slots = asyncio.Semaphore(max(1, self.config.plan.concurrency // self.config.plan.group_size))

        async def play(group: ReplayedGroup) -> list[ComparedRollout]:
            async with slots:
                return await group.replay(self.config.plan, settings)

        tasks = [asyncio.create_task(play(group)) for group in self._load(batch)]
        try:
            results = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        selected = {rollout for _, group in batch for rollout in group.ids}
        for result in results:
            for compared in result:
                if compared.rollout.id not in selected:
                    continue
                if compared.not_replayed is not None:
                    self.counter.add_not_replayed(compared.rollout.env, compared.not_replayed)
                else:
                    self.counter.add(compared.rollout, compared.comparison, compared.steps)

    def _load(self, batch: Sequence[tuple[EnvGroupBuilder, _SelectedGroup]]) -> list[ReplayedGroup]:
        """The records of some groups. If several sessions recorded the same rollout, the last of them counts."""
        selected = {group.key: group for _, group in batch}
        members: dict[GroupKey, dict[tuple[int | None, int], Rollout]] = {key: {} for key in selected}
        for rollout in self._read(list(selected.values())):
            key, place = rollout.group_key, (rollout.index, rollout.attempt)
            if key not in members:  # of another env with a group of the same name
                continue
            earlier = members[key].get(place)
            if earlier is not None and earlier.id in selected[key].ids:
                self.counter.add_not_replayed(key.env, _DUPLICATE)
            members[key][place] = rollout
        scores = {}
        if any(builder.grades_groups for builder, _ in batch):
            condition = f"name = 'group_grade' and {_members_of(list(selected.values()))}"
            scores = {(score.group, score.session): score for score in self.run.scores(where=condition)}
        return [
            ReplayedGroup(key, builder, rollouts, scores.get((key, rollouts[0].session)))
            for builder, (key, _) in batch
            if (rollouts := list(members[key].values()))
        ]


def where_clause(where: str | None, *others: str) -> str:
    """The conditions as a clause of a SELECT."""
    conditions = [
        *([f"(\n{where}\n)"] if where else []),
        *others,
    ]  # on a line of its own, because it may end in a comment
    return f"where {' and '.join(conditions)}" if conditions else ""


def _members_of(groups: Sequence[_SelectedGroup]) -> str:
    """The condition in SQL for the rollouts, or scores, of these groups of one iteration."""
    first = groups[0].key
    envs, names = ({getattr(group.key, name) for group in groups} for name in ("env", "group"))
    listed = [", ".join(map(sql_literal, sorted(values))) for values in (envs, names)]
    same = f"split = {sql_literal(first.split)} and iteration = {first.iteration:d}"
    return f'{same} and env in ({listed[0]}) and "group" in ({listed[1]})'
