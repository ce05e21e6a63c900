"""Workers that are actors of a Ray cluster."""

import asyncio
import contextlib
import importlib
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rolltrace.errors import InputError
from rolltrace.jobs.workers.interface import OnEvent
from rolltrace.jobs.workers.reports import Closed, Event, decode_events, encode_events
from rolltrace.jobs.workers.worker_main import CANCEL, END, WorkerMain


def require_ray() -> Any:
    """The package `ray`. Raises `InputError` if it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise InputError("Expected the package ray for --ray (ray=): pip install 'rolltrace[ray]'.") from error


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine; the program's own connection is used if there is one."""
    ray = require_ray()
    if ray.is_initialized():
        yield
        return
    handlers = _signal_handlers()
    try:
        ray.init(address=address, log_to_driver=True)
    except ConnectionError as error:
        raise InputError(f"Expected a Ray cluster at {address or 'this machine'}, got none: {error}") from error
    finally:
        for number, handler in handlers.items():  # Ray sets its own, which would end the process without a record
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _signal_handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def default_workers(options: Mapping[str, Any]) -> int:
    """As many workers as the cluster has processors for."""
    processors = require_ray().cluster_resources().get("CPU", 1.0)
    return max(1, int(processors / max(float(options.get("num_cpus", 1)), 1e-9)))


class RayWorkers:
    """Starts workers as actors, with options of Ray such as `num_cpus`, `resources` or `scheduling_strategy`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        ray = require_ray()
        self.dumps: Callable[[object], bytes] = ray.cloudpickle.dumps
        """Also pickles what is defined in the main module of the program."""
        chosen = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **options}
        try:
            actor_class = ray.remote(concurrency_groups={"requests": 1, "events": 1})(RolltraceWorker)
            self._actor_class = actor_class.options(**chosen, max_restarts=0)
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected options of a Ray actor, got {chosen}: {error}") from error

    def start(self, setup: bytes, on_event: OnEvent) -> "RayWorker":
        """Start a worker. It may have to wait for room in the cluster."""
        return RayWorker(self._actor_class.remote(_search_path()), setup, on_event)


class RayWorker:
    """An actor that plays groups."""

    def __init__(self, actor: Any, setup: bytes, on_event: OnEvent) -> None:
        self._actor = actor
        self._handle = actor.handle.options(concurrency_group="requests")
        self._next_events = actor.next_events.options(concurrency_group="events")
        self._on_event = on_event
        self._end = actor.play.remote(setup)
        self._requests: asyncio.Queue[tuple[str, tuple[object, ...]]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._send_all()), asyncio.create_task(self._receive_all())]
        self._why_lost = ""

    def request(self, method: str, *args: object) -> None:
        """Call a method of the `GroupWorker`."""
        self._requests.put_nowait((method, args))

    def cancel(self) -> None:
        """Cancel what is being played, record it and close."""
        self.request(CANCEL)

    def end(self) -> None:
        """Record what is being played as cancelled and end, without waiting for envs. Any thread may call it."""
        self._handle.remote([(END, ())])

    def kill(self) -> None:
        """Kill the actor."""
        with contextlib.suppress(Exception):  # the connection to the cluster is lost
            require_ray().kill(self._actor)

    def join(self, seconds: float) -> None:
        """Wait for the end of the play."""
        require_ray().wait([self._end], timeout=seconds)

    def why_lost(self) -> str:
        """How the actor ended."""
        return self._why_lost

    async def _send_all(self) -> None:
        """Send requests in their order, and together those that have come meanwhile."""
        with contextlib.suppress(Exception):  # the actor has gone, as `_receive_all` sees
            while True:
                requests = [await self._requests.get()]
                while not self._requests.empty():
                    requests.append(self._requests.get_nowait())
                await self._handle.remote(requests)

    async def _receive_all(self) -> None:
        try:
            while data := await self._next_events.remote():
                for event in decode_events(data):
                    if isinstance(event, Closed):
                        self.kill()  # nothing is left to record, and this makes room in the cluster
                    self._on_event(self, event)
        except Exception as error:  # noqa: BLE001 - Ray has many errors for an actor that has gone
            self._why_lost = f"was lost: {' '.join(str(error).split())[:300]}"
            self.kill()  # only the connection may be lost, and its groups are played again
        self._tasks[0].cancel()
        self._on_event(self, None)


class RolltraceWorker:
    """The class of the actors. Requests, events and the play have threads of their own, so that an env may block."""

    def __init__(self, search_path: list[str]) -> None:
        sys.path += [entry for entry in search_path if entry not in sys.path]
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition()
        self._is_over = False
        self._main = WorkerMain(self._send)

    async def play(self, setup: bytes) -> None:
        """Play until a request ends it."""
        await asyncio.to_thread(self._play, setup)

    def _play(self, setup: bytes) -> None:
        """Play in an event loop that Ray does not use: an env that raises `KeyboardInterrupt` ends its event loop."""
        try:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(self._main.play(setup))
        finally:
            with self._arrived:
                self._is_over = True
                self._arrived.notify()

    async def handle(self, requests: list[tuple[str, tuple[object, ...]]]) -> None:
        """Handle requests."""
        for method, args in requests:
            self._main.handle(method, *args)

    async def next_events(self) -> bytes:
        """Wait for events; empty after the last one."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._events or self._is_over)
            events = list(self._events)
            self._events.clear()
        return encode_events(events) if events else b""

    def _send(self, event: Event) -> None:
        with self._arrived:
            self._events.append(event)
            self._arrived.notify()


def _search_path() -> list[str]:
    """The folders that this program imports from, for envs and policies of its own."""
    return [str(Path(entry).absolute()) for entry in sys.path]
