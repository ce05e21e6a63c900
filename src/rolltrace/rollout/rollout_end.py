"""How a rollout ended: stop reason, status and error."""

import msgspec

from rolltrace.trace.rollout import Failure
from rolltrace.trace.stop_reasons import EnvFailure, Status, StoppedBy, StopReason


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

CANCELLED = RolloutEnd(StopReason.CANCELLED, status=Status.CANCELLED)
EPISODE_ABORTED = RolloutEnd(StopReason.EPISODE_ABORTED, status=Status.CANCELLED)


def end_at_limit(reason: StopReason) -> RolloutEnd:
    """The end of a rollout that reached a limit."""
    return RolloutEnd(reason, by_limit=True)


def end_for_failure(failure: Failure) -> RolloutEnd:
    """The end of a rollout in which a layer failed."""
    return RolloutEnd(StopReason.ERROR, status=Status.ERROR, error=failure)
