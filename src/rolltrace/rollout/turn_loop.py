"""Plays one env with one policy, and records it however the play ends."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from rolltrace.cancellation import cancellation_requested
from rolltrace.envs.env import STEP_MAP_FIELDS, Env, Observation, StepResult
from rolltrace.envs.tools import parse_error_of
from rolltrace.errors import ContextOverflowError, EnvError, LimitReachedError
from rolltrace.policies.policy import Policy, Request
from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.contract import validate_first_observation, validate_observation, validate_step_result
from rolltrace.rollout.hooks import Turn
from rolltrace.rollout.rollout_end import (
    COMPLETED,
    ENV_LAYER,
    HOOK_LAYER,
    TRUNCATED,
    LayerError,
    RolloutEnd,
    end_at_limit,
    end_for_failure,
)
from rolltrace.rollout.sampler import PromptState, SampledTurn, Sampler, TokenBudget
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.rollout_clock import RolloutClock
from rolltrace.seeds import derive_member_seed, derive_seed
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.message import Message
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Layer, StoppedBy, StopReason, Termination

CORRECTION = (
    "None of your tool calls could be read: {errors}. "
    "Call a tool again, with the arguments as one valid JSON object, or answer without a tool."
)


_EMPTY_RESULT = StepResult(0.0, done=False)


class TurnLoop:
    """Alternates between a policy and an env until the rollout ends.

    What the env returns is frozen before anything else happens, so the prompt of each step is a snapshot from before
    the step. However the play ends, the rollout builder has everything that happened until then.
    """

    __slots__ = (
        "_budget", "_hooks", "_limits", "_over", "_parse_failures", "_prompt", "_role", "_step", "clock", "env",
        "identity", "recorder", "rollout_builder", "sampler", "seed",
    )  # fmt: skip

    def __init__(
        self, env: Env, rollout_builder: RolloutBuilder, settings: RunnerSettings, policy: Policy, role: str
    ) -> None:
        self.env = env
        self.rollout_builder = rollout_builder
        self.identity = identity = rollout_builder.header.identity
        self.seed = derive_member_seed(
            settings.seed, identity.split, identity.iteration, identity.group, identity.index, identity.attempt
        )
        self.clock = RolloutClock()
        self.sampler = Sampler(policy, rollout_builder, settings.request_slots, self.clock)
        self.recorder = StepRecorder(env, rollout_builder)
        self._prompt = PromptState(rollout_builder, settings.sampling)
        self._budget = TokenBudget(settings.limits, policy)
        self._limits = settings.limits
        self._hooks = settings.hooks
        self._role = role
        self._step = 0
        self._parse_failures = 0
        self._over = False

    async def play(self) -> RolloutEnd:
        """Play to an end. The only exceptions are cancellation and those that stop the whole process."""
        try:
            stop = await self._play_with_timeout()
        finally:
            self._over = True
            self.clock.stop()
        if cancellation_requested():  # as in `_run_turns`; not that of the time-out, which is undone by now
            raise asyncio.CancelledError
        self.recorder.set_env_failure(stop)
        return stop

    def current_step(self) -> int | None:
        """The step that is being played; None once the play is over."""
        return None if self._over else self._step

    async def _play_with_timeout(self) -> RolloutEnd:
        try:
            if self._limits.timeout is None:
                return await self._run_turns()
            async with self.clock.start(self._limits.timeout):
                return await self._run_turns()
        except TimeoutError:  # only our own: one of a policy or env arrives as a LayerError
            return end_at_limit(StopReason.TIMEOUT)
        except LayerError as error:
            failure = error.failure
            if self.clock.has_expired:
                self.rollout_builder.add_note(
                    "", f"the {failure.layer} answered the time-out with {failure.type}: {failure.message}"
                )
                return end_at_limit(StopReason.TIMEOUT)
            return end_for_failure(failure)
        except Exception as error:  # noqa: BLE001 - after a bug of the runner the rollout is recorded too
            return end_for_failure(failure_of(Layer.RUNNER, error))

    async def _run_turns(self) -> RolloutEnd:
        with ENV_LAYER:
            value = await require_awaitable(self.env.initial_observation(), self.env, "initial_observation")
            first = validate_first_observation(value, self.env)
        if isinstance(first, StepResult):
            return self._end_before_first_turn(first)
        self._prompt.add(first)
        while True:
            if (stop := self._check_time_and_turns()) is not None:
                return stop
            if self._hooks.before_turn is not None:
                await self._let_hook_add_messages()
            request = self._request()
            if (limit := self._budget.reached_limit(request)) is not None:
                return self._overflow() if limit is StopReason.CONTEXT_OVERFLOW else end_at_limit(limit)
            try:
                sampled = await self.sampler.sample(request)
            except ContextOverflowError:
                return self._overflow()
            except LimitReachedError as reached:
                return end_at_limit(StopReason(reached.stop_reason))
            self._budget.count(sampled.completion.usage)
            if (stop := await self._after_sampling(sampled)) is not None:
                return stop
            self._step += 1
            await asyncio.sleep(0)  # so that a cancellation arrives even if the policy never waits
            if cancellation_requested() and not self.clock.is_late():  # an env or policy has swallowed it
                raise asyncio.CancelledError

    def _end_before_first_turn(self, result: StepResult) -> RolloutEnd:
        """The end of a rollout in which the policy has no turn."""
        if result.observation is not None:
            self._prompt.add(result.observation)
        self.rollout_builder.end_before_first_turn(
            reward=result.reward, **{name: getattr(result, name) for name in STEP_MAP_FIELDS}
        )
        has_reason = result.stop_reason is not None
        reason = str(result.stop_reason) if has_reason else StopReason.COMPLETED
        return RolloutEnd(reason, StoppedBy.ENV, reason_from_env=has_reason, reward=result.reward)

    # Before sampling: wall clock, turns, messages added by hooks, context, total tokens, sampled tokens

    def _check_time_and_turns(self) -> RolloutEnd | None:
        if self.clock.is_late():
            return end_at_limit(StopReason.TIMEOUT)
        if self._limits.max_turns is not None and self._step >= self._limits.max_turns:
            return end_at_limit(StopReason.MAX_TURNS)
        return None

    async def _let_hook_add_messages(self) -> None:
        added = await self._hooks.call("before_turn", Turn(self.identity, self._step, self.rollout_builder.prompt))
        if added is None:
            return
        with HOOK_LAYER:
            if not isinstance(added, list | tuple):
                raise TypeError(f"Expected before_turn to return a list of messages or None, got {describe(added)}.")
            messages = [as_message(message, "before_turn", self.rollout_builder.notes) for message in added]
        if not await self._insert_messages(messages):
            with HOOK_LAYER:
                raise EnvError(
                    f"{type(self.env).__name__} accepts no messages from a hook: implement its `observe`, "
                    "or return None from `before_turn`."
                )

    async def _insert_messages(self, messages: Sequence[Message]) -> bool:
        """Add messages to the conversation through the env's `observe`; False if the env does not accept any."""
        with ENV_LAYER:
            value = await require_awaitable(self.env.observe(messages), self.env, "observe")
            if value is None:
                return False
            observation = validate_observation(value, self.env, "observe")
        self._prompt.insert(observation)
        return True

    def _request(self) -> Request:
        return Request(
            messages=self.rollout_builder.prompt,
            tools=self._prompt.tools,
            sampling=self._prompt.sampling,
            seed=derive_seed(self.seed, self._step),
            identity=self.identity,
            step=self._step,
            role=self._role,
            include_tokens=self.rollout_builder.keeps_tokens,
        )

    def _overflow(self) -> RolloutEnd:
        stop = end_at_limit(StopReason.CONTEXT_OVERFLOW)
        reward = self._limits.overflow_reward
        if reward is None:
            return stop
        if not self.rollout_builder.rewards:
            return replace(stop, reward=reward)
        self.rollout_builder.replace_last_reward(reward)
        return stop

    # After sampling: length, then the env

    async def _after_sampling(self, sampled: SampledTurn) -> RolloutEnd | None:
        completion = sampled.completion
        if not self.env.takes_any_completion:
            if completion.termination is Termination.LENGTH:
                return await self._handle_truncation(sampled)
            if completion.termination is Termination.MALFORMED:
                sampled.parse_error = sampled.parse_error or "the response has no end of turn, or could not be read"
                self.recorder.record(sampled, self._limits.malformed_reward)
                return RolloutEnd(StopReason.PARSE_ERROR)
            if calls := completion.message.tool_calls:
                errors = [error for call in calls if (error := parse_error_of(call))]
                if errors:
                    sampled.parse_error = "; ".join(errors)
                if len(errors) == len(calls):
                    return await self._handle_parse_error(sampled)
        self._parse_failures = 0
        return await self._step_env(sampled)

    async def _handle_truncation(self, sampled: SampledTurn) -> RolloutEnd | None:
        self.recorder.record(sampled, self._limits.truncation_reward)
        if self._limits.continue_after_truncation and await self._insert_turn([sampled.completion.message]):
            return None
        return end_at_limit(StopReason.MAX_TOKENS)

    async def _handle_parse_error(self, sampled: SampledTurn) -> RolloutEnd | None:
        self._parse_failures += 1
        self.recorder.record(sampled, self._limits.parse_error_reward)
        is_last_turn = self._limits.max_turns is not None and self._step + 1 >= self._limits.max_turns
        if self._parse_failures <= self._limits.max_parse_retries and not is_last_turn:
            message = sampled.completion.message
            if await self._insert_turn([message, *_correction(message, sampled.parse_error or "")]):
                return None
            allowed = f"max_parse_retries={self._limits.max_parse_retries} allows a correction"
            self.rollout_builder.add_note(
                "", f"{allowed}, but `observe` of {type(self.env).__name__} did not accept it"
            )
        return RolloutEnd(StopReason.PARSE_ERROR)

    async def _insert_turn(self, messages: Sequence[Message]) -> bool:
        """Add the recorded turn to the conversation; if the env fails at it, the step is marked as unfinished."""
        try:
            return await self._insert_messages(messages)
        except BaseException:
            self.recorder.mark_unfinished()
            raise

    async def _step_env(self, sampled: SampledTurn) -> RolloutEnd | None:
        completion = sampled.completion
        try:
            with ENV_LAYER:
                result = validate_step_result(
                    await require_awaitable(self.env.step(completion), self.env, "step"), self.env
                )
        except BaseException:
            observation = self.recorder.record_unfinished(sampled)
            if observation is not None:
                self._prompt.add(observation)
            raise
        self.recorder.record(sampled, result.reward, result.reward, result)
        if result.observation is not None:
            self._prompt.add(result.observation)
        if self._hooks.after_step is not None:
            turn = Turn(self.identity, self._step, sampled.request.messages)
            await self._hooks.call("after_step", turn, completion, result)
        if not result.done:
            return None
        if result.stop_reason is not None:
            return RolloutEnd(str(result.stop_reason), StoppedBy.ENV, reason_from_env=True)
        return TRUNCATED if completion.termination is Termination.LENGTH else COMPLETED


