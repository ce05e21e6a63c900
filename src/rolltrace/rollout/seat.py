"""One rollout from its draft to its line: played, closed, graded and written, whatever happens."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from rolltrace.cancellation import is_being_cancelled
from rolltrace.envs.base import Env, EnvGroupBuilder
from rolltrace.errors import InputError
from rolltrace.policies.asking import Asker, Asking
from rolltrace.policies.base import Policy
from rolltrace.policies.contract import awaitable
from rolltrace.rollout.blame import BLAME_GRADER, BLAME_HOOK, BlamedError
from rolltrace.rollout.closing import close_within
from rolltrace.rollout.contract import check_parse_retries, checked_grade
from rolltrace.rollout.player import Player
from rolltrace.rollout.settings import Settings
from rolltrace.rollout.stop import ABORTED, CANCELLED, Stop, stop_for_failure
from rolltrace.trace.codec import decode_score, encode_score, utc_now
from rolltrace.trace.draft import Draft
from rolltrace.trace.failure import failure_of
from rolltrace.trace.outcome import Layer, Status, StoppedBy
from rolltrace.trace.rollout import Failure, Grade, Outcome, Rollout, Score, latest_reward
from rolltrace.waiting import Pausing

log = logging.getLogger(__name__)


class Played(msgspec.Struct):
    """A rollout that has ended and is recorded."""

    draft: Draft
    stop: Stop
    outcome: Outcome
    told: list[Score] = msgspec.field(default_factory=list)
    """Late facts about it, in the order in which they were handed to the sink."""
    grade_failure: Failure | None = None
    """Why the group's grade is missing, where it is."""

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self.draft.header.id

    @property
    def index(self) -> int:
        """Its place in the group."""
        return self.draft.header.index

    @property
    def attempt(self) -> int:
        """How many plays of the same episode failed before."""
        return self.draft.header.attempt

    @property
    def status(self) -> Status:
        """Whether it has a reward that means something."""
        return self.stop.status

    @property
    def stop_reason(self) -> str:
        """Why it ended."""
        return self.stop.reason

    @property
    def error(self) -> Failure | None:
        """What failed, if anything did."""
        return self.stop.error

    @property
    def reward_so_far(self) -> float:
        """The sum of the step rewards and its own grade."""
        return self.outcome["reward_so_far"]

    @property
    def reward(self) -> float | None:
        """The total as it stands now, the group's grade included; None if the rollout has no reward."""
        latest = latest_reward(self.told)
        return self.line_reward if latest is None else latest.value

    @property
    def line_reward(self) -> float | None:
        """The total known when it ended; None while the group's grade is pending."""
        return self.outcome["reward"]

    @property
    def group_grade(self) -> Grade | None:
        """What the group's grader said of it; None where there is no such grade."""
        return self.rollout.group_grade

    @property
    def scores(self) -> tuple[Score, ...]:
        """Late facts about it, in order, as they are read back from the run."""
        return tuple(decode_score(encode_score(score, quotes=False)) for score in self.told)

    @property
    def rollout(self) -> Rollout:
        """The record with its late facts, decoded afresh."""
        return self.draft.rollout(self.outcome).with_scores(self.scores)


