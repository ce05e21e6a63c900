"""Plays our environments in the training loop of tinker-cookbook."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rolltrace.bridges.recorded_run import require_run
from rolltrace.bridges.stepping import SteppedGroup, SteppedRollout
from rolltrace.bridges.tinker_group import Place, PlayCounter, Recording
from rolltrace.bridges.tinker_package import (
    STOP_METRIC_PREFIX,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    ModelInput,
    Renderer,
    RLDataset,
    StepResult,
    require_tinker_cookbook,
)
from rolltrace.bridges.tinker_renderers import read_response, to_chat, token_ids
from rolltrace.bridges.tinker_rollout import REF_ATTRIBUTE, RolloutRef, Turn, WatchedPolicy
from rolltrace.envs import env as ours
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks, iterate_groups
from rolltrace.errors import ContextOverflowError, InputError, PolicyError, RolltraceError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.writer import RunWriter
from rolltrace.trace.convert import as_message
from rolltrace.trace.json_numbers import as_float
from rolltrace.trace.stop_reasons import Status, StopReason
from rolltrace.trace.tokens import Tokens, Usage


def to_tinker(
    tasks: Tasks | str,
    renderer: Renderer,
    *,
    run: RunWriter | None = None,
    batch_size: int = 8,
    group_size: int = 8,
    batches: int | None = None,
    split: str = "train",
    roles: Mapping[str, Policy] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    seed: int = 0,
) -> "TaskDataset":
    """An `RLDataset` that plays our environment, by its tasks or its name, in batches of `batch_size` groups.

    Each group plays its task `group_size` times; in a game, each play has a rollout for each player. `batches` is by
    default as many as it takes to play each task once. Limits, graders and the record are those of our own runner;
    `roles` are the policies of others than the trained one, such as `{"grader": policy}`. With `run`, rollouts are
    recorded as if we had played them, with advantages; `undo()` of the result ends that.
    """
    require_tinker_cookbook()
    if isinstance(tasks, str):
        tasks = load_env(tasks)
    if not isinstance(tasks, Tasks):
        raise InputError(f"Expected the tasks of an environment, or its name, got {type(tasks).__name__}.")
    if not isinstance(renderer, Renderer):
        raise InputError(f"Expected a renderer of tinker-cookbook, got {type(renderer).__name__}.")
    if batches is None and tasks.count is None:
        raise InputError(f"{tasks.env} has no last task: pass batches=, the number of batches to train on.")
    if batches is None:
        batches = -(-(tasks.count or 0) // batch_size)
    recording = None
    if run is not None:
        require_run(run)
        recording = Recording(run, None)
        recording.start(in_trainer=True)
    settings = {"roles": roles, "limits": limits, "seed": seed}
    return TaskDataset(tasks, renderer, recording, batches, batch_size, group_size, split, settings)


class TaskDataset(RLDataset):
    """Groups of our tasks, in an order drawn from the seed."""

    def __init__(
        self,
        tasks: Tasks,
        renderer: Renderer,
        recording: Recording | None,
        batches: int,
        batch_size: int,
        group_size: int,
        split: str,
        settings: Mapping[str, Any],
    ) -> None:
        self._tasks = tasks
        self._renderer = renderer
        self._recording = recording
        self._batches = batches
        self._batch_size = batch_size
        self._group_size = group_size
        self._split = split
        self._settings = settings
        """Arguments of each `SteppedGroup`."""

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The builders of a batch."""
        builders = iterate_groups(
            self._tasks,
            iteration=index,
            groups=self._batch_size,
            episodes=self._group_size,
            seed=self._settings["seed"],
        )
        iteration = index if self._split == "train" else None
        return [
            TaskGroupBuilder(
                builder, self._renderer, self._recording, Place(self._split, iteration, f"{index}.{n}"), self._settings
            )
            for n, builder in enumerate(builders)
        ]

    def __len__(self) -> int:
        return self._batches

    def undo(self) -> None:
        """End the recording of tokens' log-probabilities and advantages; rollouts are recorded all the same."""
        if self._recording is not None:
            self._recording.undo()


