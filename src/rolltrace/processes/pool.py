"""A pool of worker processes, started on demand and replaced when they are killed."""

import asyncio
import math
import os
import pickle
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypedDict, Unpack

from rolltrace.errors import EnvError, InputError
from rolltrace.processes.child_processes import START_LOCK, register_owner
from rolltrace.processes.worker_process import ProcessSettings, WorkerProcess

_MAX_PROCESSES = 4
_MAX_PROCESSES_VARIABLE = "ROLLTRACE_WORKERS"
_WALL_FACTOR = 6.0
"""The wall-clock limit of a call as a multiple of its CPU seconds: the machine may be busy."""


class CallOptions(TypedDict, total=False):
    """Options of one call. Without `cpu_seconds` and `wall_seconds` its time is unlimited."""

    cpu_seconds: float
    """Limit of the CPU time. The wall-clock limit is six times that by default."""
    wall_seconds: float
    prepare: Callable[[], object]
    """Called first, for slow imports; its time does not count."""
    affinity: Hashable
    """A process whose last call had the same affinity is preferred."""


class ProcessPool:
    """Processes for one kind of work, so that a call waits only for calls of its own kind.

    `max_processes` is by default the value of `ROLLTRACE_WORKERS`, otherwise the number of processors, at most four.
    """

    def __init__(self, settings: ProcessSettings | None = None, *, max_processes: int | None = None) -> None:
        self._settings = settings or ProcessSettings()
        self._max_processes = max_processes
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        register_owner(self)

    async def run(self, function: Callable[..., Any], *args: Any, **options: Unpack[CallOptions]) -> Any:
        """Call a module-level function in a worker process, without blocking the event loop.

        The result is encoded as JSON, unless it is bytes. Raises `WorkerError` if the function raises, or exceeds its
        time, its memory or the size of a reply; an `InputError` is raised unchanged. Cancelling this kills the process.
        """
        job = _Job(function, args, options)
        try:
            return await asyncio.wrap_future(self._submit(job))
        except BaseException:
            job.abandon()
            raise

    def run_sync(self, function: Callable[..., Any], *args: Any, **options: Unpack[CallOptions]) -> Any:
        """The same, blocking; any thread may call it."""
        job = _Job(function, args, options)
        try:
            return self._submit(job).result()
        except BaseException:
            job.abandon()
            raise

    def submit(self, function: Callable[..., Any], *args: Any, **options: Unpack[CallOptions]) -> Future[Any]:
        """The same, without waiting. Only `kill` stops the call."""
        return self._submit(_Job(function, args, options))

    def stop(self) -> None:
        """Wait for all calls, and end the processes. A later call starts new ones."""
        self._shut_down(cancel_waiting=False)

    def kill(self) -> None:
        """Kill the processes, so that running calls fail, and cancel the waiting calls."""
        for job in list(self._jobs):
            job.abandon()
        self._shut_down(cancel_waiting=True)

    def detach_after_fork(self) -> None:
        """In a forked process: drop all processes, also the busy ones, because they belong to the parent."""
        for worker in self._workers:
            worker.detach_after_fork()
        self._workers.clear()
        self._idle.clear()
        self._jobs.clear()
        self._lock = threading.Lock()
        self._threads = None

    def _shut_down(self, *, cancel_waiting: bool) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=cancel_waiting)
        while (worker := self._take_idle(None)) is not None:
            self._end(worker)

    def _submit(self, job: "_Job") -> Future[Any]:
        with self._lock:  # against `stop`
            if self._threads is None:
                number = self._max_processes or _default_max_processes()
                self._threads = ThreadPoolExecutor(number, thread_name_prefix="rolltrace-worker")
            try:
                result = self._threads.submit(self._run, job)
            except RuntimeError as error:
                raise EnvError(f"No worker process can be called while the program exits: {error}.") from error
            self._jobs.add(job)
            result.add_done_callback(lambda _: self._jobs.discard(job))
            return result

    def _run(self, job: "_Job") -> Any:
        worker = self._take(job.affinity)
        job.begin(worker)
        try:
            return worker.call(job.request, job.wall_seconds, job.limit)
        finally:
            job.end()
            if worker.alive:
                with self._lock:
                    self._idle.append(worker)
            else:
                self._end(worker)

    def _take(self, affinity: Hashable) -> WorkerProcess:
        while (worker := self._take_idle(affinity)) is not None:
            if worker.alive:
                break
            self._end(worker)
        else:
            with START_LOCK:
                worker = WorkerProcess(self._settings)
                self._workers.add(worker)
        worker.affinity = affinity
        return worker

    def _take_idle(self, affinity: Hashable) -> WorkerProcess | None:
        """An idle process, if possible one whose last call had this affinity."""
        with self._lock:
            if not self._idle:
                return None
            same = [worker for worker in self._idle if worker.affinity == affinity]
            worker = (same or self._idle)[-1]
            self._idle.remove(worker)
            return worker

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._workers.discard(worker)


class _Job:
    """One call, and the process that runs it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], options: CallOptions) -> None:
        cpu_seconds = options.get("cpu_seconds", math.inf)
        self.request = pickle.dumps((options.get("prepare", bool), function, args, cpu_seconds))
        self.wall_seconds = options.get("wall_seconds", cpu_seconds * _WALL_FACTOR)
        self.limit = min(cpu_seconds, self.wall_seconds)
        """The seconds that a time-out error names."""
        self.affinity = options.get("affinity")
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()  # a worker must not be killed for a job that it has just finished
        self._is_abandoned = False

    def begin(self, worker: WorkerProcess) -> None:
        """Set the process that runs the job."""
        with self._lock:
            self._worker = worker
            if self._is_abandoned:
                worker.kill_now()

    def end(self) -> None:
        """Release the process: the job is done."""
        with self._lock:
            self._worker = None

    def abandon(self) -> None:
        """Kill the process that runs the job, now or when it starts."""
        with self._lock:
            self._is_abandoned = True
            if self._worker is not None:
                self._worker.kill_now()


def _default_max_processes() -> int:
    text = os.environ.get(_MAX_PROCESSES_VARIABLE)
    if text is None:
        return min(_MAX_PROCESSES, os.cpu_count() or 1)
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"Expected {_MAX_PROCESSES_VARIABLE} to be a number of at least 1, got {text!r}.")
    return int(text)
