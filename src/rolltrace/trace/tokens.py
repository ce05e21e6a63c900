"""The tokens of a step: how many, and where they are recorded, their ids and log-probabilities."""

import msgspec

from rolltrace.trace.field_types import Omittable
from rolltrace.trace.json_numbers import Float


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens that one completion took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one step, where they were asked for."""

    prompt: tuple[int, ...]
    """Ids of the whole prompt when they are handed in; in a record, those after the shared prefix."""
    response: tuple[int, ...]
    logprobs: tuple[Float, ...] | None = None
    """Log-probability of each response token under the policy that sampled it."""
    shared_prefix: Omittable[int] = 0
    """How many ids the prompt shares with the start of the previous step's prompt and response together."""
    char_lengths: Omittable[tuple[int, ...] | None] = None
    """How many characters of the step's text (`raw`, else the response's content) each response token stands for.

    Special tokens have 0. If several tokens make up one character, the last of them has it.
    """


def usage_of(tokens: Tokens) -> Usage | None:
    """How many tokens these are; None if they are not sequences, which is noted where they are recorded."""
    try:
        return Usage(len(tokens.prompt), len(tokens.response))
    except Exception:  # noqa: BLE001 - a foreign array may raise anything
        return None
