"""A few worker processes, started as there is work for them, and replaced when they had to be killed."""

import asyncio
import atexit
import contextlib
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from rolltrace.deadline_pause import pause_deadline
from rolltrace.errors import EnvError, InputError
from rolltrace.graders.worker import WorkerProcess

_MAX_WORKERS = 4
_MAX_WORKERS_VARIABLE = "ROLLTRACE_WORKERS"
_ALL: list["ProcessPool"] = []
_STARTING = threading.Lock()
"""Held while a process is started, and while this one is forked: the child can then close every pipe that it got."""


class ProcessPool:
    """Processes that all do the same kind of work, so that it waits for its own kind only.

    There are up to four of them and no more than processors, or as many as `ROLLTRACE_WORKERS` says.
    """

    def __init__(self) -> None:
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        _ALL.append(self)

    async def ask(
        self, function: Callable[..., Any], *args: Any, seconds: float, prepare: Callable[[], object] = bool
    ) -> Any:
        """What the function of a module makes of these arguments, as JSON has it; the running loop is not held up.

        `seconds` are of computing; `prepare`, for what takes long to import, is called first and is not counted.
        Whatever the function raises, and its exceeding its time, its memory or a reply's size, is a `GraderError`; its
        `InputError` stays one. Whoever stops waiting ends the work.
        """
        job = _Job(pickle.dumps((prepare, function, args, seconds)), seconds)
        try:
            with pause_deadline():  # whatever is before it in the queue is not the rollout's doing
                return await asyncio.wrap_future(self._begin(job))
        except BaseException:
            job.abandon()
            raise

    def run_sync(
        self, function: Callable[..., Any], *args: Any, seconds: float, prepare: Callable[[], object] = bool
    ) -> Any:
        """The same, waiting for it; any thread may."""
        job = _Job(pickle.dumps((prepare, function, args, seconds)), seconds)
        try:
            return self._begin(job).result()
        except BaseException:
            job.abandon()
            raise

    def stop(self) -> None:
        """Wait for the calls that were made, and end the processes; a later call starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        with contextlib.suppress(IndexError):
            while True:
                self._end(self._idle.pop())

    def detach_after_fork(self) -> None:
        """In a forked process: leave the processes to the one that started them, also those that are at work."""
        for worker in self._workers:
            worker.detach_after_fork()
        self._workers.clear()
        self._idle.clear()
        self._lock = threading.Lock()
        self._threads = None

    def _begin(self, job: "_Job") -> Future[Any]:
        with self._lock:  # against `stop`
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_most_workers(), thread_name_prefix="rolltrace-worker")
            try:
                return self._threads.submit(self._run, job)
            except RuntimeError as error:
                raise EnvError(f"A worker process cannot be asked while the program ends: {error}.") from error

    def _run(self, job: "_Job") -> Any:
        worker = self._take()
        job.begin(worker)
        try:
            return worker.call(job.request, job.seconds)
        finally:
            job.end()
            if worker.alive:
                self._idle.append(worker)
            else:
                self._end(worker)

    def _take(self) -> WorkerProcess:
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                self._end(worker)
        with _STARTING:
            worker = WorkerProcess()
            self._workers.add(worker)
        return worker

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._workers.discard(worker)


class _Job:
    """One call, and the worker that is at it."""

    def __init__(self, request: bytes, seconds: float) -> None:
        self.request = request
        self.seconds = seconds
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()  # a worker must not be ended for a job that it has just finished
        self._abandoned = False

    def begin(self, worker: WorkerProcess) -> None:
        """Note who does it."""
        with self._lock:
            self._worker = worker
            if self._abandoned:
                worker.kill_now()

    def end(self) -> None:
        """Note that it is done."""
        with self._lock:
            self._worker = None

    def abandon(self) -> None:
        """Have nobody do it any longer."""
        with self._lock:
            self._abandoned = True
            if self._worker is not None:
                self._worker.kill_now()


def stop_all_pools() -> None:
    """End the processes of all kinds."""
    for workers in _ALL:
        workers.stop()


def _most_workers() -> int:
    given = os.environ.get(_MAX_WORKERS_VARIABLE)
    if given is None:
        return min(_MAX_WORKERS, os.cpu_count() or 1)
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"Expected {_MAX_WORKERS_VARIABLE} to be a number of processes from 1 up, got {given!r}.")
    return int(given)


def _forget_all() -> None:
    _STARTING.release()
    for workers in _ALL:
        workers.detach_after_fork()


SCORING_POOL = ProcessPool()
"""Those that score answers."""

atexit.register(stop_all_pools)
os.register_at_fork(before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_forget_all)
