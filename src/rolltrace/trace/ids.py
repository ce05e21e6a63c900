"""Ids of rollouts, scores, runs and sessions."""

import hashlib
import os
import random
import time

from rolltrace.trace.strict_json import json_encoder

_rng = random.Random()  # noqa: S311 - ids are unique, not secret; `secrets` is slow
os.register_at_fork(after_in_child=_rng.seed)


def new_id() -> str:
    """An id that is unique everywhere and sorts by time."""
    return f"{time.time_ns() // 1_000_000:012x}{_rng.getrandbits(80):020x}"


def stable_id(*source: str | int) -> str:
    """An id that is the same for the same source, such as the name of a file and a row of it.

    A rollout that is imported twice under such an id counts once.
    """
    return f"s-{hashlib.blake2b(json_encoder.encode(source), digest_size=15).hexdigest()}"
