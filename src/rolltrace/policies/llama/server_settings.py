"""The settings of a llama.cpp server. Policies with equal settings share a server."""

import os
from typing import Any

import msgspec

from rolltrace.errors import InputError

SLOTS = 4
CONTEXT_LENGTH = 4096
MAX_SERVER_REQUESTS = 64
"""The maximum number of requests in flight; further ones wait before they are sent."""
_MIN_CONTEXT_LENGTH = 256
"""llama.cpp gives each slot at least this context length."""
_MAX_THREADS = 4
"""A small model is limited by memory bandwidth: more threads wait for each other."""


class ServerSettings(msgspec.Struct, frozen=True):
    """The settings that a server is started with."""

    weights: str
    """The absolute path of the GGUF file."""
    slots: int = SLOTS
    """The number of answers that are generated at once; further requests wait."""
    context_length: int = CONTEXT_LENGTH
    """The maximum number of tokens of prompt and answer together, in each slot."""
    threads: int = 1
    template: str | None = None
    """A chat template to use instead of the one in the file."""

    def __post_init__(self) -> None:
        for name, minimum in (("slots", 1), ("context_length", _MIN_CONTEXT_LENGTH), ("threads", 1)):
            if getattr(self, name) < minimum:
                raise InputError(
                    f"Expected {name} of {minimum} or more for the policy `local`, got {getattr(self, name)}."
                )

    def for_process(self, key: str) -> dict[str, Any]:
        """The settings that are sent to the server's process."""
        return {**msgspec.structs.asdict(self), "key": key}


def default_threads() -> int:
    """One less than the number of processors, and at most four.

    llama.cpp's threads synchronize many times per token: one thread that shares its processor with another process
    makes all of them ten times slower.
    """
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        processors = os.cpu_count() or 1
    return max(1, min(_MAX_THREADS, processors - 1))
