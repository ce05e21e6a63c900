"""The limits of a rollout, and the penalties for reaching them."""

import math
from typing import Annotated

import msgspec

from rolltrace.errors import InputError

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
