"""Plays one env with one policy, and records it on every way out."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from rolltrace.cancellation import cancellation_requested
from rolltrace.envs.env import STEP_MAP_FIELDS, Env, Observation, StepResult
from rolltrace.envs.tools import parse_error_of
from rolltrace.errors import ContextOverflowError, EnvError, PolicyError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.validation import coerce_completion, require_awaitable, validate_token_count
from rolltrace.rollout.contract import validate_first_observation, validate_observation, validate_step_result
from rolltrace.rollout.error_layer import ENV_LAYER, HOOK_LAYER, POLICY_LAYER, LayerError
from rolltrace.rollout.hooks import BeforeTurn, Turn
from rolltrace.rollout.rollout_end import RolloutEnd, end_at_limit, end_for_failure
from rolltrace.rollout.settings import RunnerSettings
from rolltrace.seeds import derive_seed
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import Note, describe
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Usage
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Layer, StoppedBy, StopReason, Termination

CORRECTION = (
    "None of your tool calls could be read: {errors}. "
    "Call a tool again, with the arguments as one valid JSON object, or answer without a tool."
)


_EMPTY_RESULT = StepResult(0.0, done=False)


class TurnLoop:
    """Takes turns between a policy and an env until one of the ways out is reached.

    Whatever the env returns is frozen before anything else happens, so the prompt of each step is a snapshot from
    before the step; whatever ends the play, the draft holds all that happened until then.
    """

    def __init__(
        self, env: Env, rollout_builder: RolloutBuilder, settings: RunnerSettings, policy: Policy, role: str
    ) -> None:
        self.env = env
        self.rollout_builder = rollout_builder
        self.identity = rollout_builder.header.identity
        self._role = role
        self._policy = policy
        self._limits = settings.limits
        self._hooks = settings.hooks
        self._gate = settings.request_slots
        self._freezer = ConversionCache(rollout_builder.notes)
        self._base_sampling = self._sampling = settings.sampling
        self._tools: tuple[ToolSpec, ...] = ()
        self._step = 0
        self.policy_version: int | str | None = None
        """The policy's version when it was last asked: it may change before the answer comes."""
        self._last_step_unfinished = False
        """Whether the env has not finished the turn of the last step."""
        self._parse_failures = 0
        self._total_tokens = 0
        self._sampled_tokens = 0
        self._deadline: float | None = None
        self._clock: asyncio.Timeout | None = None
        self._waiting = 0
        self._clock_stopped_at = 0.0
        self._over = False
        identity = self.identity
        self.seed = derive_seed(
            settings.seed, identity.split, identity.iteration, identity.group, identity.index, identity.attempt
        )

    async def play(self) -> RolloutEnd:
        """Play to an end. Only cancellation, and what stops the whole process, comes out as an exception."""
        try:
            stop = await self._play_with_timeout()
        finally:
            self._over, self._clock = True, None
        if cancellation_requested():  # as in `_run_turns`; what the time-out asked for is behind us
            raise asyncio.CancelledError
        self.mark_unfinished_step(stop)
        return stop

    def mark_unfinished_step(self, stop: RolloutEnd) -> None:
        """Record why the env did not finish the last turn, if it did not: only the end of the rollout tells."""
        if self._last_step_unfinished:
            self._last_step_unfinished = False
            self.rollout_builder.set_env_failure(stop.env_failure)

    def current_step(self) -> int | None:
        """The step that is being played; None once the play is over."""
        return None if self._over else self._step

    async def _play_with_timeout(self) -> RolloutEnd:
        seconds = self._limits.timeout
        try:
            if seconds is None:
                return await self._run_turns()
            self._deadline = asyncio.get_running_loop().time() + seconds
            self._clock = asyncio.timeout_at(self._deadline)
            async with self._clock:
                return await self._run_turns()
        except TimeoutError:  # only ours: a layer's own time-outs arrive blamed
            return end_at_limit(StopReason.TIMEOUT)
        except LayerError as blamed:
            if self._clock is not None and self._clock.expired():
                what = failure_of(blamed.layer, blamed.cause)
                self.rollout_builder.add_note(
                    "", f"the {what.layer} answered the time-out with {what.type}: {what.message}"
                )
                return end_at_limit(StopReason.TIMEOUT)
            return end_for_failure(failure_of(blamed.layer, blamed.cause))
        except Exception as error:  # noqa: BLE001 - a bug of ours is a failed rollout too, and not a lost one
            return end_for_failure(failure_of(Layer.RUNNER, error))

    async def _run_turns(self) -> RolloutEnd:
        with ENV_LAYER:
            given = await require_awaitable(self.env.initial_observation(), self.env, "initial_observation")
            start = validate_first_observation(given, self.env)
        if isinstance(start, StepResult):
            return self._end_before_first_turn(start)
        self._take_in(start)
        while True:
            if (stop := self._time_limits()) is not None:
                return stop
            if self._hooks.before_turn is not None:
                await self._let_hook_add_messages(self._hooks.before_turn)
            request = self._request()
            if (stop := self._token_limits(request)) is not None:
                return stop
            try:
                completion, seconds = await self._sample(request)
            except ContextOverflowError:
                return self._overflow()
            stop = await self._after_sampling(request, completion, seconds)
            if stop is not None:
                return stop
            self._step += 1
            await asyncio.sleep(0)  # a policy that never waits must not keep a cancellation from being heard
            if cancellation_requested() and not self._is_late():  # an env or policy has swallowed it
                raise asyncio.CancelledError

    def _end_before_first_turn(self, result: StepResult) -> RolloutEnd:
        """The end of a rollout in which the policy has no turn."""
        if result.observation is not None:
            self._take_in(result.observation)
        self.rollout_builder.set_no_turn_result(
            reward=result.reward, **{name: getattr(result, name) for name in STEP_MAP_FIELDS}
        )
        named = result.stop_reason is not None
        reason = str(result.stop_reason) if named else StopReason.COMPLETED
        return RolloutEnd(reason, StoppedBy.ENV, reason_from_env=named, reward=result.reward)

    # Before sampling: wall clock, turns, messages added by hooks, context, total tokens, sampled tokens

    def _time_limits(self) -> RolloutEnd | None:
        if self._is_late():
            return end_at_limit(StopReason.TIMEOUT)
        if self._limits.max_turns is not None and self._step >= self._limits.max_turns:
            return end_at_limit(StopReason.MAX_TURNS)
        return None

    def _is_late(self) -> bool:
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    async def _let_hook_add_messages(self, hook: BeforeTurn) -> None:
        with HOOK_LAYER:
            turn = Turn(self.identity, self._step, self.rollout_builder.prompt)
            added = await require_awaitable(hook(turn), self._hooks, "before_turn")
            if added is None:
                return
            if not isinstance(added, list | tuple):
                raise TypeError(f"Expected before_turn to return a list of messages or None, got {describe(added)}.")
            messages = [as_message(message, "before_turn", self.rollout_builder.notes) for message in added]
        if not await self._put_in(messages):
            with HOOK_LAYER:
                raise EnvError(
                    f"{type(self.env).__name__} takes no messages from a hook: implement its `observe`, "
                    "or return None from `before_turn`."
                )

    async def _put_in(self, messages: Sequence[Message]) -> bool:
        """Put messages into the conversation, if the env takes them."""
        with ENV_LAYER:
            answer = await require_awaitable(self.env.observe(messages), self.env, "observe")
            if answer is None:
                return False
            observation = validate_observation(answer, self.env, "observe")
        self._set_offers(observation)
        added = self._freezer.convert(observation.messages)
        self.rollout_builder.replace(added if observation.replaces_history else [*self.rollout_builder.prompt, *added])
        return True

    def _request(self) -> Request:
        return Request(
            messages=self.rollout_builder.prompt,
            tools=self._tools,
            sampling=self._sampling,
            seed=derive_seed(self.seed, self._step),
            identity=self.identity,
            step=self._step,
            role=self._role,
            include_tokens=self.rollout_builder.keeps_tokens,
        )

    def _token_limits(self, request: Request) -> RolloutEnd | None:
        limits = self._limits
        context = self._policy.context_length if limits.context_length is None else limits.context_length
        prompt_tokens: int | None = None
        if context is not None or limits.max_total_tokens is not None:
            with POLICY_LAYER:
                prompt_tokens = validate_token_count(self._policy.count_tokens(request), self._policy)
        if context is not None and prompt_tokens is not None and prompt_tokens + self._reserve() > context:
            return self._overflow()
        if limits.max_total_tokens is not None and (
            self._total_tokens + (prompt_tokens or 0) >= limits.max_total_tokens
        ):
            return end_at_limit(StopReason.MAX_TOTAL_TOKENS)
        if limits.max_sampled_tokens is not None and self._sampled_tokens >= limits.max_sampled_tokens:
            return end_at_limit(StopReason.MAX_SAMPLED_TOKENS)
        return None

    def _reserve(self) -> int:
        if self._limits.generation_reserve is not None:
            return self._limits.generation_reserve
        return self._sampling.max_tokens or 1

    def _overflow(self) -> RolloutEnd:
        stop = end_at_limit(StopReason.CONTEXT_OVERFLOW)
        reward = self._limits.overflow_reward
        if reward is None:
            return stop
        if not self.rollout_builder.rewards:
            return replace(stop, reward=reward)
        self.rollout_builder.replace_last_reward(reward)
        return stop

    # Sampling

    async def _sample(self, request: Request) -> tuple[Completion, float]:
        self.rollout_builder.mark_prompt_sent()
        await self.pass_gate()
        try:
            started = time.perf_counter()
            self.policy_version = self._policy.version
            try:
                with POLICY_LAYER:
                    answer = await require_awaitable(self._policy.complete(request), self._policy, "complete")
                    seconds = time.perf_counter() - started
                    self.rollout_builder.set_raw_response(_raw_of(answer))
                    completion = coerce_completion(answer, self._policy, self.rollout_builder.notes)
            except LayerError as blamed:
                if isinstance(blamed.cause, PolicyError) and blamed.cause.raw is not None:
                    self.rollout_builder.set_raw_response(blamed.cause.raw)
                if isinstance(blamed.cause, ContextOverflowError):
                    raise blamed.cause from blamed
                raise
        finally:
            self._gate.release()
        self._count(completion.usage)
        return completion, seconds

    async def pass_gate(self) -> None:
        """Wait for a place among the requests in flight. That wait is not the rollout's."""
        if self._clock is None or not self._gate.locked():
            await self._gate.acquire()
            return
        with self.clock_stopped():
            await self._gate.acquire()

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """A block in which the rollout's clock stands still, as long as it is in any such block."""
        if self._clock is None or self._deadline is None or self._clock.expired():
            yield
            return
        loop = asyncio.get_running_loop()
        if self._waiting == 0:
            self._clock_stopped_at = loop.time()
            self._clock.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._start_clock_again(loop.time() - self._clock_stopped_at)

    def _start_clock_again(self, stood_still: float) -> None:
        if self._clock is not None and self._deadline is not None and not self._clock.expired():
            self._deadline += stood_still
            self._clock.reschedule(self._deadline)

    def _count(self, usage: Usage | None) -> None:
        if usage is not None:
            self._total_tokens += usage.prompt_tokens + usage.completion_tokens
            self._sampled_tokens += usage.completion_tokens
        elif self._limits.max_total_tokens is not None or self._limits.max_sampled_tokens is not None:
            with POLICY_LAYER:
                raise PolicyError(
                    f"A token budget is set, and policy {self._policy.name!r} does not report its usage: "
                    "return Completion(usage=…), or set no budget."
                )

    # After sampling: length, then the env

    async def _after_sampling(self, request: Request, completion: Completion, seconds: float) -> RolloutEnd | None:
        parse_error = completion.parse_error
        if not self.env.takes_any_completion:
            if completion.termination is Termination.LENGTH:
                return await self._end_truncated(request, completion, seconds)
            if completion.termination is Termination.MALFORMED:
                reason = parse_error or "the response has no end of turn, or could not be read"
                self._record(request, completion, seconds, reason, self._limits.malformed_reward)
                return RolloutEnd(StopReason.PARSE_ERROR)
            if calls := completion.message.tool_calls:
                errors = [error for call in calls if (error := parse_error_of(call))]
                if errors:
                    parse_error = "; ".join(errors)
                if len(errors) == len(calls):
                    return await self._handle_parse_error(request, completion, seconds, parse_error or "")
        self._parse_failures = 0
        return await self._step_env(request, completion, seconds, parse_error)

    async def _end_truncated(self, request: Request, completion: Completion, seconds: float) -> RolloutEnd | None:
        self._record(request, completion, seconds, completion.parse_error, self._limits.truncation_reward)
        if self._limits.continue_after_truncation and await self._insert_turn([completion.message]):
            return None
        return end_at_limit(StopReason.MAX_TOKENS)

    async def _handle_parse_error(
        self, request: Request, completion: Completion, seconds: float, parse_error: str
    ) -> RolloutEnd | None:
        self._parse_failures += 1
        self._record(request, completion, seconds, parse_error, self._limits.parse_error_reward)
        last_turn = self._limits.max_turns is not None and self._step + 1 >= self._limits.max_turns
        corrigible = self._parse_failures <= self._limits.max_parse_retries and not last_turn
        if corrigible:
            if await self._insert_turn([completion.message, *_correction(completion.message, parse_error)]):
                return None
            allowed = f"max_parse_retries={self._limits.max_parse_retries} allows a correction"
            self.rollout_builder.add_note("", f"{allowed}, and `observe` of {type(self.env).__name__} did not take it")
        return RolloutEnd(StopReason.PARSE_ERROR)

    async def _insert_turn(self, messages: Sequence[Message]) -> bool:
        """Put the recorded turn into the conversation, if the env takes it; the step says where the env fails."""
        try:
            return await self._put_in(messages)
        except BaseException:
            self._last_step_unfinished = True
            raise

    async def _step_env(
        self, request: Request, completion: Completion, seconds: float, parse_error: str | None
    ) -> RolloutEnd | None:
        try:
            with ENV_LAYER:
                result = validate_step_result(
                    await require_awaitable(self.env.step(completion), self.env, "step"), self.env
                )
        except BaseException:
            self._record_unfinished(request, completion, seconds, parse_error)
            raise
        self._record(request, completion, seconds, parse_error, result.reward, result.reward, result)
        if result.observation is not None:
            self._take_in(result.observation)
        if self._hooks.after_step is not None:
            with HOOK_LAYER:
                turn = Turn(self.identity, self._step, request.messages)
                await require_awaitable(self._hooks.after_step(turn, completion, result), self._hooks, "after_step")
        if not result.done:
            return None
        if result.stop_reason is not None:
            return RolloutEnd(str(result.stop_reason), StoppedBy.ENV, reason_from_env=True)
        was_cut = completion.termination is Termination.LENGTH
        return RolloutEnd(StopReason.MAX_TOKENS if was_cut else StopReason.COMPLETED, StoppedBy.ENV)

    # The record

    def _record_unfinished(
        self, request: Request, completion: Completion, seconds: float, parse_error: str | None
    ) -> None:
        """Add the step that the env has not finished, with what it can tell of it."""
        told = self._unfinished_step()
        self._record(request, completion, seconds, parse_error, 0.0, None, told)
        if told.observation is not None:
            self._take_in(told.observation)
        self._last_step_unfinished = True

    def _unfinished_step(self) -> StepResult:
        env = type(self.env).__name__
        try:
            given = self.env.unfinished_step()
            told = None if given is None else validate_step_result(given, self.env, "unfinished_step")
        except Exception as error:  # noqa: BLE001 - a foreign env must not keep the turn from being recorded
            what = failure_of(Layer.ENV, error)
            self.rollout_builder.add_note("", f"unfinished_step of {env} raised {what.type}: {what.message}")
            return _EMPTY_RESULT
        if told is not None and told.reward:
            self.rollout_builder.add_note(
                "", f"unfinished_step of {env} gave the reward {told.reward}, which does not count"
            )
        return _EMPTY_RESULT if told is None else told

    def _record(
        self,
        request: Request,
        completion: Completion,
        seconds: float,
        parse_error: str | None,
        reward: float,
        env_reward: float | None = None,
        told: StepResult = _EMPTY_RESULT,
    ) -> None:
        """Add the step. Without `env_reward` the env was not asked or failed, and the reward is the runner's."""
        raw = completion.raw
        self.rollout_builder.step(
            completion.message,
            reward=reward,
            env_reward=env_reward,
            reward_data=told.reward_data,
            env_state=told.env_state,
            extra=told.extra,
            metrics=told.metrics,
            logs=told.logs,
            tools=request.tools,
            sampling=request.sampling,
            termination=completion.termination,
            parse_error=parse_error,
            raw=None if raw == completion.message.content else raw,
            policy_version=self.policy_version if completion.policy_version is None else completion.policy_version,
            usage=completion.usage,
            seconds=seconds,
            tokens=completion.tokens,
        )

    def _take_in(self, observation: Observation) -> None:
        """Freeze what the env shows, now: it may change its own lists in any way afterwards."""
        self._set_offers(observation)
        messages = self._freezer.convert(observation.messages)
        if observation.replaces_history:
            self.rollout_builder.replace(messages)
        else:
            self.rollout_builder.extend(messages)

    def _set_offers(self, observation: Observation) -> None:
        if not (observation.tools or observation.stop or self._tools):
            self._sampling = self._base_sampling
            return
        notes: list[Note] = []
        tools = tuple(as_tool(tool, f"tools[{place}]", notes) for place, tool in enumerate(observation.tools))
        if tools != self._tools:  # what is offered anew every turn is noted once
            self._tools = tools
            self.rollout_builder.notes.extend(notes)
        self._sampling = self._base_sampling
        if observation.stop:
            stop = tuple(dict.fromkeys((*self._base_sampling.stop, *map(str, observation.stop))))
            self._sampling = replace(self._base_sampling, stop=stop)


def _correction(message: Message, parse_error: str) -> list[Message]:
    """What tells a policy that no call of its could be read; servers demand an answer to every call that has an id."""
    answers = [
        Message("tool", parse_error_of(call) or parse_error, tool_call_id=call.id, name=call.name or None)
        for call in message.tool_calls
        if call.id is not None
    ]
    return [*answers, Message("user", CORRECTION.format(errors=parse_error))]


def _raw_of(answer: Any) -> str:
    """What a policy gave, as text, before anything is made of it."""
    if not isinstance(answer, Completion):
        return describe(answer)
    raw: Any = answer.raw
    content: Any = getattr(answer.message, "content", answer.message) if raw is None else raw
    return content if isinstance(content, str) else describe(content)
