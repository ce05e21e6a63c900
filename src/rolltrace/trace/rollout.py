"""One rollout as it is recorded: identity, outcome, conversation and steps."""

from collections.abc import Sequence
from copy import copy
from datetime import datetime
from operator import attrgetter
from typing import Any, TypedDict

import msgspec
from msgspec.structs import force_setattr

from rolltrace.trace.call import Call
from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import (
    FORMAT_VERSION,
    DroppedWithText,
    Duration,
    FreeForm,
    Numbers,
    Omittable,
    Range,
    Text,
    Timestamp,
)
from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import Float
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.score import Grade, GroupKey, Score, group_grade, latest_reward
from rolltrace.trace.stop_reasons import EnvFailure, Status, StoppedBy, Termination
from rolltrace.trace.tokens import Tokens, Usage


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Which rollout this is; nothing in it tells a policy the answer."""

    id: str
    """Unique everywhere."""
    run: str
    session: str
    """The session that recorded it: one opening of the run for writing."""
    split: str
    """`train`, or the name of an evaluation."""
    iteration: int
    env: str
    task: str
    group: str
    """Unique within an iteration."""
    index: int | None
    """Its number in the group: episode × seats + seat, the same for all attempts; None if members have no numbers."""
    attempt: int
    episode: int | None = None
    """In a game, the number of the play in the group."""
    seat: int | None = None
    """In a game, the player."""


_identity_values = attrgetter(*Identity.__struct_fields__)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a rollout when it starts; each field is a field of `Rollout`."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere."""
    run: str
    """The run's id."""
    split: str = "train"
    """`train`, or the name of an evaluation."""
    iteration: int = 0
    env: str
    """The environment's name."""
    env_args: FreeForm = {}
    """The arguments of the environment; secrets are `[redacted]`."""
    seed: int | None = None
    """The seed of the episode's random numbers."""
    task: str
    task_data: FreeForm = {}
    """The data of the task, with the reference answer; no policy sees it."""
    group: str
    """The rollouts of one env group builder; unique within an iteration."""
    index: int | None
    """Its number in the group: episode × seats + seat, the same for all attempts; None if members have no numbers."""
    attempt: int = 0
    """How many attempts at the same episode failed before."""
    episode: int | None = None
    """In a game, the number of the play in the group."""
    seat: int | None = None
    """In a game, the player."""
    policy: str = ""
    policy_version: int | str | None = None
    """The version that the first prompt was for; each step has the one that answered."""
    tags: tuple[str, ...] = ()
    session: str = ""
    """The session that recorded it: one opening of the run for writing."""
    started_at: Timestamp
    reward_min: Omittable[Float | None] = None
    """The lowest reward that the environment gives, if its builder declares it; a limit may charge more."""
    reward_max: Omittable[Float | None] = None
    """The highest reward that the environment gives, if its builder declares it."""

    @property
    def identity(self) -> Identity:
        """The fields that say which rollout this is, and no others."""
        return Identity(*_identity_values(self))

    @property
    def group_key(self) -> GroupKey:
        """Which group it belongs to."""
        return GroupKey(self.split, self.iteration, self.env, self.group)


class RolloutTrace(msgspec.Struct, frozen=True):
    """The structured view of one step."""

    prompt: tuple[Message, ...]
    """Exactly what the policy was sent."""
    policy_response: Message
    """Exactly what it answered."""
    reward_data: Numbers
    env_state: FreeForm
    extra: FreeForm