class TaskGroupBuilder(EnvGroupBuilder):
    """Makes the envs of one group of ours; played once at a time."""

    def __init__(
        self,
        builder: ours.EnvGroupBuilder,
        renderer: Renderer,
        recording: Recording | None,
        place: Place,
        settings: Mapping[str, Any],
    ) -> None:
        self.builder = builder
        self._renderer = renderer
        self._recording = recording
        self._plays = PlayCounter(place)
        self._settings = settings
        self._groups: list[SteppedGroup] = []
        self._envs: list[TaskEnv] = []

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.builder, self._renderer, self._recording, self._plays.next(), self._settings)
        return TaskGroupBuilder, fields

    async def make_envs(self) -> Sequence[Env]:
        """Start to play. For another attempt, of which tinker-cookbook plays the first env, only one episode."""
        builder, place = self.builder, self._plays.next()
        if self._groups:
            builder = ours.copy_builder(builder, "that is retried", {"episodes": 1})
        run = None if self._recording is None else self._recording.run
        group = SteppedGroup(
            builder,
            run=run,
            group=place.group,
            iteration=place.iteration or 0,
            split=place.split,
            policy="tinker",
            **self._settings,
        )
        self._groups.append(group)
        limits = self._settings["limits"]
        envs = [TaskEnv(group, rollout, self._renderer, self._recording, limits) for rollout in await group.start()]
        self._envs += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Any], env_group: Sequence[Any]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """What our graders add to the rewards of the steps, and the numbers behind all rewards."""
        for env in self._envs:
            env.give_up("tinker-cookbook did not play it to its end")
        return [await env.total(trajectory) for trajectory, env in zip(trajectory_group, env_group, strict=True)]

    async def cleanup(self) -> None:
        """End what is still being played."""
        groups, self._groups, self._envs = self._groups, [], []
        for group in groups:
            await group.close()

    def logging_tags(self) -> list[str]:
        """The environment, and its tags."""
        return [self.builder.env, *self.builder.tags]


