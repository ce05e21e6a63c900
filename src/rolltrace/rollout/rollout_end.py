"""How a rollout ends: its stop reason, the layer of a failure, and the finished rollout."""

from types import TracebackType
from typing import cast

import msgspec

from rolltrace.cancellation import is_failure
from rolltrace.errors import RoleError
from rolltrace.trace.codec import copy_score
from rolltrace.trace.failure import Failure, failure_of
from rolltrace.trace.rollout import Outcome, Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Grade, Score, group_grade, latest_reward
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status, StoppedBy, StopReason


class LayerError(Exception):
    """An exception together with the layer it came from; it does not leave this package."""

    def __init__(self, layer: Layer, cause: BaseException) -> None:
        super().__init__(layer, cause)
        self.layer = layer
        self.cause = cause

    @property
    def failure(self) -> Failure:
        """The exception as the record holds it."""
        return failure_of(self.layer, self.cause)


class ErrorLayer:
    """A context manager that attributes each exception raised inside it to one layer.

    A requested cancellation passes unchanged. A stray `CancelledError` and a `SystemExit` are failures like any other.
    """

    __slots__ = ("_layer",)

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, LayerError) and is_failure(error):
            raise LayerError(self._layer_of(error), error) from error

    def _layer_of(self, error: BaseException) -> Layer:
        """A role that fails inside an env is a failure of the policy; inside a grader it is the grader's."""
        return Layer.POLICY if self._layer is Layer.ENV and isinstance(error, RoleError) else self._layer


POLICY_LAYER = ErrorLayer(Layer.POLICY)
ENV_LAYER = ErrorLayer(Layer.ENV)
GRADER_LAYER = ErrorLayer(Layer.GRADER)
HOOK_LAYER = ErrorLayer(Layer.HOOK)


class RolloutEnd(msgspec.Struct, frozen=True):
    """The end of a rollout."""

    reason: str
    by: StoppedBy = StoppedBy.RUNNER
    status: Status = Status.OK
    error: Failure | None = None
    by_limit: bool = False
    """Whether `zero_reward_on_limit` clamps the total."""
    reason_from_env: bool = False
    """Whether the env itself gave the reason, which a hook may not change."""
    reward: float = 0.0
    """Reward beside that of the steps, for a rollout that ended before the first one."""

    @property
    def needs_grade(self) -> bool:
        """Whether the rollout's own grader is called: only if the env ended the rollout."""
        return self.status is Status.OK and self.by is StoppedBy.ENV

    @property
    def env_failure(self) -> EnvFailure:
        """Why the env did not finish its turn, for a rollout that ended inside a turn."""
        return _ENV_FAILURES[self.reason]

    def clamp(self, total: float, zero_on_limit: bool) -> tuple[float, float | None]:
        """The total after `zero_reward_on_limit`, and the total before if it was changed."""
        if zero_on_limit and self.by_limit and total > 0:
            return 0.0, total
        return total, None


_ENV_FAILURES: dict[str, EnvFailure] = {
    StopReason.ERROR: EnvFailure.RAISED,
    StopReason.TIMEOUT: EnvFailure.TIMED_OUT,
    StopReason.CANCELLED: EnvFailure.CANCELLED,
    StopReason.EPISODE_ABORTED: EnvFailure.ABORTED,
}

COMPLETED = RolloutEnd(StopReason.COMPLETED, StoppedBy.ENV)
TRUNCATED = RolloutEnd(StopReason.MAX_TOKENS, StoppedBy.ENV)
CANCELLED = RolloutEnd(StopReason.CANCELLED, status=Status.CANCELLED)
EPISODE_ABORTED = RolloutEnd(StopReason.EPISODE_ABORTED, status=Status.CANCELLED)


def end_at_limit(reason: StopReason) -> RolloutEnd:
    """The end of a rollout that reached a limit."""
    return RolloutEnd(reason, by_limit=True)


def end_for_failure(failure: Failure) -> RolloutEnd:
    """The end of a rollout in which a layer failed."""
    return RolloutEnd(StopReason.ERROR, status=Status.ERROR, error=failure)


class FinishedRollout(msgspec.Struct):
    """A rollout that has ended and is recorded."""

    rollout_builder: RolloutBuilder
    stop: RolloutEnd
    outcome: Outcome
    raw_scores: list[Score] = msgspec.field(default_factory=list)
    """Scores of the rollout, in the order in which the sink got them."""
    grade_failure: Failure | None = None
    """Why the group's grade is missing, if it is."""

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self.rollout_builder.header.id

    @property
    def index(self) -> int:
        """The position in the group."""
        return cast("int", self.rollout_builder.header.index)  # the runner numbers every member

    @property
    def attempt(self) -> int:
        """The number of failed attempts before this one."""
        return self.rollout_builder.header.attempt

    @property
    def status(self) -> Status:
        """Whether the rollout is ok, failed, or was cancelled."""
        return self.stop.status

    @property
    def stop_reason(self) -> str:
        """Why the rollout ended."""
        return self.stop.reason

    @property
    def error(self) -> Failure | None:
        """What failed, if anything did."""
        return self.stop.error

    @property
    def reward_so_far(self) -> float:
        """The sum of the step rewards and the rollout's own grade."""
        return self.outcome["reward_so_far"]

    @property
    def reward(self) -> float | None:
        """The total as it stands now, the group's grade included; None if the rollout has no reward."""
        latest = latest_reward(self.raw_scores)
        return self.line_reward if latest is None else latest.value

    @property
    def line_reward(self) -> float | None:
        """The total that was known when the rollout ended; None if the group is graded later."""
        return self.outcome["reward"]

    @property
    def group_grade(self) -> Grade | None:
        """The grade of the group's grader, if there is one."""
        latest = latest_reward(self.scores)
        return None if latest is None else group_grade(latest)

    @property
    def scores(self) -> tuple[Score, ...]:
        """Copies of the scores, as they are read back from the run."""
        return tuple(map(copy_score, self.raw_scores))

    @property
    def rollout(self) -> Rollout:
        """A new copy of the record with its scores."""
        return self.rollout_builder.build(self.outcome).with_scores(self.scores)
