"""Ids of rollouts, scores, runs and sessions."""

import hashlib
import operator
import os
import random
import time

from rolltrace.errors import InputError

_rng = random.Random()  # noqa: S311 - ids are unique, not secret; `secrets` is slow
os.register_at_fork(after_in_child=_rng.seed)


def new_id() -> str:
    """An id that is unique everywhere and sorts by time."""
    return f"{time.time_ns() // 1_000_000:012x}{_rng.getrandbits(80):020x}"


def stable_id(*source: str | int) -> str:
    """An id that is the same for the same source, such as the name of a file and a row of it.

    A rollout that is imported twice under such an id counts once.
    """
    try:
        parts = [part if isinstance(part, str) else operator.index(part) for part in source]
    except TypeError:
        raise InputError(f"Expected texts and whole numbers to make an id of, got {source!r}.") from None
    return f"s-{hashlib.blake2b(repr(parts).encode('ascii', 'backslashreplace'), digest_size=15).hexdigest()}"
