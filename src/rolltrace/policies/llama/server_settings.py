"""How a server of local weights is set up; servers with equal settings are one."""

import os
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import InputError

SLOTS = 4
CONTEXT_LENGTH = 4096
MAX_SERVER_REQUESTS = 64
"""How many questions are put to a server at once; more wait before they are sent."""
_LEAST_CONTEXT = 256
"""llama.cpp gives a slot at least so much, whatever it is asked for."""
_MAX_THREADS = 4
"""A small model is bound by memory, not by arithmetic: more threads wait for each other."""


class ServerSettings(msgspec.Struct, frozen=True):
    """What a server is started with."""

    weights: str
    """The absolute path of the GGUF file."""
    slots: int = SLOTS
    """How many answers are worked on at once; others wait."""
    context_length: int = CONTEXT_LENGTH
    """How many tokens prompt and answer may have together, in each slot."""
    threads: int = 1
    template: str | None = None
    """A chat template to use instead of the one in the file."""

    def for_process(self, key: str) -> dict[str, Any]:
        """What the server's process is told."""
        return {**msgspec.structs.asdict(self), "key": key}


def make_server_settings(
    weights: Path, *, slots: int, context_length: int, threads: int | None, template: str | None
) -> ServerSettings:
    """The settings, checked; without a number of threads, one that fits the machine."""
    wanted = default_threads() if threads is None else threads
    for name, value, least in (
        ("slots", slots, 1), ("context_length", context_length, _LEAST_CONTEXT), ("threads", wanted, 1),
    ):  # fmt: skip
        if value < least:
            raise InputError(f"Expected {name} of {least} or more for the policy `local`, got {value}.")
    return ServerSettings(str(weights), slots, context_length, wanted, template)


def default_threads() -> int:
    """One less than there are processors, and at most four.

    llama.cpp's threads wait for each other many times for each token, so that one which shares its processor, be it
    with whoever plays the environment, makes all of them ten times slower.
    """
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        processors = os.cpu_count() or 1
    return max(1, min(_MAX_THREADS, processors - 1))