class Step(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One policy turn."""

    step: int
    """Its number, from 0."""
    prompt: tuple[Range, ...]
    """Ranges of the rollout's `messages`."""
    response: int | Message
    """The index of the message if the following prompt or `final` holds it, else the message itself."""
    tools: int | None = None
    """Index into the rollout's `tools`."""
    sampling: int | None = None
    """Index into the rollout's `sampling`."""
    reward: Float
    env_reward: Float | None = None
    """The reward from the env; None if the env was not called, or did not finish the turn. A limit may replace it in
    `reward`."""
    reward_data: Numbers = {}
    """The numbers behind the reward."""
    env_state: FreeForm = {}
    """The state of the environment after the turn."""
    extra: FreeForm = {}
    """Values that are not numbers, such as the reference answer."""
    metrics: Numbers = {}
    """Other numbers."""
    logs: FreeForm = {}
    """Information for debugging."""
    termination: Termination | None = None
    """How the completion ended."""
    parse_error: Text | None = None
    """Why part or all of the answer could not be read."""
    raw: Text | None = None
    """The policy's answer before it was parsed, if it differs from the response's content."""
    policy_version: int | str | None = None
    """The version that answered."""
    usage: Usage | None = None
    seconds: Duration | None = None
    """How long the policy took to answer."""
    tokens: DroppedWithText[Tokens | None] = None
    """Token ids and log-probabilities, if they are recorded."""
    env_failure: Omittable[EnvFailure | None] = None
    """Why the env did not finish this turn; None if it did, or was not called."""
    reward_weights: Omittable[Numbers] = {}
    """By the names of `reward_data`, the weight of each number in the reward; empty if not stated."""

    @property
    def trace(self) -> RolloutTrace:
        """The step with its text, for reading."""
        messages: Sequence[Message] | None = self.__dict__.get("_messages")
        if messages is None:
            raise ValueError("Expected a step of a rollout, got one that belongs to none: put it into `Rollout.steps`.")
        return RolloutTrace(
            prompt=select_messages(messages, self.prompt),
            policy_response=messages[self.response] if isinstance(self.response, int) else self.response,
            reward_data=self.reward_data,
            env_state=self.env_state,
            extra=self.extra,
        )


class EndedBeforeFirstTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What an env returned if it was over before the policy's first turn, so that the rollout has no step."""

    reward: Float
    reward_data: Numbers = {}
    """The numbers behind the reward."""
    env_state: FreeForm = {}
    extra: FreeForm = {}
    metrics: Numbers = {}
    logs: FreeForm = {}


class Outcome(TypedDict):
    """How a rollout ended: the fields of `Rollout` of the same names."""

    ended_at: datetime
    status: Status
    stop_reason: str
    stopped_by: StoppedBy
    error: Failure | None
    reward: float | None
    reward_so_far: float
    unclamped_reward: float | None


class Rollout(Header, frozen=True, kw_only=True, dict=True):
    """One line of a run: all steps of one env by one policy.

    A rollout that was read through an opened run also knows its late `scores`; they are not part of the line.
    """

    ended_at: Timestamp
    status: Status
    """Whether it has a reward that means something."""
    stop_reason: str
    """A `StopReason`, or what the environment named."""
    stopped_by: StoppedBy
    error: Failure | None = None
    """Why it failed, if it did."""
    line_reward: Float | None = msgspec.field(name="reward")
    """`reward` on the line: the total known at the end; None while a group grade is pending, or if status is not ok."""
    reward_so_far: Float
    """The sum of the step rewards, or that of an env which had no turn to give, and the grade, whatever the status."""
    unclamped_reward: Float | None = None
    """The total before a limit clamped it."""
    grade: Grade | None = None
    """The grade of the rollout's own grader."""
    messages: tuple[Message, ...] = ()
    """Each message occurrence, in the order in which the conversation held it."""
    tools: tuple[tuple[ToolSpec, ...], ...] = ()
    """The distinct sets of tools that were offered."""
    sampling: tuple[Sampling, ...] = ()
    """The distinct settings that were sampled with."""
    steps: tuple[Step, ...] = ()
    final: tuple[Range, ...] = ()
    """The conversation as it stood at the end."""
    pending_prompt: tuple[Range, ...] | None = None
    """The last prompt, if no step resulted from it."""
    pending_raw: Text | None = None
    """The raw answer to that prompt, if there was one."""
    calls: tuple[Call, ...] = ()
    """Model calls that are not the policy's turns."""
    metrics: Numbers = {}
    """About the rollout as a whole."""
    notes: tuple[Note, ...] = ()
    """About the record itself."""
    ended_before_first_turn: Omittable[EndedBeforeFirstTurn | None] = None
    """What the env returned if it was over before the policy's first turn."""

    def __post_init__(self) -> None:
        # A step knows only ranges; its view needs the messages they are ranges of. A step of another rollout is copied.
        if any(step.__dict__.get("_messages", self.messages) is not self.messages for step in self.steps):
            force_setattr(self, "steps", tuple(map(copy, self.steps)))
        for step in self.steps:
            force_setattr(step, "_messages", self.messages)

    @property
    def reward(self) -> float | None:
        """The total as it stands now: the latest score named `reward`, null included, else `line_reward`."""
        latest = self.reward_score
        return self.line_reward if latest is None else latest.value

    @property
    def scores(self) -> "tuple[Score, ...]":
        """Late facts about this rollout, the latest last; empty if only its line was read."""
        found: tuple[Score, ...] = self.__dict__.get("_scores", ())
        return found

    @property
    def reward_score(self) -> "Score | None":
        """The score that gives the reward: the last one named `reward`."""
        return latest_reward(self.scores)

    @property
    def group_grade(self) -> Grade | None:
        """What the group's grader said; None if the reward is the line's, null, or a plain score without a grade."""
        return None if (latest := self.reward_score) is None else group_grade(latest)

    def with_scores(self, scores: "Sequence[Score]") -> "Rollout":
        """The same rollout with these late facts, which are given in order, the latest last."""
        found = msgspec.structs.replace(self)
        force_setattr(found, "_scores", tuple(scores))
        return found

    def __copy__(self) -> "Rollout":
        return self.with_scores(self.scores)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return _rebuild, (fields, self.scores)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The conversation as it stood at the end."""
        return select_messages(self.messages, self.final)

    @property
    def pending_messages(self) -> tuple[Message, ...] | None:
        """What the policy was sent where no step resulted."""
        return None if self.pending_prompt is None else select_messages(self.messages, self.pending_prompt)

    def prompt_tokens(self, step: int) -> tuple[int, ...] | None:
        """The ids of a step's whole prompt; None where they were not captured."""
        whole: list[int] | None = None
        for each in self.steps[: step + 1]:
            if each.tokens is None:
                whole = None
                continue
            prompt = [*(whole or [])[: each.tokens.shared_prefix], *each.tokens.prompt]
            if each.step == step:
                return tuple(prompt)
            whole = [*prompt, *each.tokens.response]
        return None

    @property
    def seconds(self) -> float:
        """How long it took; 0 if the clock was set back meanwhile."""
        return max(0.0, (self.ended_at - self.started_at).total_seconds())


def _rebuild(fields: dict[str, Any], scores: tuple[Score, ...]) -> Rollout:
    """A rollout that was pickled."""
    return Rollout(**fields).with_scores(scores)


def select_messages(messages: Sequence[Message], ranges: Sequence[Range]) -> tuple[Message, ...]:
    """The messages that the ranges name."""
    if len(ranges) == 1:
        first, last = ranges[0]
        return tuple(messages[first:last])
    return tuple(message for first, last in ranges for message in messages[first:last])
