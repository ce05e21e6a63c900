"""Our environments as a taskset of verifiers: its harness plays them in this process, and verifiers answers."""

import itertools
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import msgspec

from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.stepping import role_error
from rolltrace.bridges.verifiers_trace import load_verifiers, tokens_of_last_call
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks, make_builder
from rolltrace.errors import InputError
from rolltrace.policies.endpoint.api_key import InMemoryApiKey
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.rollout_end import FinishedRollout
from rolltrace.rollout.runner import Runner
from rolltrace.store.writer import RunWriter
from rolltrace.trace.rollout import Header
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey
from rolltrace.trace.sink import Sink
from rolltrace.trace.stop_reasons import Status, StoppedBy

_ids = itertools.count()


def to_verifiers(
    tasks: Any,
    *,
    run: Any = None,
    args: Mapping[str, Any] | None = None,
    roles: Mapping[str, Policy] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    seed: int = 0,
    split: str = "train",
    iteration: int = 0,
) -> Any:
    """A taskset of verifiers whose tasks are those of one of our environments; `run` records what is played.

    `tasks` is a name as for `rolltrace run`, with `args`, or a `Tasks`. `roles` are the policies of other roles, such
    as `grader`: verifiers answers for the agent only. Make an environment of `taskset.config`, with the runtime
    `subprocess`. Set `taskset.player.iteration` in a training loop.
    """
    if not isinstance(tasks, Tasks | str):
        raise InputError(f"Expected the name of an environment, or a Tasks, got {type(tasks).__name__}.")
    if run is not None:
        require_run(run)
    vf = load_verifiers()
    loaded = load_env(tasks, args or {}) if isinstance(tasks, str) else tasks
    player = TaskPlayer(loaded, run, dict(roles or {}), limits, seed, split, iteration)
    player.check()
    name = f"rolltrace_tasks_{next(_ids)}"
    taskset_class, harness_class = _make_classes(vf, player)
    # verifiers finds a taskset and its harness by the name of a module that exports them.
    module = ModuleType(name, "A taskset that Rolltrace made.")
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(__all__=["Taskset", "Harness"], Taskset=taskset_class, Harness=harness_class)
    sys.modules[name] = module
    return taskset_class(vf.TasksetConfig(id=name))


class TaskPlayer:
    """How the tasks are played and recorded."""

    def __init__(
        self, tasks: Tasks, run: RunWriter | None, roles: dict[str, Policy], limits: Limits, seed: int, split: str,
        iteration: int,
    ) -> None:  # fmt: skip
        self.tasks = tasks
        self.run = run
        self.roles = roles
        self.limits = limits
        self.seed = seed
        self.split = split
        self.iteration = iteration
        """The iteration of the rollouts that start from now on."""
        self._members: dict[tuple[int, str], int] = {}
        """The number of members so far of each iteration and group."""

    def check(self) -> None:
        """Raise `InputError` for what an agent of verifiers cannot play."""
        builder = make_builder(self.tasks, 0, episodes=1, seed=self.seed)
        if builder.grades_groups:
            raise InputError(
                f"{builder.env} compares the rollouts of a group, and verifiers plays each on its own: "
                "choose an environment whose rewards do not depend on the other rollouts."
            )
        if builder.seats > 1:
            raise InputError(
                f"{builder.env} has {builder.seats} seats, and verifiers plays one: "
                "let the other seats be played by a role, for example with play_as=0."
            )

    async def play(self, number: int, model: str, endpoint: str, secret: str, trace: Any) -> FinishedRollout:
        """Play one rollout of a task; verifiers answers at the endpoint."""
        builder = make_builder(self.tasks, number, episodes=1, seed=self.seed)
        key = GroupKey(self.split, self.iteration, builder.env, builder.task)
        index = self._members[key.iteration, key.group] = self._members.get((key.iteration, key.group), -1) + 1
        limits = self.limits
        if (most := trace.agent.config.max_turns) is not None:
            limits = msgspec.structs.replace(limits, max_turns=min(most, limits.max_turns or most))
        async with EndpointPolicy(model, endpoint, InMemoryApiKey(secret)) as policy:
            runner = Runner(
                _TracedPolicy(policy, trace, builder.role_of(0)),
                roles=self.roles,
                sink=_IndexedSink(MemorySink() if self.run is None else self.run, index),
                limits=limits,
                seed=self.seed,
            )
            result = await runner.play_group(builder, key)
        return result.members[0]


