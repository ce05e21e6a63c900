"""How far a rollout may go, and what going too far costs."""

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
    """Policy turns. An environment may have a cap of its own, which counts as its own end."""
    max_total_tokens: NotNegative | None = None
    """Tokens processed in all requests together: prompts and answers."""
    max_sampled_tokens: NotNegative | None = None
    """Tokens sampled in all answers together."""
    timeout: Seconds | None = None
    """Seconds of wall-clock time from the first observation to the last step."""
    close_timeout: Seconds = 10.0
    """Seconds that `close` of an env may take before the record is written without it."""
    context_length: NotNegative | None = None
    """Tokens of prompt and answer together; none takes the policy's own."""
    generation_reserve: NotNegative | None = None
    """Tokens of the context kept free for the answer; none takes the sampling's `max_tokens`, or 1."""
    max_parse_retries: NotNegative = 0
    """Corrective messages in a row, where no tool call of a turn could be parsed. The env must implement `observe`."""
    continue_after_truncation: bool = False
    """Whether a conversation goes on after a truncated response, where the env's `observe` takes it."""
    truncation_reward: float = -0.1
    """Reward of a response truncated by the token limit in a conversation."""
    malformed_reward: float = -1.0
    """Reward of a response with broken framing in a conversation."""
    parse_error_reward: float = -0.1
    """Reward of a turn of which no tool call could be parsed."""
    overflow_reward: float | None = -0.1
    """Reward that replaces the last step's where the next prompt does not fit the context; none keeps the env's."""
    zero_reward_on_limit: bool = False
    """Whether a rollout stopped by a limit has a total of at most 0."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(Limits):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise InputError(f"Expected {field.name} to fit its type, got {value!r}: {error}.") from None
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"Expected {field.name} to be a finite number, got {value}.")