class StepRecorder(msgspec.Struct):
    """Records the steps of one rollout, also one that the env does not finish."""

    _env: Env
    _rollout_builder: RolloutBuilder
    _last_step_unfinished: bool = False

    def record(
        self,
        sampled: SampledTurn,
        reward: float,
        env_reward: float | None = None,
        result: StepResult = _EMPTY_RESULT,
    ) -> None:
        """Add a step. Without `env_reward`, the env was not asked or failed, and the runner chose the reward."""
        completion = sampled.completion
        raw = completion.raw
        version = completion.policy_version
        self._rollout_builder.step(
            completion.message,
            reward=reward,
            env_reward=env_reward,
            reward_data=result.reward_data,
            env_state=result.env_state,
            extra=result.extra,
            metrics=result.metrics,
            logs=result.logs,
            tools=sampled.request.tools,
            sampling=sampled.request.sampling,
            termination=completion.termination,
            parse_error=sampled.parse_error,
            raw=None if raw == completion.message.content else raw,
            policy_version=sampled.policy_version if version is None else version,
            usage=completion.usage,
            seconds=sampled.seconds,
            tokens=completion.tokens,
        )

    def record_unfinished(self, sampled: SampledTurn) -> Observation | None:
        """Add a step that the env did not finish, and return what the env shows of it."""
        result = self._unfinished_step()
        self.record(sampled, 0.0, None, result)
        self._last_step_unfinished = True
        return result.observation

    def mark_unfinished(self) -> None:
        """Note that the env did not finish the turn of the last recorded step."""
        self._last_step_unfinished = True

    def set_env_failure(self, stop: RolloutEnd) -> None:
        """Record why the env did not finish the last step, if it did not. Only the end of the rollout says why."""
        if self._last_step_unfinished:
            self._last_step_unfinished = False
            self._rollout_builder.set_env_failure(stop.env_failure)

    def _unfinished_step(self) -> StepResult:
        env = type(self._env).__name__
        try:
            value = self._env.unfinished_step()
            result = _EMPTY_RESULT if value is None else validate_step_result(value, self._env, "unfinished_step")
        except Exception as error:  # noqa: BLE001 - the turn is recorded whatever the env does
            failure = failure_of(Layer.ENV, error)
            self._rollout_builder.add_note("", f"unfinished_step of {env} raised {failure.type}: {failure.message}")
            return _EMPTY_RESULT
        if result.reward:
            self._rollout_builder.add_note(
                "", f"unfinished_step of {env} gave the reward {result.reward}, which does not count"
            )
        return result


def _correction(message: Message, parse_error: str) -> list[Message]:
    """Messages that ask the policy to correct its tool calls. Servers require a reply to each call that has an id."""
    replies = [
        Message("tool", parse_error_of(call) or parse_error, tool_call_id=call.id, name=call.name or None)
        for call in message.tool_calls
        if call.id is not None
    ]
    return [*replies, Message("user", CORRECTION.format(errors=parse_error))]
