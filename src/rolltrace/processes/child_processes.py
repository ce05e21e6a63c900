"""Registers the owners of child processes: they detach when this process forks, and stop when it exits."""

import atexit
import os
import threading
from typing import Protocol
from weakref import WeakSet

START_LOCK = threading.Lock()
"""Held while a child is started and during a fork, so that the forked process can close the pipes of all children."""


class ChildOwner(Protocol):
    """An object that starts child processes."""

    def stop(self) -> None:
        """Stop all of its children."""

    def detach_after_fork(self) -> None:
        """In a forked process: close the pipes to the children and drop them, because they belong to the parent."""


_OWNERS: WeakSet[ChildOwner] = WeakSet()


def register_owner(owner: ChildOwner) -> None:
    """Call the owner's methods at a fork and at exit, as long as it exists."""
    _OWNERS.add(owner)


def stop_all_children() -> None:
    """Stop the children of every owner."""
    for owner in list(_OWNERS):
        owner.stop()


def _detach_all() -> None:
    START_LOCK.release()
    for owner in list(_OWNERS):
        owner.detach_after_fork()


atexit.register(stop_all_children)
os.register_at_fork(before=START_LOCK.acquire, after_in_parent=START_LOCK.release, after_in_child=_detach_all)