class Seat:
    """Plays one env of an episode and sees to it that exactly one line is written."""

    def __init__(
        self,
        draft: Draft,
        role: str,
        policy: Policy,
        builder: EnvGroupBuilder,
        settings: Settings,
        on_record: Callable[[Played], None],
    ) -> None:
        self.draft = draft
        self.aborted = False
        """Set before its task is cancelled because another seat ended the game for all."""
        self.left_early = False
        """Whether it will not move again though its env is not done; a grader that fails later changes nothing."""
        self._role = role
        self._policy = policy
        self._builder = builder
        self._settings = settings
        self._on_record = on_record
        self._played: Played | None = None
        settings.open_seats.add(self)

    @property
    def played(self) -> Played | None:
        """The rollout once it is recorded."""
        return self._played

    async def play(self, env: Env) -> Played:
        """Play to an end and record it; what is no failure of the rollout is raised again after that."""
        player = Player(env, self.draft, self._settings, self._policy, self._role)
        with Asking(lambda: self._asker(player)), Pausing(player.clock_stopped):
            return await self._play(player, env)

    def _asker(self, player: Player) -> Asker:
        return Asker(
            self._settings.roles,
            self.draft.calls,
            identity=player.identity,
            seed=player.seed,
            step=player.current_step,
            enter=player.pass_gate,
            leave=self._settings.gate.release,
            notes=self.draft.notes,
        )

    async def _play(self, player: Player, env: Env) -> Played:
        closed = False
        stop: Stop | None = None
        try:
            check_parse_retries(env, self._settings.limits)
            stop = await player.play()
            self.left_early = stop.status is not Status.OK or stop.by is StoppedBy.RUNNER
            closed = True
            await self._close(env)
            stop = await self._judge(stop)
            if is_being_cancelled():  # whoever it was that swallowed it
                raise asyncio.CancelledError
            return self.record(stop)
        except BaseException as error:
            if not closed:
                await self._close_quietly(env)
            if stop is not None and stop.error is not None:
                self.draft.note("", f"before that the {_summary(stop.error)}")
            player.mark_unfinished_step(ABORTED if self.aborted else CANCELLED)
            if self.aborted:
                return self.record(ABORTED)
            refused = isinstance(error, InputError)  # the settings do not fit the env: the caller must change them
            self.record(stop_for_failure(failure_of(Layer.RUNNER, error)) if refused else CANCELLED)
            raise

    def record(self, stop: Stop) -> Played:
        """Write the line, once."""
        if self._played is None:
            self._played = Played(self.draft, stop, self._outcome(stop))
            self._on_record(self._played)
        elif self not in self._settings.open_seats:  # else a signal handler has interrupted this method
            return self._played
        try:
            self._settings.sink.end(self.draft, self._played.outcome)
        except Exception:
            # A sink must not raise; one that does loses its record, not the rollout.
            log.exception("The sink failed to take rollout %s", self.draft.id)
        self._settings.open_seats.discard(self)
        return self._played

    def _outcome(self, stop: Stop) -> Outcome:
        rewards = self.draft.rewards
        limits = self._settings.limits
        so_far = float(sum(rewards)) + stop.reward
        if self.draft.grade is not None:
            so_far += self.draft.grade.reward
        known = stop.status is Status.OK and not self._builder.grades_groups
        total, unclamped = stop.clamp(so_far, limits.zero_reward_on_limit) if known else (None, None)
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
                    named = await awaitable(hooks.on_stop(self._rollout(stop)), hooks, "on_stop")
                stop = _named(stop, named)
            if grader is not None and stop.graded:
                rollout = self._rollout(stop)
                with BLAME_GRADER:
                    answer = await awaitable(grader.grade(rollout), grader, "grade")
                    grade = checked_grade(answer, f"grader {type(grader).__name__}")
                self.draft.grade = grade
                await self._show(rollout, grade)
        except BlamedError as blamed:
            failure = failure_of(blamed.layer, blamed.cause)
            if stop.error is not None:  # the first failure is the one that counts
                self.draft.note("", f"after that the {_summary(failure)}")
                return stop
            self.draft.note("", f"played to an end ({stop.reason}, by {stop.by}) before the {failure.layer} failed")
            return stop_for_failure(failure)
        return stop

    def _rollout(self, stop: Stop) -> Rollout:
        return self.draft.rollout(self._outcome(stop))

    async def _show(self, rollout: Rollout, grade: Grade) -> None:
        hooks = self._settings.hooks
        if hooks.on_grade is not None:
            with BLAME_HOOK:
                await awaitable(hooks.on_grade(rollout, grade), hooks, "on_grade")

    async def _close(self, env: Env) -> None:
        """Close the env; what goes wrong there is a note."""
        if type(env).close is Env.close:
            return
        error = await close_within(self._settings.limits.close_timeout, env.close, env)
        if error is not None:
            self.draft.note("", f"close of {type(env).__name__} raised {type(error).__name__}: {error}")

    async def _close_quietly(self, env: Env) -> None:
        """Close on the way out of a cancellation; a second one is not to keep the record from being written."""
        try:
            await self._close(env)
        except BaseException as error:  # noqa: BLE001 - the caller raises the first one again
            self.draft.note("", f"close of {type(env).__name__} was interrupted by {type(error).__name__}")


def _summary(failure: Failure) -> str:
    return f"{failure.layer} failed: {failure.type}: {failure.message}"


def _named(stop: Stop, name: str | None) -> Stop:
    """The stop under the name that a hook gave it, where the env brought it about and gave none."""
    if name is None or stop.named_by_env or stop.by is not StoppedBy.ENV:
        return stop
    return msgspec.structs.replace(stop, reason=str(name))