class TaskEnv(Env):
    """One rollout of our runner, as an env of tinker-cookbook."""

    def __init__(
        self,
        group: SteppedGroup,
        rollout: SteppedRollout,
        renderer: Renderer,
        recording: Recording | None,
        limits: Limits,
    ) -> None:
        self.rollout = rollout
        self.renderer = renderer
        self._group = group
        self._recording = recording
        self._limits = limits
        self._prompt: Any = ModelInput.empty()
        self._stop: list[Any] = renderer.get_stop_sequences()
        self._request: Request | None = None
        self._turn: Turn | None = None
        self._ref: RolloutRef | None = None

    async def initial_observation(self) -> Any:
        """The first prompt; if the rollout has no turn, its reward."""
        await self._receive_request()
        if self._request is not None:
            return self._prompt, self._stop
        return InitialObservationOverflow(self._outcome()["reward_so_far"], self._stop_metric())

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """Answer our runner, and wait for its next request."""
        before = len(self.rollout.rewards)
        self.rollout.answer(self._completion(action, is_cut=(extra or {}).get("stop_reason") == "length"))
        await self._receive_request()
        reward = sum(self.rollout.rewards[before:])
        is_over = self._request is None
        return StepResult(reward, is_over, self._prompt, self._stop, self._stop_metric() if is_over else {})

    async def _receive_request(self) -> None:
        """Render our runner's next request; a prompt that does not fit the context is refused."""
        self._request = await self.rollout.next_request()
        if self._request is not None:
            try:
                self._prompt, self._stop = render_request(self.renderer, self._request)
            except Exception as error:
                self.rollout.fail(PolicyError(f"The prompt cannot be rendered: {error}"))
                raise
            reserve = self._limits.generation_reserve or 1
            limit = self._limits.context_length
            if limit is not None and self._prompt.length + reserve > limit:
                self.rollout.fail(ContextOverflowError(f"{self._prompt.length} tokens, of {limit}, are too many."))
                self._request = await self.rollout.next_request()
        if self._request is None:
            self._prompt = ModelInput.empty()
            self._outcome()

    def _outcome(self) -> Mapping[str, Any]:
        """How the rollout ended; raises if it failed, so that tinker-cookbook counts it as failed."""
        outcome = self.rollout.outcome
        if outcome is None or outcome["status"] is not Status.OK:
            failure = None if outcome is None else outcome["error"]
            cause = "it was cancelled" if failure is None else f"{failure.type}: {failure.message}"
            raise RolltraceError(f"Rollout {self.rollout.index} of group {self._group.key.group!r} failed: {cause}")
        return outcome

    def _stop_metric(self) -> dict[str, float]:
        reason = str(self._outcome()["stop_reason"])
        return {f"{STOP_METRIC_PREFIX}{'rollout_timeout' if reason == StopReason.TIMEOUT else reason}": 1.0}

    def _completion(self, action: Sequence[int], *, is_cut: bool) -> Completion:
        read = read_response(self.renderer, action, is_cut, self._stop)
        logprobs = None if self._turn is None else self._turn.logprobs
        return Completion(
            message=as_message(read.response, "response", []),
            termination=read.termination,
            parse_error=read.parse_error,
            raw=read.raw,
            usage=Usage(self._prompt.length, len(action)),
            tokens=Tokens(token_ids(self._prompt), tuple(action), logprobs),
        )

    def give_up(self, reason: str) -> None:
        """End a rollout that waits for an answer and will not get one."""
        if self._request is not None:
            self._request = None
            self.rollout.fail(PolicyError(reason))

    async def total(self, trajectory: Any) -> tuple[float, dict[str, float | int]]:
        """What is missing of the rollout's total in the rewards of its steps, and the numbers behind it."""
        steps = sum(one.reward for one in trajectory.transitions)
        result = await self._group.result()
        member = next(one for one in result.members if one.index == self.rollout.index)
        if member.status is not Status.OK:  # tinker-cookbook stopped it at a limit of its own
            return 0.0, {}
        if member.reward is None:
            failure = member.grade_failure or result.failure
            cause = "it was not graded" if failure is None else f"{failure.type}: {failure.message}"
            raise RolltraceError(f"Rollout {member.index} of group {self._group.key.group!r} has no reward: {cause}")
        rest = member.reward - steps
        if self._ref is not None:
            self._ref.total = steps + rest
        played = member.rollout
        data = [step.reward_data for step in played.steps]
        data += [grade.reward_data for grade in (played.grade, played.group_grade) if grade is not None]
        numbers = {name: as_float(value) for one in data for name, value in one.items()}
        return rest, {name: value for name, value in numbers.items() if value is not None}

    # With a run: log-probabilities and advantages

    @property
    def guard(self) -> Any:
        """Keeps failures of recording out of training."""
        return None if self._recording is None else self._recording.guard

    async def rolltrace_play(self, rollout: Callable[..., Awaitable[Any]], policy: Any) -> Any:
        """Play the whole rollout with the function of tinker-cookbook that does."""
        if self._recording is None:
            return await rollout(policy, self)
        trajectory = await rollout(WatchedPolicy(policy, self), self)
        if self.rollout.id is not None:
            self._ref = RolloutRef(self._recording.run.run, self.rollout.id)
            object.__setattr__(trajectory, REF_ATTRIBUTE, self._ref)
        return trajectory

    def sample(self, prompt: Any, stop: Any, policy: Any, max_tokens: int | None) -> Turn:
        """The policy is asked."""
        self._turn = Turn(prompt, stop)
        return self._turn

    def sample_failed(self, error: BaseException) -> None:
        """The policy raised."""
        if isinstance(error, Exception) and not isinstance(error, asyncio.CancelledError):
            self._request = None
            self.rollout.fail(error)


def render_request(renderer: Renderer, request: Request) -> tuple[Any, list[Any]]:
    """The prompt of a request, and the signs to stop at."""
    messages = [to_chat(message) for message in request.messages]
    if request.tools:
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters.to_dict()}
            for tool in request.tools
        ]
        system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        try:
            messages = [*renderer.create_conversation_prefix_with_tools(tools, system), *messages]
        except NotImplementedError as error:
            raise InputError(f"{type(renderer).__name__} cannot offer tools, which this environment has.") from error
    stop = list(renderer.get_stop_sequences())
    if request.sampling.stop:
        stop = [one if isinstance(one, str) else str(renderer.tokenizer.decode([one])) for one in stop]
        stop += request.sampling.stop
    return renderer.build_generation_prompt(messages), stop
