"""The interface of environments: `Env`, which plays one rollout, and `EnvGroupBuilder`, which makes envs."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rolltrace.errors import EnvError, InputError
from rolltrace.graders.grader import Grader, Grades, GroupGrader
from rolltrace.policies.policy import Completion
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import EndedBeforeFirstTurn, Rollout
from rolltrace.trace.score import Grade

__all__ = ["Env", "EnvGroupBuilder", "Grade", "Observation", "SingleEnvGroup", "StepResult"]


class Observation(msgspec.Struct, frozen=True):
    """The input of the policy's next turn."""

    messages: Sequence[Message | Mapping[str, Any]]
    """New messages, which follow the policy's own. Chat dicts are allowed; the runner copies them at once."""
    tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
    """The tools it may call in its next turn."""
    stop: Sequence[str] = ()
    """Stop sequences for its next turn."""
    replaces_history: bool = False
    """Whether `messages` are the whole new prompt instead."""


class StepResult(msgspec.Struct, frozen=True):
    """The result of one turn."""

    reward: float
    done: bool
    observation: Observation | None = None
    """The input of the next turn; if the episode is done, the final messages, for the record."""
    reward_data: Mapping[str, Any] = {}
    """The raw numbers behind the reward."""
    env_state: Mapping[str, Any] = {}
    """The state of the environment after the turn."""
    extra: Mapping[str, Any] = {}
    """Other data, such as reference answers and extracted answers."""
    metrics: Mapping[str, Any] = {}
    """Other numbers, of this step only, because they are summed: 1 for an illegal move, not the count so far."""
    logs: Mapping[str, Any] = {}
    """Data for debugging."""
    stop_reason: str | None = None
    """Why the episode is done, if `completed` is not specific enough."""


STEP_MAP_FIELDS = tuple(name for name in EndedBeforeFirstTurn.__struct_fields__ if name != "reward")
"""The fields of `StepResult` that are maps."""


class Env(ABC):
    """One task being played by one policy. An instance plays one rollout, once."""

    takes_any_completion = False
    """True for one-prompt envs: they also get truncated and malformed completions, and set the penalty themselves."""

    @abstractmethod
    async def initial_observation(self) -> Observation | StepResult:
        """The first prompt.

        If there is nothing to play, such as in a game that ended before this seat's first turn, return a `StepResult`
        that is done: the policy is not called, and the result's reward is that of the rollout.
        """

    @abstractmethod
    async def step(self, completion: Completion) -> StepResult:
        """Take the policy's turn."""

    def unfinished_step(self) -> StepResult | None:
        """The partial result of a `step` that raised or was cancelled, or None.

        The runner calls it right after the failure and records its observation and its maps, such as a move that was
        made or the results of tools that had returned. Its `reward` and `done` do not count.
        """
        return None

    @property
    def can_observe(self) -> bool:
        """Whether the environment implements `observe`."""
        return getattr(self.observe, "__func__", None) is not Env.observe

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Accept messages from the runner or a hook; the messages of the returned observation join the prompt.

        None means that the environment does not accept them.
        """
        return None

    async def close(self) -> None:
        """Release the environment's resources. It is called at least once, however the rollout ends."""
        return


class SingleUse:
    """Raises an error if a single-use env is used before its start, twice, or after its end."""

    def __init__(self) -> None:
        self._started = self._done = False

    def start(self) -> None:
        """Mark the env as started."""
        if self._started:
            raise EnvError("initial_observation() was called twice: an environment is single use, make a new one.")
        self._started = True

    def require_active(self, method: str = "step()") -> None:
        """Raise if the env has not started, or is done."""
        if not self._started:
            raise EnvError(f"{method} was called before initial_observation(): call that first.")
        if self._done:
            raise EnvError(
                f"{method} was called after the episode was done: an environment is single use, make a new one."
            )

    def end(self) -> None:
        """Mark the episode as done."""
        self._done = True


class EnvGroupBuilder(ABC):
    """A picklable recipe for the episodes that play one task; heavy objects are made in `make_episode`."""

    env: str
    """The environment's name."""
    task: str
    """Which task it plays."""
    tags: tuple[str, ...] = ()
    episodes: int = 1
    """How often the task is played."""
    seats: int = 1
    """Players of an episode. The group has episodes × seats rollouts."""
    grader: Grader | None = None
    """Scores each rollout when it ends."""
    group_grader: GroupGrader | None = None
    """Scores the rollouts of the group together, when all have ended."""
    env_args: Mapping[str, Any] = {}
    """The arguments of the environment, for the record."""
    task_data: Mapping[str, Any] = {}
    """The data of the task, for the record; no policy sees it."""
    seed: int | None = None
    """The seed that the task was drawn with."""
    reward_range: tuple[float, float] | None = None
    """The lowest and the highest reward of a rollout, with its grades; None if that is not known.

    `rolltrace check` reports rewards outside of it. What limits of the runner charge is not part of it.
    """

    @abstractmethod
    async def make_episode(self, number: int) -> Sequence[Env]:
        """Fresh environments for one episode: one, or one per seat."""

    def role_of(self, seat: int) -> str:
        """The role that a seat plays; a runner may have a policy for each role."""
        return POLICY_ROLE

    async def grade_group(self, rollouts: Sequence[Rollout]) -> Grades:
        """Grades by rollout id, which are added to the rewards; by default those of `group_grader`.

        The rollouts include failed ones, which need no grade. An exception in place of a grade
        is recorded as the reason why that rollout has no grade.
        """
        if self.group_grader is None:
            raise EnvError(f"{type(self).__name__} does not grade groups.")
        return await self.group_grader.grade_group(rollouts)

    @property
    def grades_groups(self) -> bool:
        """Whether the runner calls `grade_group`."""
        return self.group_grader is not None or type(self).grade_group is not EnvGroupBuilder.grade_group

    async def cleanup(self) -> None:
        """Release the group's resources. It is called at least once, after all rollouts have ended."""
        return


def copy_builder(builder: EnvGroupBuilder, where: str, fields: Mapping[str, Any]) -> EnvGroupBuilder:
    """A copy of a builder with other values of these fields. Raises `InputError` if they cannot be set."""
    copied = copy.copy(builder)
    try:
        for name, value in fields.items():
            setattr(copied, name, value)
    except (AttributeError, TypeError) as error:
        names = ", ".join(f"`{name}`" for name in fields)
        raise InputError(
            f"Expected a group builder {where} on which {names} can be set, "
            f"got {type(builder).__name__}: {error}. Let it be neither frozen nor a property."
        ) from error
    return copied


@dataclass(kw_only=True)
class GroupFields(EnvGroupBuilder):
    """A builder whose attributes are arguments of its constructor."""

    env: str
    task: str
    tags: tuple[str, ...] = ()
    episodes: int = 1
    grader: Grader | None = None
    group_grader: GroupGrader | None = None
    env_args: Mapping[str, Any] = field(default_factory=dict)
    task_data: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    reward_range: tuple[float, float] | None = None


@dataclass(kw_only=True)
class SingleEnvGroup(GroupFields):
    """A builder whose episodes have one env each, made by `make_env`."""

    make_env: Callable[..., Any]
    """Returns a new env. A `functools.partial` of the env's class pickles."""

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One new env."""
        return [self.make_env()]
