"""A worker process for untrusted code. It is killed if it exceeds its time, its memory or the size of a reply."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import IO, Any, cast

from rolltrace.errors import DataError, EnvError, InputError, UnknownNameError, WorkerError
from rolltrace.processes.worker_main import LENGTH_BYTES, RAW, with_length_prefix
from rolltrace.temp_folders import make_folder, remove_folder

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rolltrace.processes.worker_main import main; main()"
)
_INHERITED = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "MPLCONFIGDIR",
}  # fmt: skip
_INHERITED_PREFIXES = ("LC_", "PYTHON", "XDG_")
"""The environment variables that a program needs to start. Foreign code gets no others: they may hold keys."""
_SET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The hash seed is fixed because the order of a set would otherwise differ between processes."""
PREPARE_SECONDS = 300.0
"""How long a process may take to start, and to load what it needs for a call."""
EXIT_SECONDS = 1.0
"""How long a process may take to exit after it has closed its end of the pipe."""
_CHUNK = 2**20
_INPUT_ERRORS = {kind.__name__: kind for kind in (InputError, UnknownNameError, DataError)}


@dataclass(frozen=True)
class ProcessSettings:
    """How a worker process is started."""

    memory_bytes: int | None = 4 * 2**30
    """Limit of its private memory (RLIMIT_DATA)."""
    reply_bytes: int = 16 * 2**20
    private_temp_folder: bool = False
    """Whether it has its own TMPDIR, which is removed when it ends."""
    inherit_stderr: bool = False
    inherited: tuple[str, ...] = ()
    """Environment variables that it gets beside those that every program needs; for code of our own only."""


class WorkerProcess:
    """One process, and the pipes to it. One thread at a time calls it; any thread may kill it."""

    def __init__(self, settings: ProcessSettings) -> None:
        self.affinity: Hashable = None
        """The affinity of its last call."""
        self._settings = settings
        self._temp_folder = make_folder() if settings.private_temp_folder else None
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path), json.dumps(settings.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if settings.inherit_stderr else subprocess.DEVNULL,
            bufsize=0,
            env=_environment(settings.inherited) | ({"TMPDIR": str(self._temp_folder)} if self._temp_folder else {}),
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._requests.fileno(), False)
        self._is_killed = False

    @property
    def alive(self) -> bool:
        """Whether it can be called. A process that was just killed may still exist."""
        return not self._is_killed and self._process.poll() is None

    def call(self, request: bytes, wall_seconds: float, limit: float) -> Any:
        """Return the function's value. A time-out error names `limit`, the seconds that the caller set."""
        deadline = time.monotonic() + PREPARE_SECONDS
        self._send(with_length_prefix(request), deadline)
        prepared = self._receive(deadline)
        if prepared is None:
            raise EnvError(f"A worker process did not start. {self._why_no_reply(PREPARE_SECONDS)}")
        reply = self._receive(time.monotonic() + wall_seconds)
        if error := self._decode(prepared).get("error"):
            raise EnvError(f"A worker process could not be prepared: {error[0]}: {error[1]}")
        if reply is None:
            raise self._why_no_reply(limit)
        return reply.removeprefix(RAW) if reply.startswith(RAW) else self._value(self._decode(reply))

    def kill_now(self) -> None:
        """Kill it and all processes that it started, without waiting. A thread that waits for a reply gets an error."""
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill it, and release its pipes and files."""
        self.kill_now()
        self._process.wait()
        self._close()
        if self._temp_folder is not None:
            remove_folder(self._temp_folder)

    def detach_after_fork(self) -> None:
        """In a forked process: close the pipes, so that only the parent keeps it alive."""
        self._process.poll()  # it is not a child of this process, so Popen notes that it has ended
        self._close()

    def _close(self) -> None:
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()

    def _send(self, data: bytes, deadline: float) -> None:
        """Write all data, unless the process ends."""
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while rest and self._is_ready(self._requests, select.POLLOUT, deadline):
                rest = rest[self._requests.write(rest) or 0 :]

    def _receive(self, deadline: float) -> bytes | None:
        """The next reply; None if the process has ended, or was killed because it did not reply in time."""
        head = self._read(LENGTH_BYTES, deadline)
        if head is None:
            return None
        length, limit = int.from_bytes(head, "big"), self._settings.reply_bytes
        if length > limit:
            self.kill_now()
            raise WorkerError(f"Expected a reply of at most {limit} bytes, got {length}.")
        return self._read(length, deadline)

    def _read(self, size: int, deadline: float) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            if not self._is_ready(self._replies, select.POLLIN, deadline):
                return None
            chunk = self._replies.read(min(size - len(data), _CHUNK))
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def _is_ready(self, pipe: IO[bytes], event: int, deadline: float) -> bool:
        """Whether the pipe is ready or closed before the deadline. If it is not, the process is killed."""
        poll = select.poll()
        poll.register(pipe, event)
        if poll.poll(None if deadline == math.inf else max(0.0, deadline - time.monotonic()) * 1000):
            return True
        self.kill_now()
        return False

    def _decode(self, data: bytes) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(data)
        except (ValueError, RecursionError) as error:
            self.kill_now()
            raise WorkerError(f"Expected a reply in JSON, got {data[:100]!r}.") from error
        return reply

    def _value(self, reply: dict[str, Any]) -> Any:
        if "error" not in reply:
            return reply["value"]
        kind, message = reply["error"]
        if kind == MemoryError.__name__:
            self.kill_now()  # its remaining memory may be too small for the next call
        raise _INPUT_ERRORS[kind](message) if kind in _INPUT_ERRORS else WorkerError(f"{kind}: {message}")

    def _why_no_reply(self, seconds: float) -> WorkerError:
        is_killed = self._is_killed
        try:
            code = self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_now()
            return WorkerError("The worker process closed its pipe.")
        if is_killed or code == -signal.SIGPROF:
            error = WorkerError(f"It took more than {seconds:g} seconds, and was stopped.")
            error.timed_out = True
            return error
        return WorkerError(f"The worker process ended with code {code}.")


def _environment(more: tuple[str, ...]) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name in more or name.startswith(_INHERITED_PREFIXES)
    }
    return inherited | _SET
