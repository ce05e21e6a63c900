"""How far a rollout may go, and what going too far costs."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one rollout. None is no limit.

    They are checked in this order: before sampling wall clock, turns, messages added by hooks, context, total tokens,
    sampled tokens; after sampling length, then the env.
    """

    max_turns: int | None = None
    """Policy turns. An environment may have a cap of its own, which counts as its own end."""
    max_total_tokens: int | None = None
    """Tokens processed in all requests together: prompts and answers."""
    max_sampled_tokens: int | None = None
    """Tokens sampled in all answers together."""
    timeout: float | None = None
    """Seconds of wall-clock time from the first observation to the last step."""
    close_timeout: float = 10.0
    """Seconds that `close` of an env may take before the record is written without it."""
    context_length: int | None = None
    """Prompt and answer together; None takes the policy's own."""
    generation_reserve: int | None = None
    """Tokens of the context kept free for the answer; None takes the sampling's `max_tokens`, or 1."""
    max_parse_retries: int = 0
    """Corrective messages in a row, where no tool call of a turn could be parsed."""
    continue_after_truncation: bool = False
    """Whether a conversation goes on after a truncated response, where the env's `observe` takes it."""
    truncation_reward: float = -0.1
    """For a response truncated by the token limit in a conversation."""
    malformed_reward: float = -1.0
    """For broken framing in a conversation."""
    parse_error_reward: float = -0.1
    """For a turn of which no tool call could be parsed."""
    overflow_reward: float = -0.1
    """For a prompt that does not fit the context; it replaces the last step's reward."""
    zero_reward_on_limit: bool = False
    """Whether a rollout stopped by a limit has a total of at most 0."""
