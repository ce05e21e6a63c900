"""Holds back the processes that make parts of a run, so that a partial answer is about a part of it for certain."""

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from rolltrace.query.part_processes import PartProcesses


def hold_back(monkeypatch: pytest.MonkeyPatch, kind: str, first: int = 1) -> threading.Event:
    """Let statements get so many batches of this kind of part, if they wait for some; the others after the event."""
    finished, may_go_on = PartProcesses.finished, threading.Event()

    def held_back(self: PartProcesses, deadline: Any, waits: Any) -> Iterator[Any]:
        if self._kinds[0] != kind or may_go_on.is_set():
            yield from finished(self, deadline, waits)
            return
        if waits():
            yield from islice(finished(self, deadline, waits), first)
        assert not waits(), "it would wait for a batch that is held back"

    monkeypatch.setattr(PartProcesses, "finished", held_back)
    return may_go_on
