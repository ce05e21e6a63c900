"""Threads and child processes that an environment leaves behind."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from pathlib import Path

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.testing.conformance.harness import Harness
from rolltrace.testing.conformance.play_rules import play_episode
from rolltrace.testing.conformance.violations import Rule

_PLAYS = 3
"""How often each style is played: leftovers grow with every play, a shared pool only now and then."""
_OTHERS = ("asyncio", "tool-")
"""Prefixes of the names of threads that an environment need not end: the loop's own pool, and `Tool`."""
_SECONDS = 1.0
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
            await _play_and_clean_up(harness, pickle.loads(pickled), style)  # noqa: S301 - the caller's own object
        for kind, names in (await _left(before)).items():
            harness.report.add(
                Rule.NOTHING_RUNNING,
                f"{len(names)} {kind} of {_PLAYS} plays (style: {style}) were still running after `close` and "
                f"`cleanup`: {', '.join(names[:_PLAYS])}",
                f"end in `close`, and wait for, all {kind} that the environment started; in `cleanup`, the builder's",
            )


async def _play_and_clean_up(harness: Harness, builder: EnvGroupBuilder, style: str) -> None:
    caller = harness.guard(builder)
    await play_episode(harness, caller, style)
    await caller.call("cleanup")


async def _left(before: _Running) -> dict[str, list[str]]:
    """The threads and processes that every play has left running, after waiting for them to end."""
    left = _more(before)
    for _ in range(_LOOKS):
        if not left:
            break
        await asyncio.sleep(_SECONDS / _LOOKS)
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
    listed = (path for path in Path("/proc").glob("[0-9]*/stat"))
    return known | {int(path.parent.name) for path in listed if _parent(path) == own}


def _parent(path: Path) -> str | None:
    """The parent of a process that runs; one that has ended is listed until somebody asks how it ended."""
    try:
        state, parent = path.read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else parent
