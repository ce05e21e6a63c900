"""A worker process on this machine, and the connection to it."""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

from rolltrace.jobs.workers.interface import OnEvent
from rolltrace.jobs.workers.reports import Event, decode_events, encode_events
from rolltrace.jobs.workers.worker_main import CANCEL, END, WorkerMain

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_EXIT_SECONDS = 5.0
"""How long a worker may take to end after it has closed its session."""
_POLL_SECONDS = 1.0
"""How often to look whether a worker is alive that sends nothing."""


class LocalWorkers:
    """Starts workers as processes of this machine."""

    def dumps(self, value: object) -> bytes:
        """Pickle a value for a worker."""
        return pickle.dumps(value)

    def start(self, setup: bytes, on_event: OnEvent) -> "LocalWorker":
        """Start a worker."""
        return LocalWorker(setup, on_event)


class LocalWorker:
    """A worker process. Its requests are sent, and its events received, by threads."""

    def __init__(self, setup: bytes, on_event: OnEvent) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=run_worker, args=(theirs,), name="rolltrace-worker")
        with _blocked_signals():  # until the process has a session of its own: Ctrl-C is for this process
            self._process.start()
        theirs.close()
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(setup)
        for target in (self._send_all, self._receive_all):
            threading.Thread(target=target, name="rolltrace-worker", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The id of the process."""
        return self._process.pid

    def request(self, method: str, *args: object) -> None:
        """Call a method of the `GroupWorker`."""
        self._requests.put(pickle.dumps((method, args)))

    def cancel(self) -> None:
        """Cancel what is being played, record it and close."""
        self.request(CANCEL)

    def end(self) -> None:
        """Record what is being played as cancelled and end, without waiting for envs. Any thread may call it."""
        self.request(END)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def join(self, seconds: float) -> None:
        """Wait for the end of the process."""
        self._process.join(seconds)

    def why_lost(self) -> str:
        """How the process ended."""
        code = self._process.exitcode
        if code is None:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            while (data := self._requests.get()) is not None:
                self._connection.send_bytes(data)

    def _receive_all(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self._is_receiving():
                self._post(*decode_events(self._connection.recv_bytes()))
        self._process.join(_EXIT_SECONDS)
        self._post(None)
        self._requests.put(None)

    def _is_receiving(self) -> bool:
        """Wait for events. False if the process has ended: a process that an env forked may hold its connection."""
        while not self._connection.poll(_POLL_SECONDS):
            if not self._process.is_alive():
                return self._connection.poll()
        return True

    def _post(self, *events: Event | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            for event in events:
                self._loop.call_soon_threadsafe(self._on_event, self, event)


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Make a process that is started here begin with Ctrl-C and SIGTERM blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_worker(connection: Connection) -> None:
    """The main function of the process."""
    os.setsid()
    os.dup2(2, 1)  # an env that prints must not print into the data of the command line
    # A scheduler sends SIGTERM to the whole job, and the parent handles it. A program that an env starts gets the
    # default action again, which it would not if the signal were ignored.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    send_lock = threading.Lock()

    def send(event: Event) -> None:
        with send_lock, contextlib.suppress(OSError):  # the parent has ended
            connection.send_bytes(encode_events([event]))

    main = WorkerMain(send)
    with contextlib.suppress(EOFError):
        setup = connection.recv_bytes()
        threading.Thread(target=_listen, args=(connection, main), name="rolltrace-requests", daemon=True).start()
        asyncio.run(main.play(setup))
    main.end_after(_EXIT_SECONDS)  # a thread that an env left behind must not keep the process alive


def _listen(connection: Connection, main: WorkerMain) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, args = pickle.loads(connection.recv_bytes())  # noqa: S301 - the parent's
            main.handle(method, *args)
    main.handle(CANCEL)  # the parent has ended
