"""One rollout from its draft to its line: played, closed, graded and written, whatever happens."""

import asyncio
import logging

import msgspec

from rolltrace.envs.base import Env, EnvGroupBuilder
from rolltrace.rollout.blame import BLAME_GRADER, BLAME_HOOK, BlamedError, failure_of
from rolltrace.rollout.contract import awaitable, checked_grade
from rolltrace.rollout.player import Player
from rolltrace.rollout.settings import Settings, Stop, stop_for_failure
from rolltrace.trace.codec import utc_now
from rolltrace.trace.draft import Draft
from rolltrace.trace.outcome import Status, StoppedBy, StopReason
from rolltrace.trace.rollout import Failure, Grade, Outcome, Rollout

log = logging.getLogger(__name__)


class Played(msgspec.Struct):
    """A rollout that has ended and is recorded."""

    id: str
    index: int
    attempt: int
    status: Status
    stop_reason: str
    reward: float | None
    """The final total, the group's grade included; None where there is none."""
    reward_so_far: float
    error: Failure | None
    stop: Stop
    draft: Draft
    outcome: Outcome

    @property
    def rollout(self) -> Rollout:
        """The record, decoded afresh."""
        return self.draft.rollout(self.outcome)


class Seat:
    """Plays one env of an episode and sees to it that exactly one line is written."""

    def __init__(self, draft: Draft, builder: EnvGroupBuilder, settings: Settings) -> None:
        self.draft = draft
        self.aborted = False
        """Set before its task is cancelled because another seat failed."""
        self._builder = builder
        self._settings = settings

    async def play(self, env: Env) -> Played:
        """Play to an end and record it; what is no failure of the rollout is raised again after that."""
        closed = False
        try:
            stop = await Player(env, self.draft, self._settings).play()
            closed = True
            await self._close(env)
            return self.record(await self._judge(stop))
        except BaseException:
            if not closed:
                await self._close_quietly(env)
            if self.aborted:
                return self.record(Stop(StopReason.EPISODE_ABORTED, status=Status.CANCELLED))
            self.record_cancelled()
            raise

    def record_cancelled(self) -> Played:
        """Record that the rollout was cancelled."""
        return self.record(Stop(StopReason.CANCELLED, status=Status.CANCELLED))

    def record(self, stop: Stop) -> Played:
        """Write the line."""
        outcome = self._outcome(stop)
        header = self.draft.header
        try:
            self._settings.sink.write(self.draft.finish(outcome))
        except Exception:
            # A sink must not raise; one that does loses its record, not the rollout.
            log.exception("The sink failed to take rollout %s", header.id)
        return Played(
            header.id,
            header.index,
            header.attempt,
            outcome["status"],
            outcome["stop_reason"],
            outcome["reward"],
            outcome["reward_so_far"],
            outcome["error"],
            stop,
            self.draft,
            outcome,
        )

    def _outcome(self, stop: Stop) -> Outcome:
        rewards = self.draft.rewards
        limits = self._settings.limits
        so_far = float(sum(rewards))
        if not rewards and stop.reason == StopReason.CONTEXT_OVERFLOW:
            so_far = limits.overflow_reward
        if self.draft.grade is not None:
            so_far += self.draft.grade.reward
        known = stop.status is Status.OK and not self._builder.grades_groups
        total, unclamped = clamp(so_far, stop, limits.zero_reward_on_limit) if known else (None, None)
        return Outcome(
            ended_at=utc_now(),
            status=stop.status,
            stop_reason=stop.reason,
            stopped_by=stop.by,
            error=stop.error,
            reward=total,
            reward_so_far=so_far,
            unclamped_reward=unclamped,
        )

    async def _judge(self, stop: Stop) -> Stop:
        """Let hook and grader have their say; a failure of either is the rollout's."""
        hooks = self._settings.hooks
        grader = self._builder.grader
        try:
            if hooks.on_stop is not None:
                with BLAME_HOOK:
                    stop = self._named(stop, await hooks.on_stop(self.draft.rollout(self._outcome(stop))))
            if grader is not None and stop.graded:
                rollout = self.draft.rollout(self._outcome(stop))
                with BLAME_GRADER:
                    answer = await awaitable(grader.grade(rollout), grader, "grade")
                    grade = checked_grade(answer, f"grader {type(grader).__name__}")
                self.draft.grade = grade
                await self._show(rollout, grade)
        except BlamedError as blamed:
            self.draft.note("", f"played to an end ({stop.reason}, by {stop.by}) before the {blamed.layer} failed")
            return stop_for_failure(failure_of(blamed.layer, blamed.cause))
        return stop

    async def _show(self, rollout: Rollout, grade: Grade) -> None:
        if self._settings.hooks.on_grade is not None:
            with BLAME_HOOK:
                await self._settings.hooks.on_grade(rollout, grade)

    def _named(self, stop: Stop, name: str | None) -> Stop:
        """The stop under the name that a hook gave it, where the env brought it about and gave none."""
        if name is None or stop.named_by_env or stop.by is not StoppedBy.ENV:
            return stop
        return Stop(str(name), stop.by, stop.status, stop.error, stop.by_limit)

    async def _close(self, env: Env) -> None:
        """Close the env; what goes wrong there is a note and takes no reward away."""
        if type(env).close is Env.close:
            return
        seconds = self._settings.limits.close_seconds
        clock = asyncio.timeout(seconds)
        try:
            async with clock:
                await env.close()
        except Exception as error:  # noqa: BLE001 - anything at all is only a note
            late = isinstance(error, TimeoutError) and clock.expired()
            what = f"did not end within {seconds} s" if late else f"raised {type(error).__name__}: {error}"
            self.draft.note("", f"close of {type(env).__name__} {what}")

    async def _close_quietly(self, env: Env) -> None:
        """Close on the way out of a cancellation; a second one is not to keep the record from being written."""
        try:
            await self._close(env)
        except BaseException as error:  # noqa: BLE001 - the caller raises the first one again
            self.draft.note("", f"close of {type(env).__name__} was interrupted by {type(error).__name__}")


def clamp(total: float, stop: Stop, zero_on_limit: bool) -> tuple[float, float | None]:
    """The total, at most 0 where a limit says so, and what it was before."""
    if zero_on_limit and stop.by_limit and total > 0:
        return 0.0, total
    return total, None
