"""What an environment is: single use, asked by the runner, never writing a trace itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.errors import EnvError
from rolltrace.graders.grader import Grader, Grades, GroupGrader
from rolltrace.policies.policy import Completion
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Grade, Rollout

__all__ = ["Env", "EnvGroupBuilder", "Grade", "Observation", "StepResult"]


class Observation(msgspec.Struct, frozen=True):
    """What the policy is shown next."""

    messages: Sequence[Message | Mapping[str, Any]]
    """New messages, put after the policy's own; chat dicts are fine, the runner freezes them."""
    tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
    """The tools it may call in its next turn."""
    stop: Sequence[str] = ()
    """Stop sequences for its next turn."""
    replaces_history: bool = False
    """Whether `messages` are the whole new prompt instead."""


class StepResult(msgspec.Struct, frozen=True):
    """What came of one turn."""

    reward: float
    done: bool
    observation: Observation | None = None
    """What the policy sees next; where the episode is done, what it would have seen."""
    reward_data: Mapping[str, Any] = {}
    """The numbers behind the reward, raw."""
    env_state: Mapping[str, Any] = {}
    """Where the environment stands after the turn."""
    extra: Mapping[str, Any] = {}
    """What is not a number: reference answers, extracted answers."""
    metrics: Mapping[str, Any] = {}
    """Other numbers, of this step alone, so that sums are right: 1 for an illegal move, not how many so far."""
    logs: Mapping[str, Any] = {}
    """What a person debugging may want to read."""
    stop_reason: str | None = None
    """Why the episode is done, where `completed` does not say it."""


STEP_MAP_FIELDS = ("reward_data", "env_state", "extra", "metrics", "logs")
"""The maps in which an env tells about a step."""


class Env(ABC):
    """One task being played by one policy. An instance plays one rollout, once."""

    takes_any_completion = False
    """True for one-prompt envs: they also get cut and malformed completions, and charge for them themselves."""

    @abstractmethod
    async def initial_observation(self) -> Observation | StepResult:
        """The first prompt.

        Where there is nothing to play, such as in a game that others ended before this seat's first turn, a
        `StepResult` that is done: the policy is not asked, and its reward is the rollout's.
        """

    @abstractmethod
    async def step(self, completion: Completion) -> StepResult:
        """Take the policy's turn."""

    def unfinished_step(self) -> StepResult | None:
        """What came so far of a `step` that raised or was cancelled; None if there is nothing to tell.

        The runner asks for it at once and keeps its observation and its maps in the step's record: a move that was
        made, the answers of the tools that had returned. Its `reward` and `done` do not count.
        """
        return None

    @property
    def can_observe(self) -> bool:
        """Whether the environment implements `observe`."""
        return getattr(self.observe, "__func__", None) is not Env.observe

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Take messages that the runner or a hook puts in; the observation's are then what is added to the prompt.

        None says that this environment does not support it, now or ever.
        """
        return None

    async def close(self) -> None:
        """Give back what the environment holds. Called once or more, on every way out."""
        return


class SingleUse:
    """The life of a single-use env: it is started once, then asked until it is done; the errors say what to do."""

    def __init__(self) -> None:
        self._started = self._done = False

    def start(self) -> None:
        """Note that the first prompt is asked for."""
        if self._started:
            raise EnvError("initial_observation() came twice: an environment is single use, make a new one.")
        self._started = True

    def require_active(self, asked: str = "step()") -> None:
        """Refuse what comes before the start or after the end."""
        if not self._started:
            raise EnvError(f"{asked} came before initial_observation(): call that first.")
        if self._done:
            raise EnvError(f"{asked} came after the episode was done: an environment plays once, make a new one.")

    def end(self) -> None:
        """Note that the episode is done."""
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
    """How many players an episode has; rollouts in the group = episodes × seats."""
    grader: Grader | None = None
    """Scores each rollout when it ends."""
    group_grader: GroupGrader | None = None
    """Scores the rollouts of the group together, when all have ended."""
    env_args: Mapping[str, Any] = {}
    """What the environment was made with, for the record."""
    task_data: Mapping[str, Any] = {}
    """What the task is made of, for the record; no policy sees it."""
    seed: int | None = None
    """What the task's chance was drawn from."""

    @abstractmethod
    async def make_episode(self, number: int) -> Sequence[Env]:
        """Fresh environments for one episode: one, or one per seat."""

    def role_of(self, seat: int) -> str:
        """The role in which a seat is played; a runner may be given a policy for each role."""
        return POLICY_ROLE

    async def grade_group(self, rollouts: Sequence[Rollout]) -> Grades:
        """Grades by rollout id, added to each rollout's reward: the group grader's, or what a subclass makes of them.

        It sees failed members, and need not grade them. An exception in place of a grade says why there is none.
        """
        if self.group_grader is None:
            raise EnvError(f"{type(self).__name__} does not grade groups.")
        return await self.group_grader.grade_group(rollouts)

    @property
    def grades_groups(self) -> bool:
        """Whether `grade_group` is to be asked."""
        return self.group_grader is not None or type(self).grade_group is not EnvGroupBuilder.grade_group

    async def cleanup(self) -> None:
        """Give back what the group holds. Called once or more, after every rollout has ended."""
        return
