"""Threads and child processes that an environment leaves behind."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.play_rules import play
from rolltrace.testing.conformance.probed_builder import ProbedBuilder
from rolltrace.testing.conformance.violations import Rule

_PLAYS = 3
"""How often each style is played: leftovers grow with every play, a shared pool only now and then."""
_OTHERS = ("asyncio", "tool-")
"""Prefixes of the names of threads that an environment need not end: the loop's own pool, and `Tool`."""
_MAX_SECONDS = 1.0
"""How long a thread or a process may take to end."""
_LOOKS = 50
"""How often that is checked meanwhile."""


async def check_leftovers(harness: Harness, pickled: bytes) -> None:
    """Play in every style, each play with a builder of its own; what there is more of each time is left behind."""
    for style in harness.styles:
        before = _running()
        for _ in range(_PLAYS):
            copy = pickle.loads(pickled)  # noqa: S301 - the caller's own object
            await play(harness, ProbedBuilder(copy, harness, [style], clean_up=True))
        for kind, left in (await _leftovers(before, min(harness.seconds, _MAX_SECONDS))).items():
            names = sorted(one.name if isinstance(one, threading.Thread) else f"process {one}" for one in left)
            harness.report(
                Rule.NOTHING_RUNNING,
                f"{len(names)} {kind} of {_PLAYS} plays (style: {style}) were still running after `close` and "
                f"`cleanup`: {', '.join(names[:_PLAYS])}",
                f"end in `close`, and wait for, all {kind} that the environment started; in `cleanup`, the builder's",
            )


async def _leftovers(before: dict[str, set[Any]], seconds: float) -> dict[str, set[Any]]:
    """The threads and processes that every play has left running, after waiting for them to end."""
    left: dict[str, set[Any]] = {}
    for _ in range(_LOOKS):
        now = _running()
        left = {kind: now[kind] - before[kind] for kind in before if len(now[kind] - before[kind]) >= _PLAYS}
        if not left:
            return {}
        await asyncio.sleep(seconds / _LOOKS)
    return left


def _running() -> dict[str, set[Any]]:
    """The threads, and the ids of the child processes."""
    threads = {thread for thread in threading.enumerate() if not thread.name.startswith(_OTHERS)}
    return {"threads": threads, "child processes": _children()}


def _children() -> set[int]:
    """The processes that this one has started and that have not ended; not all of them where the system hides them."""
    known = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    own = str(os.getpid())
    return known | {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) == own}


def _parent(path: Path) -> str | None:
    """The parent of a running process, or None; a process that has ended is listed until its parent waits for it."""
    try:
        state, parent = path.read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else parent
