"""The interface behind which workers play: what a kind of worker has to do."""

from collections.abc import Callable
from typing import Any, Protocol

from rolltrace.errors import InputError
from rolltrace.jobs.workers.reports import Event


class Worker(Protocol):
    """A process of this machine, or an actor of a Ray cluster, that plays groups."""

    def request(self, method: str, *args: object) -> None:
        """Call a method of its `GroupWorker`."""
        ...

    def cancel(self) -> None:
        """Cancel what is being played, record it and close."""
        ...

    def end(self) -> None:
        """Record what is being played as cancelled and end, without waiting for envs. Any thread may call it."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        ...

    def why_lost(self) -> str:
        """How it ended."""
        ...


OnEvent = Callable[[Any, Event | None], None]
"""Gets a worker and its event, or None when the worker has gone."""


class Workers(Protocol):
    """Starts workers: processes of this machine, or actors of a Ray cluster."""

    def dumps(self, value: object) -> bytes:
        """Pickle a value for a worker."""
        ...

    def start(self, setup: bytes, on_event: OnEvent) -> Worker:
        """Start a worker with a pickled `WorkerSetup`. In the thread of the event loop, `on_event` gets its events."""
        ...


def pickle_for_worker(kind: Workers, value: object, what: str) -> bytes:
    """Pickle a value for a worker. Raises `InputError` if that is impossible."""
    try:
        return kind.dumps(value)
    except Exception as error:
        raise InputError(
            f"Expected {what} to be picklable, because workers are other processes: {type(error).__name__}: {error}"
        ) from error
