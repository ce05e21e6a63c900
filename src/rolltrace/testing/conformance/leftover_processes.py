"""Threads and child processes that an environment leaves behind."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from pathlib import Path

from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.plays import play
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

_Running = dict[str, dict[threading.Thread | int, str]]
"""The names of what runs beside the loop, by kind and by thread or process id.

A thread is its own key, which keeps it alive: the id of an object that is gone may be that of a new one.
"""


async def check_leftovers(harness: Harness, pickled: bytes) -> None:
    """Play in every style, each play with a builder of its own; what there is more of each time is left behind."""
    for style in harness.styles:
        before = _running()
        for _ in range(_PLAYS):
            builder = pickle.loads(pickled)  # noqa: S301 - the caller's own object
            await play(harness, ProbedBuilder(builder, harness, [style], clean_up=True))
        for kind, names in (await _left(before, min(harness.seconds, _MAX_SECONDS))).items():
            harness.report.add(
                Rule.NOTHING_RUNNING,
                f"{len(names)} {kind} of {_PLAYS} plays (style: {style}) were still running after `close` and "
                f"`cleanup`: {', '.join(names[:_PLAYS])}",
                f"end in `close`, and wait for, all {kind} that the environment started; in `cleanup`, the builder's",
            )


async def _left(before: _Running, seconds: float) -> dict[str, list[str]]:
    """The threads and processes that every play has left running, after waiting for them to end."""
    left = _more(before)
    for _ in range(_LOOKS):
        if not left:
            break
        await asyncio.sleep(seconds / _LOOKS)
        left = _more(before)
    return left


def _more(before: _Running) -> dict[str, list[str]]:
    now = _running()
    fresh = {kind: [name for key, name in now[kind].items() if key not in before[kind]] for kind in before}
    return {kind: names for kind, names in fresh.items() if len(names) >= _PLAYS}


def _running() -> _Running:
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(_OTHERS)]
    return {
        "threads": {thread: thread.name for thread in threads},
        "child processes": {number: f"process {number}" for number in sorted(_children())},
    }


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
