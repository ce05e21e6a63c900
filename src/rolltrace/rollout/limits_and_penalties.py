"""The limits of a rollout, the penalties for reaching them, and the clock and token budget that measure it."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.policy import Policy, Request
from rolltrace.policies.validation import validate_token_count
from rolltrace.rollout.error_layer import POLICY_LAYER
from rolltrace.trace.rollout import Usage
from rolltrace.trace.stop_reasons import StopReason

NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one rollout. None is no limit.

    They are checked in this order: before sampling wall clock, turns, messages added by hooks, context, total tokens,
    sampled tokens; after sampling length, then the env. docs/rewards.md gives the reason for each reward.
    """

    max_turns: NotNegative | None = None
    """Policy turns. If the env's own limit is lower, the env ends the rollout, not this limit."""
    max_total_tokens: NotNegative | None = None
    """Tokens of all prompts and responses together."""
    max_sampled_tokens: NotNegative | None = None
    """Tokens of all responses together."""
    timeout: Seconds | None = None
    """Seconds of wall-clock time from the first observation to the last step."""
    close_timeout: Seconds = 10.0
    """Seconds that `close` of an env may take before the record is written without it."""
    context_length: NotNegative | None = None
    """Tokens of one prompt with its response. None: the policy's own context length."""
    generation_reserve: NotNegative | None = None
    """Tokens of the context reserved for the response. None: the sampling's `max_tokens`, or 1."""
    max_parse_retries: NotNegative = 0
    """Consecutive corrections of turns whose tool calls cannot be parsed. The env must implement `observe`."""
    continue_after_truncation: bool = False
    """Whether a conversation continues after a truncated response, if the env's `observe` accepts it."""
    truncation_reward: float = -0.1
    """Reward of a response truncated by the token limit in a conversation."""
    malformed_reward: float = -1.0
    """Reward of a response with broken framing in a conversation."""
    parse_error_reward: float = -0.1
    """Reward of a turn none of whose tool calls could be parsed."""
    overflow_reward: float | None = -0.1
    """Replaces the last step's reward if the next prompt does not fit the context. None: the env's reward stays."""
    zero_reward_on_limit: bool = False
    """Whether the total reward of a rollout that a limit stopped is at most 0."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(Limits):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise InputError(f"Expected {field.name} to fit its type, got {value!r}: {error}.") from None
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"Expected {field.name} to be a finite number, got {value}.")


class RolloutClock(msgspec.Struct):
    """The deadline of one rollout. It moves back by the time that the rollout spends waiting for others."""

    _deadline: float | None = None
    _timeout: asyncio.Timeout | None = None
    """None before the start, after the end, and if the rollout has no time limit."""
    _pauses: int = 0
    _paused_at: float = 0.0

    def start(self, seconds: float) -> asyncio.Timeout:
        """A context manager that raises `TimeoutError` when the rollout has run for `seconds`."""
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._timeout = asyncio.timeout_at(self._deadline)
        return self._timeout

    def stop(self) -> None:
        """Ignore later pauses: the play is over."""
        self._timeout = None

    @property
    def is_running(self) -> bool:
        """Whether there is a deadline to pause."""
        return self._timeout is not None and not self._timeout.expired()

    @property
    def has_expired(self) -> bool:
        """Whether the time-out has cancelled the play."""
        return self._timeout is not None and self._timeout.expired()

    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose time does not count. Blocks may overlap in parallel tasks."""
        if self._timeout is None or not self.is_running:
            yield
            return
        loop = asyncio.get_running_loop()
        if self._pauses == 0:
            self._paused_at = loop.time()
            self._timeout.reschedule(None)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._resume(loop.time() - self._paused_at)

    def _resume(self, paused_seconds: float) -> None:
        if self._timeout is not None and self._deadline is not None and self.is_running:
            self._deadline += paused_seconds
            self._timeout.reschedule(self._deadline)


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
