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
"""A pool that many share grows now and then; what is left behind grows with each of so many plays."""
_OTHERS = ("asyncio", "tool-")
"""How the names of threads begin that are not the environment's to end: of the loop's own pool, and of `Tool`."""
_SECONDS = 1.0
"""How long a thread or a process may take to end once it was told to."""
_LOOKS = 50
"""How often it is looked for meanwhile."""

_Running = dict[str, dict[threading.Thread | int, str]]
"""The names of what runs beside the loop, by kind and by thread or process id.

A thread is its own key, which keeps it alive: the id of an object that is gone may be that of a new one.
"""


async def check_leftovers(bench: Harness, pickled: bytes) -> None:
    """Play in every style, each play with a builder of its own; what there is more of each time is left behind."""
    for style in bench.styles:
        before = _running()
        for _ in range(_PLAYS):
            await _play_and_clean_up(bench, pickle.loads(pickled), style)  # noqa: S301 - the caller's own object
        for kind, names in (await _left(before)).items():
            bench.report.add(
                Rule.NOTHING_RUNNING,
                f"{len(names)} {kind} of {_PLAYS} plays (style: {style}) were still running after `close` and "
                f"`cleanup`: {', '.join(names[:_PLAYS])}",
                f"end in `close`, and wait for, all {kind} that the environment started; in `cleanup`, the builder's",
            )


async def _play_and_clean_up(bench: Harness, builder: EnvGroupBuilder, style: str) -> None:
    player = bench.player(builder)
    await play_episode(bench, player, style)
    await player.call("cleanup")


async def _left(before: _Running) -> dict[str, list[str]]:
    """What every play has left, after a moment of patience."""
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
