"""Asks the policy of one rollout for its turns: the next prompt, the token budget and the sampled turn."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from rolltrace.envs.env import Observation
from rolltrace.errors import ContextOverflowError, LimitReachedError, PolicyError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.validation import coerce_completion, require_awaitable, validate_token_count
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.rollout_end import POLICY_LAYER, LayerError
from rolltrace.rollout_clock import RolloutClock
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_tool, is_valid_message
from rolltrace.trace.freeform import Note, describe
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import StopReason
from rolltrace.trace.tokens import Usage


class PromptState:
    """The tools and sampling settings of the next request; its messages are the rollout builder's `prompt`.

    Observations are frozen when they arrive, because the env may change its own lists afterwards.
    """

    __slots__ = ("_base_sampling", "_cache", "_rollout_builder", "sampling", "tools")

    def __init__(self, rollout_builder: RolloutBuilder, sampling: Sampling) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self.sampling = sampling
        self._base_sampling = sampling
        self._rollout_builder = rollout_builder
        self._cache: ConversionCache | None = None  # made when needed: most envs show immutable messages

    def add(self, observation: Observation) -> None:
        """Continue with the env's observation after the policy's last response."""
        self._set_tools_and_sampling(observation)
        messages = self._convert(observation.messages)
        if observation.replaces_history:
            self._rollout_builder.replace(messages)
        else:
            self._rollout_builder.extend(messages)

    def insert(self, observation: Observation) -> None:
        """Continue with what `observe` returned. Unlike in `add`, it contains the policy's last response."""
        self._set_tools_and_sampling(observation)
        messages = self._convert(observation.messages)
        self._rollout_builder.replace(
            messages if observation.replaces_history else [*self._rollout_builder.prompt, *messages]
        )

    def _convert(self, messages: Sequence[Any]) -> list[Message]:
        if all(map(is_valid_message, messages)):
            return list(messages)
        if self._cache is None:
            self._cache = ConversionCache(self._rollout_builder.notes)
        return self._cache.convert(messages)

    def _set_tools_and_sampling(self, observation: Observation) -> None:
        self.sampling = self._base_sampling
        if not (observation.tools or observation.stop or self.tools):
            return
        notes: list[Note] = []
        tools = tuple(as_tool(tool, f"tools[{position}]", notes) for position, tool in enumerate(observation.tools))
        if tools != self.tools:  # tools that are offered again every turn are noted once
            self.tools = tools
            self._rollout_builder.notes.extend(notes)
        if observation.stop:
            stop = tuple(dict.fromkeys((*self._base_sampling.stop, *map(str, observation.stop))))
            self.sampling = replace(self._base_sampling, stop=stop)


class TokenBudget(msgspec.Struct):
    """Counts the tokens of one rollout, and compares them with its limits before each request."""

    _limits: Limits
    _policy: Policy
    _total: int = 0
    _sampled: int = 0

    def reached_limit(self, request: Request) -> StopReason | None:
        """The first limit that keeps this request from being sent: context, total tokens, sampled tokens."""
        limits = self._limits
        context = self._policy.context_length if limits.context_length is None else limits.context_length
        prompt_tokens: int | None = None
        if context is not None or limits.max_total_tokens is not None:
            with POLICY_LAYER:
                prompt_tokens = validate_token_count(self._policy.count_tokens(request), self._policy)
        if context is not None and prompt_tokens is not None and prompt_tokens + self._reserve(request) > context:
            return StopReason.CONTEXT_OVERFLOW
        if limits.max_total_tokens is not None and self._total + (prompt_tokens or 0) >= limits.max_total_tokens:
            return StopReason.MAX_TOTAL_TOKENS
        if limits.max_sampled_tokens is not None and self._sampled >= limits.max_sampled_tokens:
            return StopReason.MAX_SAMPLED_TOKENS
        return None

    def count(self, usage: Usage | None) -> None:
        """Add the tokens of one request and its response."""
        if usage is not None:
            self._total += usage.prompt_tokens + usage.completion_tokens
            self._sampled += usage.completion_tokens
        elif self._limits.max_total_tokens is not None or self._limits.max_sampled_tokens is not None:
            with POLICY_LAYER:
                raise PolicyError(
                    f"A token budget is set, and policy {self._policy.name!r} does not report its usage: "
                    "return Completion(usage=…), or set no budget."
                )

    def _reserve(self, request: Request) -> int:
        reserve = self._limits.generation_reserve
        return (request.sampling.max_tokens or 1) if reserve is None else reserve


class SampledTurn(msgspec.Struct, gc=False):
    """One request to the policy and its completion."""

    request: Request
    completion: Completion
    seconds: float
    """How long the policy took."""
    policy_version: int | str | None
    """The policy's version when it was asked; it may change before the completion arrives."""
    parse_error: str | None
    """Why the completion, or one of its tool calls, could not be parsed."""


class Sampler(msgspec.Struct):
    """Asks a policy for the turns of one rollout, within the limit of requests in flight."""

    _policy: Policy
    _rollout_builder: RolloutBuilder
    _request_slots: asyncio.Semaphore
    _clock: RolloutClock

    async def sample(self, request: Request) -> SampledTurn:
        """The policy's completion. Raises `ContextOverflowError` or `LimitReachedError` if the policy did."""
        policy, rollout_builder = self._policy, self._rollout_builder
        rollout_builder.mark_prompt_sent()
        if self._request_slots.locked():
            await self.acquire_slot()
        else:
            await self._request_slots.acquire()
        try:
            started = time.perf_counter()
            version = policy.version
            try:
                with POLICY_LAYER:
                    answer = await require_awaitable(policy.complete(request), policy, "complete")
                    seconds = time.perf_counter() - started
                    rollout_builder.set_raw_response(_raw_text(answer))
                    completion = coerce_completion(answer, policy, rollout_builder.notes)
            except LayerError as error:
                if isinstance(error.cause, PolicyError) and error.cause.raw is not None:
                    rollout_builder.set_raw_response(error.cause.raw)
                if isinstance(error.cause, ContextOverflowError | LimitReachedError):
                    raise error.cause from error
                raise
        finally:
            self._request_slots.release()
        return SampledTurn(request, completion, seconds, version, completion.parse_error)

    async def acquire_slot(self) -> None:
        """Wait until another request may be sent. The wait does not count as the rollout's time."""
        with self._clock.paused():
            await self._request_slots.acquire()


def _raw_text(answer: Any) -> str:
    """The text that a policy returned, before it is validated."""
    if not isinstance(answer, Completion):
        return describe(answer)
    raw: Any = answer.raw
    content: Any = getattr(answer.message, "content", answer.message) if raw is None else raw
    return content if isinstance(content, str) else describe(content)