class _TracedPolicy:
    """The agent of verifiers; the tokens of an answer are those that its trace has."""

    def __init__(self, policy: EndpointPolicy, trace: Any, role: str) -> None:
        self._policy = policy
        self._trace = trace
        self._role = role
        self.name = policy.name
        self.version = policy.version
        self.context_length = policy.context_length

    async def complete(self, request: Request) -> Completion:
        if request.role != self._role:
            raise role_error(request.role)
        completion = await self._policy.complete(msgspec.structs.replace(request, include_tokens=False))
        tokens = tokens_of_last_call(self._trace) if request.include_tokens else None
        return completion if tokens is None else msgspec.structs.replace(completion, tokens=tokens)

    def count_tokens(self, request: Request) -> int | None:
        return self._policy.count_tokens(request)


class _IndexedSink:
    """A sink in which the group's only rollout has its number among all rollouts of the task."""

    def __init__(self, sink: Sink, index: int) -> None:
        self._sink = sink
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, header: Header) -> RolloutBuilder:
        return self._sink.begin(msgspec.structs.replace(header, index=self._index))


def _make_classes(vf: Any, player: TaskPlayer) -> tuple[Any, Any]:
    """The classes of a taskset and its harness, which need verifiers to be made."""

    class Data(vf.TaskData):  # type: ignore[misc]
        """A task, by its number."""

        number: int = 0

    class Task(vf.Task[Data]):  # type: ignore[misc]
        """What our rollout was rewarded with."""

        @vf.reward  # type: ignore[untyped-decorator]
        async def reward(self, trace: Any) -> float:
            return float(trace.info.get("rolltrace", {}).get("reward", 0.0))

    class Taskset(vf.Taskset[Task, vf.TasksetConfig]):  # type: ignore[misc]
        """The tasks of one environment."""

        INFINITE = player.tasks.count is None

        def load(self) -> Iterator[Any]:
            count = player.tasks.count
            for number in itertools.count() if count is None else range(count):
                name = f"{player.tasks.env}-{number}"
                yield Task(Data(name=name, number=number, prompt=f"{name}, played by Rolltrace"), self.config.task)

    class Harness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        """Plays a rollout with our runner, in this process."""

        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            played = await player.play(data.number, ctx.model, endpoint, secret, trace)
            return _finish(vf, trace, played)

    Taskset.player, Taskset.harness = player, Harness
    return Taskset, Harness


def _finish(vf: Any, trace: Any, played: FinishedRollout) -> Any:
    """Put the outcome of our rollout into the trace of verifiers."""
    rollout = played.rollout_builder.build(played.outcome)
    last = dict(rollout.steps[-1].reward_data) if rollout.steps else {}
    trace.record_metrics({**last, **({} if rollout.grade is None else rollout.grade.reward_data)})
    trace.info["rolltrace"] = {
        "rollout": played.id,
        "reward": rollout.reward_so_far if rollout.line_reward is None else rollout.line_reward,
        "stop_reason": rollout.stop_reason,
    }
    if rollout.status is Status.OK and rollout.stopped_by is StoppedBy.RUNNER:
        trace.stop(rollout.stop_reason)
    error = ""
    if rollout.error is not None:
        error = f"{rollout.error.type} in the {rollout.error.layer}: {rollout.error.message}"
    return vf.ProgramResult(exit_code=0 if rollout.status is Status.OK else 1, stdout="", stderr=error)
