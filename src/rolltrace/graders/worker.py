"""Work that may not end, in a process of its own: killed when it exceeds its time or memory, and replaced."""

import asyncio
import atexit
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, cast

from rolltrace.errors import DataError, EnvError, GraderError, InputError, UnknownNameError
from rolltrace.graders.worker_process import read_frame, write_frame

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rolltrace.graders.worker_process import main; main()"
)
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Without a fixed hash seed, what is drawn from a set differs from process to process."""
_PREPARING_SECONDS = 300.0
_PATIENCE = 6.0
"""How many times its seconds of computing a call may take by the clock: the machine may be busy."""
_MOST_WORKERS = 4
_INPUT_ERRORS = {kind.__name__: kind for kind in (InputError, UnknownNameError, DataError)}


async def ask_worker(
    function: Callable[..., Any], *args: Any, seconds: float, prepare: Callable[[], object] = bool
) -> Any:
    """What the function of a module makes of these arguments, as JSON has it; the running loop is not held up.

    `seconds` are of computing; `prepare`, for what takes long to import, is called first and is not counted. Whatever
    the function raises, and its exceeding its time or memory, is a `GraderError`; its `InputError` stays one.
    Whoever stops waiting ends the work.
    """
    job = _Job(pickle.dumps((prepare, function, args, seconds)), seconds)
    try:
        return await asyncio.get_running_loop().run_in_executor(_POOL.threads, _POOL.run, job)
    except BaseException:
        job.abandon()
        raise


def call_worker(function: Callable[..., Any], *args: Any, seconds: float, prepare: Callable[[], object] = bool) -> Any:
    """The same, waiting for it."""
    job = _Job(pickle.dumps((prepare, function, args, seconds)), seconds)
    try:
        return _POOL.threads.submit(_POOL.run, job).result()
    except BaseException:
        job.abandon()
        raise


def stop_workers() -> None:
    """End all processes; the next call starts new ones."""
    _POOL.stop()


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,  # an interrupt from the keyboard is for the caller
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        self._expired = False

    @property
    def alive(self) -> bool:
        """Whether it can be given work; one that was just told to end may still be there."""
        return not self._expired and self._process.poll() is None

    def call(self, request: bytes, seconds: float) -> Any:
        """What the function returned, or the error that says why there is nothing."""
        with contextlib.suppress(BrokenPipeError):
            write_frame(self._requests, request)
        prepared = self._read_within(_PREPARING_SECONDS)
        if prepared is None:
            raise EnvError(f"A worker process did not start. {self._end(_PREPARING_SECONDS)}")
        reply = self._read_within(seconds * _PATIENCE)
        if error := json.loads(prepared).get("error"):
            raise EnvError(f"A worker process could not be prepared: {error[0]}: {error[1]}")
        if reply is None:
            raise GraderError(self._end(seconds))
        return _value(json.loads(reply))

    def kill(self) -> None:
        """End it, with whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes; an idle process then ends by itself."""
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()

    def _read_within(self, seconds: float) -> bytes | None:
        timer = threading.Timer(seconds, self.expire)
        timer.daemon = True
        timer.start()
        try:
            return read_frame(self._replies)
        finally:
            timer.cancel()

    def expire(self) -> None:
        """End what it is doing; whoever waits for it learns that."""
        self._expired = True
        self._process.kill()

    def _end(self, seconds: float) -> str:
        """Why there is no reply."""
        code = self._process.wait()
        if self._expired or code == -signal.SIGPROF:
            return f"It took more than {seconds:g} seconds, and was stopped."
        return f"The process that worked on it ended with code {code}."


class _Job:
    """One call, and the worker that is at it."""

    def __init__(self, request: bytes, seconds: float) -> None:
        self.request = request
        self.seconds = seconds
        self._worker: _Worker | None = None
        self._lock = threading.Lock()  # a worker must not be ended for a job that it has just finished
        self._abandoned = False

    def begin(self, worker: _Worker) -> None:
        """Note who does it."""
        with self._lock:
            self._worker = worker
            if self._abandoned:
                worker.expire()

    def end(self) -> None:
        """Note that it is done."""
        with self._lock:
            self._worker = None

    def abandon(self) -> None:
        """Have nobody do it any longer."""
        with self._lock:
            self._abandoned = True
            if self._worker is not None:
                self._worker.expire()


class _Pool:
    """A few workers, each started when there is work for it."""

    def __init__(self) -> None:
        self.threads = _threads()
        self._idle: list[_Worker] = []

    def run(self, job: _Job) -> Any:
        """Have one of the workers do it."""
        worker = self._take()
        job.begin(worker)
        try:
            return worker.call(job.request, job.seconds)
        finally:
            job.end()
            if worker.alive:
                self._idle.append(worker)
            else:
                worker.kill()

    def stop(self) -> None:
        """Wait for the calls that are under way, and end all workers."""
        threads, self.threads = self.threads, _threads()
        threads.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().kill()

    def forget(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        self.threads = _threads()
        while self._idle:
            self._idle.pop().let_go()

    def _take(self) -> _Worker:
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.kill()
        return _Worker()


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1), thread_name_prefix="rolltrace-worker")


def _value(reply: dict[str, Any]) -> Any:
    if "error" not in reply:
        return reply["value"]
    kind, message = reply["error"]
    raise _INPUT_ERRORS[kind](message) if kind in _INPUT_ERRORS else GraderError(f"{kind}: {message}")


_POOL = _Pool()
atexit.register(stop_workers)
os.register_at_fork(after_in_child=_POOL.forget)
