"""Runs a `GroupWorker` in one thread, while another one takes the requests for it."""

import asyncio
import contextlib
import os
import pickle
import threading
from collections.abc import Callable

from rolltrace.jobs.signal_handling import RECORD_SECONDS, ActivePlay
from rolltrace.jobs.workers.group_worker import GroupWorker
from rolltrace.jobs.workers.reports import Event, failed

CANCEL = "cancel"
"""The request to cancel what is being played and to close the session."""
END = "end"
"""The request to record what is being played as cancelled, and to end the process at once."""


class WorkerMain:
    """What a worker does, however it is connected. An env may block the thread that plays."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._play = ActivePlay()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: GroupWorker | None = None
        self._early: list[tuple[str, tuple[object, ...]]] = []
        """Requests that came before there was a worker."""
        self._lock = threading.Lock()
        self._is_ending = False

    async def play(self, setup: bytes) -> None:
        """Play until a request ends it. Every error is sent as an event."""
        try:
            await self._play.run(lambda _: self._run(setup))
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - the process that plays raises it
            self._send(failed(error))

    async def _run(self, setup: bytes) -> None:
        worker = GroupWorker(pickle.loads(setup), self._send)  # noqa: S301 - from the process that plays
        self._play.writer = worker.writer
        self._play.runners.append(worker.runner)
        with self._lock:
            self._loop, self._worker = asyncio.get_running_loop(), worker
        for method, args in self._early:
            getattr(worker, method)(*args)
        await worker.run()

    def handle(self, method: str, *args: object) -> None:
        """Handle a request, in another thread than that which plays."""
        if method == CANCEL:
            self._play.cancel()
            self.end_after(RECORD_SECONDS)
        elif method == END:
            self._end()
        else:
            with self._lock:
                if self._loop is None:
                    self._early.append((method, args))
                    return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(getattr(self._worker, method), *args)

    def end_after(self, seconds: float) -> None:
        """End the process, unless it has ended by itself."""
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._play.record_cancelled()
            self._play.end()
            os._exit(1)
